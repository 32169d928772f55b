"""A deployment, its workload and its speculative decoding, as tables and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.engines.base import Deployment
from infercast.engines.speculation import Drafting
from infercast.forecast.result import Forecast
from infercast.forecast.run import DraftRun, drafts_of
from infercast.models.layout import ParallelLayout
from infercast.models.spec import parameter_count
from infercast.report.memory import tokens_each
from infercast.report.terminal import facts
from infercast.serve.workload.request import Workload
from infercast.units import format_bytes, format_count, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType


ASSUMED = "assumed; say what you see with --acceptance"


def drafting_words(drafting: Drafting) -> str:
    acceptance = drafting.acceptance
    own = f" by {drafting.draft.config.name}" if drafting.draft is not None else ""
    source = f" ({acceptance.source}{f'; {ASSUMED}' if acceptance.is_assumed else ''})"
    return f"{drafting.title}{own}, {drafting.num_drafts} a step, acceptance length {acceptance.length:.2f}{source}"


def drafting_facts(deployment: Deployment) -> list[tuple[str, str]]:
    drafting = deployment.drafting
    if drafting is None:
        return []
    return [("drafts", drafting_words(drafting)), *([("", drafting.note)] if drafting.note else [])]


def drafting_dict(drafting: Drafting | None) -> dict[str, Any] | None:
    if drafting is None:
        return None
    return {
        "method": drafting.method,
        "num_speculative_tokens": drafting.num_drafts,
        "draft": None if drafting.draft is None else drafting.draft.config.name,
        "acceptance_rates": list(drafting.acceptance.rates),
        "acceptance_length": drafting.acceptance.length,
        "acceptance_source": drafting.acceptance.source,
        "acceptance_is_assumed": drafting.acceptance.is_assumed,
        "note": drafting.note or None,
    }


def draft_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What became of drafts, for people; nothing without any."""
    found = drafts_of(forecast)
    if found is None:
        return []
    counts = found.counts
    rates = ", ".join(format_percent(rate) for rate in counts.rates_by_position)
    words = (
        f"{counts.acceptance_length:.2f} tokens a step; {counts.num_accepted:,} of {counts.num_draft_tokens:,} drafts"
    )
    return [
        ("acceptance length", words),
        ("", f"by position {rates}"),
        ("drafts", f"{found.drafted_per_second:,.0f}/s, {found.accepted_per_second:,.0f}/s of them accepted"),
        ("decode steps", ", ".join(f"{name} {format_percent(share)}" for name, share in found.parts.items())),
    ]


def draft_run_dict(found: DraftRun | None) -> dict[str, Any] | None:
    """The same as plain data, by the words of engines' metrics."""
    if found is None:
        return None
    counts = found.counts
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_tokens": counts.num_accepted,
        "num_accepted_tokens_per_pos": counts.accepted_by_position,
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "acceptance_rate_per_pos": counts.rates_by_position,
        "drafted_tokens_per_s": found.drafted_per_second,
        "accepted_tokens_per_s": found.accepted_per_second,
        "decode_gpu_shares": found.parts,
    }


def deployment_facts(deployment: Deployment) -> list[tuple[str, str]]:
    model, gpu, memory = deployment.model, deployment.gpu, deployment.memory
    shape = memory.kv.shape
    rows = [
        ("model", f"{model.name} ({format_count(parameter_count(model))} parameters, {model.layers} layers)"),
        ("weights", f"{model.weights.name}, {format_bytes(memory.weights)} per GPU"),
        ("GPU", f"{deployment.layout.gpus} x {gpu.title} ({gpu.name})"),
        (
            "KV cache",
            f"{memory.num_blocks:,} blocks of {tokens_each(shape)}, {format_bytes(memory.kv_bytes)}, "
            f"{model.cache_dtype}",
        ),
        ("engine", f"{deployment.engine.name}: {deployment.engine.describe(deployment.settings)}"),
        *([("", deployment.engine.note)] if deployment.engine.note else []),
        *drafting_facts(deployment),
        ("host", _host(deployment)),
        ("clients", "over HTTP to the API server" if deployment.over_http else "in one program with the engine"),
        ("kernel latencies", deployment.predictor.describe(gpu)),
        *([("calibration", f"{deployment.corrections}")] if deployment.corrections is not None else []),
    ]
    if not _is_plain(deployment.layout):
        rows.insert(3, ("layout", _layout(deployment)))
    rows += [("note", note) for note in model.notes]
    return rows


def _is_plain(layout: ParallelLayout) -> bool:
    """One engine, at most with its layers split over GPUs: the number of GPUs says it all."""
    return layout.pipeline == layout.data == 1 and not layout.experts


def _layout(deployment: Deployment) -> str:
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


def workload_dict(workload: Workload) -> dict[str, Any]:
    """What was served, and how many requests had to be cut or left out for it."""
    return {
        "description": workload.description,
        "requests": len(workload.requests),
        "truncated": workload.num_truncated,
        "skipped": workload.num_skipped,
    }


def render_deployment(deployment: Deployment) -> list[RenderableType]:
    return [facts(deployment_facts(deployment))]


def render_workload(workload: Workload) -> list[RenderableType]:
    requests = workload.requests
    tokens = [sum(each) for each in ((one.num_input for one in requests), (one.num_output for one in requests))]
    rows = [("requests", f"{len(requests):,}"), ("tokens", "{:,} input, {:,} output".format(*tokens))]
    if workload.concurrency is not None:
        rows.append(("clients", f"{workload.concurrency:,} in a closed loop"))
    return [facts(rows)]


def deployment_dict(deployment: Deployment) -> dict[str, Any]:
    model, memory = deployment.model, deployment.memory
    return {
        "engine": deployment.engine.name,
        "engine_note": deployment.engine.note or None,
        "model": model.name,
        "architecture": model.architecture,
        "parameters": parameter_count(model),
        "weights": model.weights.name,
        "kv_cache_dtype": model.cache_dtype,
        "gpu": deployment.gpu.name,
        "tensor_parallel_size": deployment.layout.tensor,
        "pipeline_parallel_size": deployment.layout.pipeline,
        "data_parallel_size": deployment.layout.data,
        "enable_expert_parallel": deployment.layout.experts,
        "weight_bytes": memory.weights,
        "num_gpu_blocks": memory.num_blocks,
        "block_size": memory.kv.shape.block_size,
        **{name: getattr(deployment.settings, name) for name in deployment.engine.shown},
        "speculation": drafting_dict(deployment.drafting),
        "api_server": deployment.over_http,
        "notes": list(model.notes),
    }
