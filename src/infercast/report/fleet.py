"""A simulated run on several replicas, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infercast.forecast.fleet import EngineLoad, FleetForecast
from infercast.forecast.intervals.intervals import Intervals
from infercast.forecast.latency import NAMES, Percentiles
from infercast.forecast.saturation import OVERLOADED
from infercast.report.caveats import caveats
from infercast.report.intervals import interval_fields, render_intervals
from infercast.report.layout import facts, grid, section
from infercast.report.serving import (
    deployment_dict,
    deployment_facts,
    latency_cells,
    milliseconds,
    render_caveats,
    workload_dict,
)
from infercast.report.state import host_fields, host_rows, latency_title, overload, state_fields, state_rows
from infercast.serve import Workload
from infercast.units import format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

LATENCIES = ("", *NAMES)
SHOWN_ENGINES = 16


def render_fleet(forecast: FleetForecast, intervals: Intervals | None = None) -> list[RenderableType]:
    """Tables for a terminal."""
    about = [
        *deployment_facts(forecast.deployment),
        ("router", forecast.router),
        ("workload", workload_words(forecast.workload, forecast.duration)),
    ]
    latencies = [
        ("time to first token (TTFT)", forecast.ttft),
        ("time per output token (TPOT)", forecast.tpot),
        ("inter-token latency", forecast.inter_token),
        ("end to end", forecast.end_to_end),
    ]
    load = [
        *state_rows(forecast.state, forecast.steady),
        *host_rows(forecast.deployment, forecast.phases),
        ("throughput", f"{forecast.output_tokens_per_second:,.0f} output tokens/s"),
        ("", f"{forecast.output_tokens_per_second_a_gpu:,.0f} output tokens/s per GPU"),
        ("", f"{forecast.requests_per_second:,.2f} requests/s"),
    ]
    parts: list[RenderableType] = [
        section("What was simulated", facts(about)),
        section(latency_title(forecast.steady_only), latency_table(latencies)),
        section("Load", facts(load)),
        section("Engines", engine_table(forecast.engines)),
    ]
    if intervals is not None:
        parts.insert(2, render_intervals(intervals))
    if forecast.state.word == OVERLOADED:
        parts.insert(1, overload(forecast.state))
    return [*parts, render_caveats(forecast)]


def fleet_dict(forecast: FleetForecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data."""
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
        "engines": engines_list(forecast.engines),
        **state_fields(forecast.state, forecast.steady, forecast.steady_only),
        **host_fields(forecast.phases),
        "caveats": caveats(forecast),
        **interval_fields(intervals),
    }


def workload_words(workload: Workload, duration: float) -> str:
    """What was served, and for how long."""
    return f"{workload.description}; {duration:,.1f} s simulated"


def latency_table(rows: Sequence[tuple[str, Percentiles | None]]) -> RenderableType:
    """Means and percentiles."""
    return grid(LATENCIES, [(name, *latency_cells(values)) for name, values in rows])


def engine_table(engines: Sequence[EngineLoad]) -> RenderableType:
    """What each did; of many only the first, and the range of the others."""
    columns = ("engine", "requests", "busy", "running", "KV cache peak", "found in cache", "preemptions")
    shown = len(engines) if len(engines) <= SHOWN_ENGINES else SHOWN_ENGINES - 1
    rows = [(f"{number}", *_cells([each])) for number, each in enumerate(engines[:shown])]
    if others := engines[shown:]:
        rows.append((f"{len(others):,} others", *_cells(others)))
    return grid(columns, rows)


def _cells(engines: Sequence[EngineLoad]) -> tuple[str, ...]:
    """One engine, or the least and the most of several."""

    def ends(name: str, form: Callable[[float], str]) -> str:
        values = [getattr(each, name) for each in engines]
        low, high = form(min(values)), form(max(values))
        return low if low == high else f"{low.removesuffix(' %')} to {high}"

    return (
        ends("requests", "{:,}".format),
        ends("busy", format_percent),
        ends("running", "{:,.1f}".format),
        ends("kv_peak", format_percent),
        ends("prefix_hit_rate", format_percent),
        ends("num_preemptions", "{:,}".format),
    )


def engines_list(engines: Sequence[EngineLoad]) -> list[dict[str, Any]]:
    """The same as plain data, of all."""
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
