"""A simulated run on a prefill pool and a decode pool, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.engines.deployment import Deployment
from infercast.forecast.disaggregate import DisaggregatedForecast
from infercast.forecast.intervals.intervals import Intervals
from infercast.forecast.latency import Percentiles
from infercast.forecast.saturation import OVERLOADED
from infercast.report.fleet import engine_table, engines_list, latency_table, workload_words
from infercast.report.intervals import interval_fields, render_intervals
from infercast.report.layout import facts, grid, section
from infercast.report.serving import deployment_dict, deployment_facts, milliseconds, workload_dict
from infercast.report.state import latency_title, overload, state_fields, state_rows
from infercast.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_disaggregated(forecast: DisaggregatedForecast, intervals: Intervals | None = None) -> list[RenderableType]:
    """Tables for a terminal: both pools, and where the time to the first token goes."""
    tokens = forecast.output_tokens_per_second
    load = [
        *state_rows(forecast.state, forecast.steady),
        ("throughput", f"{tokens:,.0f} output tokens/s, {tokens / forecast.gpus:,.0f} per GPU"),
        ("", f"{forecast.requests_per_second:,.2f} requests/s"),
        ("link", f"{forecast.link}, {format_percent(forecast.link_use)} of the run in use by its busiest sender"),
        ("workload", workload_words(forecast.workload, forecast.duration)),
    ]
    return [
        section("Prefill pool", facts(_pool_facts(forecast.prefill, forecast.instances[0]))),
        section("Decode pool", facts(_pool_facts(forecast.decode, forecast.instances[1]))),
        *([overload(forecast.state)] if forecast.state.word == OVERLOADED else []),
        section(latency_title(forecast.steady_only), latency_table(_latencies(forecast))),
        *([] if intervals is None else [render_intervals(intervals)]),
        section("Load", facts(load)),
        section("Engines of the prefill pool", engine_table(forecast.prefill_engines)),
        section("Engines of the decode pool", engine_table(forecast.decode_engines)),
    ]


def disaggregated_dict(forecast: DisaggregatedForecast, intervals: Intervals | None = None) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "prefill": {
            "deployment": deployment_dict(forecast.prefill),
            "instances": forecast.instances[0],
            "prompt_ms": milliseconds(forecast.prompt),
            "engines": engines_list(forecast.prefill_engines),
        },
        "decode": {
            "deployment": deployment_dict(forecast.decode),
            "instances": forecast.instances[1],
            "first_step_ms": milliseconds(forecast.first_step),
            "engines": engines_list(forecast.decode_engines),
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
        **state_fields(forecast.state, forecast.steady, forecast.steady_only),
        **interval_fields(intervals),
    }


def _latencies(forecast: DisaggregatedForecast) -> list[tuple[str, Percentiles | None]]:
    """TTFT with its parts, and the others."""
    return [
        ("time to first token (TTFT)", forecast.ttft),
        ("  prompt on the prefill pool", forecast.prompt),
        ("  waiting for the link", forecast.transfer_wait),
        ("  on the link", forecast.transfer),
        ("  to the first token", forecast.first_step),
        ("time per output token (TPOT)", forecast.tpot),
        ("inter-token latency", forecast.inter_token),
        ("end to end", forecast.end_to_end),
    ]


def render_pools_compared(
    forecasts: tuple[DisaggregatedForecast, DisaggregatedForecast], changes: str
) -> list[RenderableType]:
    """Two runs side by side: means and 99th percentiles."""
    before, after = forecasts
    rows = []
    for (name, one), (_, other) in zip(_latencies(before), _latencies(after), strict=True):
        if one is not None and other is not None:
            for which in ("mean", "p99"):
                first, second = getattr(one, which), getattr(other, which)
                change = f"{100 * (second / first - 1):+.1f} %" if first > 0 else "-"
                rows.append((f"{name} {which}", format_seconds(first), format_seconds(second), change))
    rates = before.output_tokens_per_second, after.output_tokens_per_second
    rows.append(
        ("output tokens/s", f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{100 * (rates[1] / rates[0] - 1):+.1f} %")
    )
    known = _all_facts(before)
    return [
        section("As asked for", facts([*known, ("workload", workload_words(before.workload, before.duration))])),
        section(f"With {changes}", facts([fact for fact in _all_facts(after) if fact not in known])),
        section("Side by side", grid(("", "as asked", "what if", "change"), rows)),
    ]


def pools_compared_dict(forecasts: tuple[DisaggregatedForecast, DisaggregatedForecast], changes: str) -> dict[str, Any]:
    """The same as plain data."""
    before, after = map(disaggregated_dict, forecasts)
    return {"what_if": changes, "before": before, "after": after}


def _all_facts(forecast: DisaggregatedForecast) -> list[tuple[str, str]]:
    pools = zip(("prefill", "decode"), (forecast.prefill, forecast.decode), forecast.instances, strict=True)
    return [(f"{pool} {name}", value) for pool, each, count in pools for name, value in _pool_facts(each, count)]


def _pool_facts(deployment: Deployment, instances: int) -> list[tuple[str, str]]:
    """What both pools may differ in."""
    rows = [row for row in deployment_facts(deployment) if row[0] not in ("host", "note")]
    return [("engines", f"{instances:,} of these"), *rows] if instances > 1 else rows
