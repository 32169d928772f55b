"""Two deployments side by side, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from infercast.engines.deployment import Deployment
from infercast.forecast.compare import Comparison, Difference, compare_runs, compare_steps
from infercast.forecast.explain.breakdown import break_down
from infercast.forecast.explain.kernels import StepCost
from infercast.forecast.explain.watched import Watched
from infercast.forecast.fleet import FleetForecast
from infercast.forecast.serving import Forecast
from infercast.report.breakdown import breakdown_dict, render_breakdown
from infercast.report.fleet import fleet_dict
from infercast.report.kernels import step_dict
from infercast.report.layout import facts, grid, section, styled
from infercast.report.serving import deployment_facts, forecast_dict
from infercast.units import MICRO, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 10


def render_runs(runs: tuple[Watched, Watched], changes: str, *, breakdown: bool = False) -> list[RenderableType]:
    """Tables for a terminal; with ``breakdown``, where every second of each run goes, too."""
    before, after = (run.forecast for run in runs)
    workload = f"{before.workload.description}; {before.duration:,.1f} s simulated"
    return [
        section("As asked for", facts([*deployment_facts(before.deployment), ("workload", workload)])),
        section(f"With {changes}", facts(_differing(before.deployment, after.deployment))),
        section("Side by side", _headline(before, after)),
        *(
            section(f"What explains the mean {name}", _differences(comparison))
            for name, comparison in compare_runs(*runs).items()
        ),
        *(_breakdowns(runs, changes) if breakdown else ()),
    ]


def _breakdowns(runs: tuple[Watched, Watched], changes: str) -> Iterator[RenderableType]:
    for title, run in zip(("As asked for", f"With {changes}"), runs, strict=True):
        yield styled(title, style="bold")
        yield from render_breakdown(run.forecast.workload, break_down(run))


def render_steps(
    before: tuple[Deployment, StepCost], after: tuple[Deployment, StepCost], changes: str, question: str
) -> list[RenderableType]:
    """Tables for a terminal."""
    return [
        section("As asked for", facts([*deployment_facts(before[0]), ("step", question)])),
        section(f"With {changes}", facts(_differing(before[0], after[0]))),
        section("What explains it, in time of the step", _differences(compare_steps(before[1], after[1]))),
    ]


def runs_dict(runs: tuple[Watched, Watched], changes: str, *, breakdown: bool = False) -> dict[str, Any]:
    """The same as plain data."""
    before, after = (_run_dict(run, breakdown) for run in runs)
    return {
        "what_if": changes,
        "before": before,
        "after": after,
        "explained": {name.lower(): comparison_list(comparison) for name, comparison in compare_runs(*runs).items()},
    }


def _run_dict(run: Watched, breakdown: bool) -> dict[str, Any]:
    forecast = run.forecast
    facts_of_run = fleet_dict(forecast) if isinstance(forecast, FleetForecast) else forecast_dict(forecast)
    return {**facts_of_run, **({"breakdown": breakdown_dict(break_down(run))} if breakdown else {})}


def steps_dict(before: tuple[Deployment, StepCost], after: tuple[Deployment, StepCost], changes: str) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "what_if": changes,
        "before": step_dict(*before),
        "after": step_dict(*after),
        "step_time": comparison_list(compare_steps(before[1], after[1])),
    }


def comparison_list(comparison: Comparison) -> list[dict[str, Any]]:
    """Kernels and the host, as plain data."""
    return [
        {
            "kernel": each.name,
            "family": each.family,
            "before_us": each.before / MICRO,
            "after_us": each.after / MICRO,
            "explains": _explains(each, comparison),
        }
        for each in comparison.differences
    ]


def _explains(each: Difference, comparison: Comparison) -> float:
    """Its share of the whole difference; negative where it went the other way."""
    whole = comparison.after - comparison.before
    return each.change / whole if whole else 0.0


def _differing(before: Deployment, after: Deployment) -> list[tuple[str, str]]:
    """What is known of the second that is not known of the first."""
    known = {*deployment_facts(before)}
    return [fact for fact in deployment_facts(after) if fact not in known] or [("", "nothing that shows here")]


def _headline(before: Forecast | FleetForecast, after: Forecast | FleetForecast) -> RenderableType:
    rows = []
    for name, one, other in (
        ("TTFT", before.ttft, after.ttft),
        ("TPOT", before.tpot, after.tpot),
        ("end to end", before.end_to_end, after.end_to_end),
    ):
        if one is not None and other is not None:
            for which in ("mean", "p50", "p95", "p99"):
                first, second = getattr(one, which), getattr(other, which)
                cells = format_seconds(first), format_seconds(second), _signed(second / first - 1.0)
                rows.append((f"{name} {which}", *cells))
    rates = before.output_tokens_per_second, after.output_tokens_per_second
    rows.append(("output tokens/s", f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", _signed(rates[1] / rates[0] - 1.0)))
    gpus = before.deployment.layout.gpus, after.deployment.layout.gpus
    if gpus != (1, 1):
        each = [rate / count for rate, count in zip(rates, gpus, strict=True)]
        rows.append(("output tokens/s per GPU", f"{each[0]:,.0f}", f"{each[1]:,.0f}", _signed(each[1] / each[0] - 1.0)))
    levels = before.kv_usage.peak, after.kv_usage.peak
    rows.append(("KV cache use at most", format_percent(levels[0]), format_percent(levels[1]), ""))
    rows.append(("prices", _basis(before), _basis(after), ""))
    return grid(("", "as asked", "what if", "change"), rows)


def _basis(forecast: Forecast | FleetForecast) -> str:
    """What prices rest on; a bound says that it is one, so that nobody takes it for the faster."""
    return f"{forecast.source}{': lower bound' if forecast.kind == 'bound' else ''}"


def _differences(comparison: Comparison) -> RenderableType:
    rows = [_row(each.name, each, comparison) for each in comparison.differences[:SHOWN]]
    rest = comparison.differences[SHOWN:]
    if rest:
        others = Difference("others", "", sum(each.before for each in rest), sum(each.after for each in rest))
        rows.append(_row(f"{len(rest)} others", others, comparison))
    rows.append(_row("together", Difference("", "", comparison.before, comparison.after), comparison))
    return grid(("kernel", "family", "as asked", "what if", "change", "explains"), rows, text_columns=2)


def _row(name: str, each: Difference, comparison: Comparison) -> tuple[str, ...]:
    first, second = (format_seconds(seconds) if seconds > 0 else "-" for seconds in (each.before, each.after))
    change = _signed(each.after / each.before - 1.0) if each.before > 0 and each.after > 0 else "-"
    return name, each.family, first, second, change, format_percent(_explains(each, comparison))


def _signed(change: float) -> str:
    return f"{100 * change:+.1f} %"
