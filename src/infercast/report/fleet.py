"""A simulated run on several engines, or on two pools of them, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infercast.engine.deployment import Deployment
from infercast.forecast.disaggregate import DisaggregatedForecast
from infercast.forecast.fleet import EngineLoad, FleetForecast
from infercast.forecast.intervals import Intervals
from infercast.forecast.saturation import Saturation
from infercast.forecast.serving import Percentiles
from infercast.report.caveats import caveats
from infercast.report.intervals import interval_fields, render_intervals
from infercast.report.layout import facts, grid, section, styled
from infercast.report.serving import (
    deployment_dict,
    deployment_facts,
    latency_cells,
    milliseconds,
    render_caveats,
    workload_dict,
)
from infercast.serve import Workload
from infercast.units import format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

LATENCIES = ("", "mean", "p50", "p90", "p99")


def render_fleet(forecast: FleetForecast, intervals: Intervals | None = None) -> list[RenderableType]:
    """Tables for a terminal."""
    about = [
        *deployment_facts(forecast.deployment),
        ("router", forecast.router),
        ("workload", _workload(forecast.workload, forecast.duration)),
    ]
    latencies = [
        ("time to first token (TTFT)", forecast.ttft),
        ("time per output token (TPOT)", forecast.tpot),
        ("inter-token latency", forecast.inter_token),
        ("end to end", forecast.end_to_end),
    ]
    load = [
        ("throughput", f"{forecast.output_tokens_per_second:,.0f} output tokens/s"),
        ("", f"{forecast.output_tokens_per_second_a_gpu:,.0f} output tokens/s per GPU"),
        ("", f"{forecast.requests_per_second:,.2f} requests/s"),
    ]
    parts: list[RenderableType] = [
        section("What was simulated", facts(about)),
        section("Latency", _latencies(latencies)),
        section("Load", facts(load)),
        section("Engines", _engines(forecast.engines)),
    ]
    if intervals is not None:
        parts.insert(2, render_intervals(intervals))
    if forecast.saturation is not None:
        parts.insert(1, _overload(forecast.saturation))
    return [*parts, render_caveats(forecast)]


def _overload(saturation: Saturation) -> RenderableType:
    return section("Overload", styled(saturation.sentence, style="bold red"))


def fleet_dict(forecast: FleetForecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data."""
    saturation = forecast.saturation
    return {
        "deployment": deployment_dict(forecast.deployment),
        "router": forecast.router,
        "workload": workload_dict(forecast.workload),
        "ttft_ms": milliseconds(forecast.ttft),
        "tpot_ms": milliseconds(forecast.tpot),
        "inter_token_ms": milliseconds(forecast.inter_token),
        "end_to_end_ms": milliseconds(forecast.end_to_end),
        "output_tokens_per_s": forecast.output_tokens_per_second,
        "output_tokens_per_s_a_gpu": forecast.output_tokens_per_second_a_gpu,
        "requests_per_s": forecast.requests_per_second,
        "duration_s": forecast.duration,
        "engines": _engines_list(forecast.engines),
        "saturated": saturation is not None,
        "saturation_requests_per_s": saturation.capacity if saturation else None,
        "caveats": caveats(forecast),
        **interval_fields(intervals),
    }


def render_disaggregated(forecast: DisaggregatedForecast, intervals: Intervals | None = None) -> list[RenderableType]:
    """Tables for a terminal: both pools, and where the time to the first token goes."""
    latencies = [
        ("time to first token (TTFT)", forecast.ttft),
        ("  prompt on its pool", forecast.prompt),
        ("  waiting for the link", forecast.transfer_wait),
        ("  on the link", forecast.transfer),
        ("  to the first token", forecast.first_step),
        ("time per output token (TPOT)", forecast.tpot),
        ("inter-token latency", forecast.inter_token),
        ("end to end", forecast.end_to_end),
    ]
    tokens = forecast.output_tokens_per_second
    load = [
        ("throughput", f"{tokens:,.0f} output tokens/s, {tokens / forecast.gpus:,.0f} per GPU"),
        ("", f"{forecast.requests_per_second:,.2f} requests/s"),
        ("link", f"{forecast.link}, {format_percent(forecast.link_use)} of the run in use by its busiest sender"),
        ("workload", _workload(forecast.workload, forecast.duration)),
    ]
    return [
        section("Prefill pool", facts(_pool_facts(forecast.prefill))),
        section("Decode pool", facts(_pool_facts(forecast.decode))),
        *([] if forecast.saturation is None else [_overload(forecast.saturation)]),
        section("Latency", _latencies(latencies)),
        *([] if intervals is None else [render_intervals(intervals)]),
        section("Load", facts(load)),
        section("Prefill engines", _engines(forecast.prefill_engines)),
        section("Decode engines", _engines(forecast.decode_engines)),
    ]


def disaggregated_dict(forecast: DisaggregatedForecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "prefill": {
            "deployment": deployment_dict(forecast.prefill),
            "prompt_ms": milliseconds(forecast.prompt),
            "engines": _engines_list(forecast.prefill_engines),
        },
        "decode": {
            "deployment": deployment_dict(forecast.decode),
            "first_step_ms": milliseconds(forecast.first_step),
            "engines": _engines_list(forecast.decode_engines),
        },
        "link": {
            "name": forecast.link,
            "wait_ms": milliseconds(forecast.transfer_wait),
            "transfer_ms": milliseconds(forecast.transfer),
            "use": forecast.link_use,
        },
        "workload": workload_dict(forecast.workload),
        "gpus": forecast.gpus,
        "ttft_ms": milliseconds(forecast.ttft),
        "tpot_ms": milliseconds(forecast.tpot),
        "inter_token_ms": milliseconds(forecast.inter_token),
        "end_to_end_ms": milliseconds(forecast.end_to_end),
        "output_tokens_per_s": forecast.output_tokens_per_second,
        "requests_per_s": forecast.requests_per_second,
        "duration_s": forecast.duration,
        "saturated": forecast.saturation is not None,
        "saturation_requests_per_s": forecast.saturation.capacity if forecast.saturation else None,
        **interval_fields(intervals),
    }


def _pool_facts(deployment: Deployment) -> list[tuple[str, str]]:
    """What both pools may differ in; the host and prices are said once for each."""
    return [row for row in deployment_facts(deployment) if row[0] not in ("host", "note")]


def _workload(workload: Workload, duration: float) -> str:
    return f"{workload.description}; {duration:,.1f} s simulated"


def _latencies(rows: Sequence[tuple[str, Percentiles | None]]) -> RenderableType:
    return grid(LATENCIES, [(name, *latency_cells(values)) for name, values in rows])


def _engines(engines: Sequence[EngineLoad]) -> RenderableType:
    columns = ("engine", "requests", "busy", "running", "KV cache at most", "found in cache", "preemptions")
    rows = [
        (
            f"{number}",
            f"{each.requests:,}",
            format_percent(each.busy),
            f"{each.running:,.1f}",
            format_percent(each.kv_peak),
            format_percent(each.prefix_hit_rate),
            f"{each.num_preemptions:,}",
        )
        for number, each in enumerate(engines)
    ]
    return grid(columns, rows)


def _engines_list(engines: Sequence[EngineLoad]) -> list[dict[str, Any]]:
    return [
        {
            "requests": each.requests,
            "busy": each.busy,
            "running": each.running,
            "kv_peak": each.kv_peak,
            "prefix_hit_rate": each.prefix_hit_rate,
            "preemptions": each.num_preemptions,
        }
        for each in engines
    ]
