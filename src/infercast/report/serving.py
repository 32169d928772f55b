"""A simulated run, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.engines.deployment import Deployment
from infercast.engines.registry import DEFAULT_ENGINE, AnyEngine
from infercast.forecast.explain.phases import Phase
from infercast.forecast.fleet import FleetForecast
from infercast.forecast.intervals.intervals import Intervals
from infercast.forecast.latency import NAMES, Percentiles
from infercast.forecast.saturation import OVERLOADED
from infercast.forecast.serving import Forecast, Level
from infercast.models.layout import ParallelLayout
from infercast.models.parameters import parameter_count
from infercast.report.caveats import caveats
from infercast.report.intervals import interval_fields, render_intervals
from infercast.report.layout import facts, grid, section, styled
from infercast.report.memory import block_tokens
from infercast.report.state import TITLES, host_fields, host_rows, latency_title, overload, state_fields, state_rows
from infercast.serve.workload.request import Workload
from infercast.units import MILLI, format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def deployment_facts(deployment: Deployment) -> list[tuple[str, str]]:
    """What was put where."""
    model, gpu, memory = deployment.model, deployment.gpu, deployment.memory
    shape = memory.kv.shape
    rows = [
        ("model", f"{model.name} ({format_count(parameter_count(model))} parameters, {model.layers} layers)"),
        ("weights", f"{model.weights.name}, {format_bytes(memory.weights)} per GPU"),
        ("GPU", f"{deployment.layout.gpus} x {gpu.title} ({gpu.name})"),
        (
            "KV cache",
            f"{memory.num_blocks:,} blocks of {block_tokens(shape)} tokens, {format_bytes(memory.kv_bytes)}, "
            f"{model.cache_dtype}",
        ),
        (
            "engine",
            f"{_engine(deployment.engine)}{deployment.engine.describe(deployment.settings)}",
        ),
        ("host", _host(deployment)),
        ("clients", "over HTTP to the API server" if deployment.over_http else "in one program with the engine"),
        ("kernel latencies", deployment.predictor.describe(gpu)),
    ]
    if not _is_plain(deployment.layout):
        rows.insert(3, ("layout", _layout(deployment)))
    rows += [("note", note) for note in model.notes]
    return rows


def _engine(engine: AnyEngine) -> str:
    """The engine where it is not the default."""
    note = f" ({engine.note})" if engine.note else ""
    return "" if engine.name == DEFAULT_ENGINE else f"{engine.name}{note}; "


def _is_plain(layout: ParallelLayout) -> bool:
    """One engine, at most with its layers split over GPUs: the number of GPUs says it all."""
    return layout.pipeline == layout.data == 1 and not layout.experts


def _layout(deployment: Deployment) -> str:
    """For people: what the GPUs share."""
    layout = deployment.layout
    parts = [f"{layout.tensor} GPUs share every layer"] if layout.tensor > 1 else []
    parts += [f"{layout.pipeline} stages"] if layout.pipeline > 1 else []
    parts += [f"{layout.data} replicas"] if layout.data > 1 else []
    if layout.experts:
        parts.append(f"experts spread over {layout.expert_gpus} GPUs")
    elif deployment.shares_experts:
        parts.append(f"every expert split over {layout.gpus_per_expert} GPUs")
    return f"{layout}: {', '.join(parts)}"


def _host(deployment: Deployment) -> str:
    """Whose CPU it is, and a warning where it is nobody's in particular."""
    unfitted = " (default; not fitted to your machine)" if deployment.has_default_host else ""
    return f"{deployment.host.title}{unfitted}"


def render_forecast(forecast: Forecast, intervals: Intervals | None = None) -> list[RenderableType]:
    """Tables for a terminal."""
    parts: list[RenderableType] = [
        section(
            "What was simulated", facts([*deployment_facts(forecast.deployment), ("workload", _workload(forecast))])
        ),
        section(latency_title(forecast.steady_only), _latency_table(forecast)),
        section("Load", facts(_load_rows(forecast))),
    ]
    if intervals is not None:
        parts.insert(2, render_intervals(intervals))
    if forecast.state.word == OVERLOADED:
        parts.insert(1, overload(forecast.state))
    parts += [section(_phase_title(phase), _phase_table(phase)) for phase in forecast.phases]
    return [*parts, render_caveats(forecast)]


def render_caveats(forecast: Forecast | FleetForecast) -> RenderableType:
    """How far to trust it, one sentence a line; what is said beside the load already is left out."""
    known = [text for _, text in host_rows(forecast.deployment, forecast.phases)]
    return section("Caveats", styled("\n".join(each for each in caveats(forecast) if each not in known)))


def forecast_dict(forecast: Forecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data, in milliseconds where a name says so."""
    return {
        "deployment": deployment_dict(forecast.deployment),
        "workload": workload_dict(forecast.workload),
        "ttft_ms": milliseconds(forecast.ttft),
        "tpot_ms": milliseconds(forecast.tpot),
        "inter_token_ms": milliseconds(forecast.inter_token),
        "end_to_end_ms": milliseconds(forecast.end_to_end),
        "output_tokens_per_s": forecast.output_tokens_per_second,
        "requests_per_s": forecast.requests_per_second,
        "duration_s": forecast.duration,
        "running": _level(forecast.running),
        "waiting": _level(forecast.waiting),
        "kv_usage": _level(forecast.kv_usage),
        "prefix_hit_rate": forecast.prefix_hit_rate,
        "preemptions": forecast.num_preemptions,
        "phases": [_phase_dict(phase) for phase in forecast.phases],
        **state_fields(forecast.state, forecast.steady, forecast.steady_only),
        **host_fields(forecast.phases),
        "source": forecast.source,
        "kind": forecast.kind,
        "caveats": caveats(forecast),
        **interval_fields(intervals),
    }


def workload_dict(workload: Workload) -> dict[str, Any]:
    """What was served, and how many requests had to be cut or left out for it."""
    return {
        "description": workload.description,
        "requests": len(workload.requests),
        "truncated": workload.num_truncated,
        "skipped": workload.num_skipped,
    }


def deployment_dict(deployment: Deployment) -> dict[str, Any]:
    """What was put where, as plain data."""
    model, memory = deployment.model, deployment.memory
    return {
        "model": model.name,
        "architecture": model.architecture,
        "parameters": parameter_count(model),
        "weights": model.weights.name,
        "kv_cache_dtype": model.cache_dtype,
        "gpu": deployment.gpu.name,
        "tensor_parallel_size": deployment.layout.tensor,
        **({} if _is_plain(deployment.layout) else _layout_dict(deployment.layout)),
        "weight_bytes": memory.weights,
        "num_gpu_blocks": memory.num_blocks,
        "block_size": memory.kv.shape.block_size,
        **{name: getattr(deployment.settings, name) for name in deployment.engine.shown},
        "api_server": deployment.over_http,
        "notes": list(model.notes),
    }


def _layout_dict(layout: ParallelLayout) -> dict[str, Any]:
    return {
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": layout.data,
        "enable_expert_parallel": layout.experts,
    }


def _workload(forecast: Forecast) -> str:
    return f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated"


def _latency_table(forecast: Forecast) -> RenderableType:
    rows = [
        ("time to first token (TTFT)", forecast.ttft),
        ("time per output token (TPOT)", forecast.tpot),
        ("inter-token latency", forecast.inter_token),
        ("end to end", forecast.end_to_end),
    ]
    return grid(("", *NAMES), [(name, *latency_cells(values)) for name, values in rows])


def latency_cells(values: Percentiles | None) -> list[str]:
    """Mean and percentiles of a latency, as a row of a table."""
    if values is None:
        return ["-"] * len(NAMES)
    return [format_seconds(getattr(values, name)) for name in NAMES]


def _load_rows(forecast: Forecast) -> list[tuple[str, str]]:
    rows = [
        *state_rows(forecast.state, forecast.steady),
        *host_rows(forecast.deployment, forecast.phases),
        ("throughput", f"{forecast.output_tokens_per_second:,.0f} output tokens/s"),
        ("", f"{forecast.requests_per_second:,.2f} requests/s"),
        ("running", f"{forecast.running.mean:,.1f} sequences on average, {forecast.running.peak:,.0f} at most"),
        ("waiting", f"{forecast.waiting.mean:,.1f} requests on average, {forecast.waiting.peak:,.0f} at most"),
        (
            "KV cache use",
            f"{format_percent(forecast.kv_usage.mean)} on average, {format_percent(forecast.kv_usage.peak)} at most",
        ),
    ]
    if forecast.prefix_hit_rate > 0:
        rows.append(("prefix cache", f"{format_percent(forecast.prefix_hit_rate)} of prompt tokens found"))
    if forecast.num_preemptions:
        rows.append(("preemptions", f"{forecast.num_preemptions:,}: the KV cache ran full"))
    return rows


def _phase_title(phase: Phase) -> str:
    each = format_seconds(phase.seconds / phase.steps)
    return f"Where time goes in {TITLES[phase.name]}: {phase.steps:,} steps, {each} each"


def _phase_table(phase: Phase) -> RenderableType:
    """Kernel families, and the time in which the GPU waited for its host: together the whole step."""
    parts = [(each.family, each.seconds, each.bound, each.source, each.kernels) for each in phase.families]
    if phase.host_bound_seconds > 0:
        parts.append(("GPU idle", phase.host_bound_seconds, phase.waits_for, "", ()))
    rows = [
        (
            name,
            format_percent(seconds / phase.whole),
            format_seconds(seconds / phase.steps),
            bound,
            source,
            ", ".join(kernel for kernel, _ in kernels[:4]),
        )
        for name, seconds, bound, source, kernels in parts
        if seconds >= 0.0005 * phase.whole
    ]
    return grid(("family", "share", "per step", "bound by", "source", "largest kernels"), rows, notes_at=(3, 4, 5))


def milliseconds(values: Percentiles | None) -> dict[str, float] | None:
    """Mean and percentiles of a latency, as plain data."""
    if values is None:
        return None
    return {name: getattr(values, name) / MILLI for name in NAMES}


def _level(level: Level) -> dict[str, float]:
    return {"mean": level.mean, "peak": level.peak}


def _phase_dict(phase: Phase) -> dict[str, Any]:
    return {
        "phase": phase.name,
        "steps": phase.steps,
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "gpu_seconds": phase.gpu_seconds,
        "host_bound_seconds": phase.host_bound_seconds,
        "families": [
            {
                "family": family.family,
                "seconds": family.seconds,
                "share": family.share,
                "bound": family.bound,
                "source": family.source,
                "kernels": dict(family.kernels),
            }
            for family in phase.families
        ],
    }
