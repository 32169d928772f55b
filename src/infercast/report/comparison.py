"""Two runs compared: their numbers, the reasons of the difference, and the steps and kernels of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infercast.engines.base import Deployment
from infercast.forecast import compare
from infercast.forecast.explain.breakdown import break_down
from infercast.forecast.explain.step_log import Watched
from infercast.forecast.kernels import StepCost
from infercast.forecast.result import Forecast
from infercast.forecast.system import BOTH
from infercast.report.caveats import caveat_section, caveats_of
from infercast.report.deployment import deployment_facts
from infercast.report.forecast import forecast_dict, pool_facts, price_words, system_facts
from infercast.report.kernels import breakdown_dict, render_breakdown, step_dict
from infercast.report.quantities import COSTS, ENERGIES, LATENCIES, LOADS, PROMISES, RESULTS, Quantity, latencies_of
from infercast.report.terminal import Facts, Field, Grid, Printable, Section, cells, in_us, pick, styled
from infercast.units import MICRO, format_percent, format_seconds

Names = tuple[str, str]
TITLES = {"prefill": "prompts alone", "mixed": "prompts and decoding", "decode": "decoding alone"}
STEP_FIELDS: tuple[Field[compare.StepKind], ...] = (
    Field("", lambda kind: kind.name, "", TITLES.__getitem__),
    Field("", lambda kind: kind.steps, "steps", "{:,}".format),
    Field("", lambda kind: kind.share, "GPU time", format_percent),
    Field("", lambda kind: kind.tokens, "tokens", "{:,.0f}".format),
    Field("", lambda kind: kind.decoding, "decoding", "{:,.1f}".format),
    Field("", lambda kind: kind.padding, "padding", format_percent),
    Field("", lambda kind: kind.of_gaps, "between tokens", format_percent),
)
"""Tokens and decoding sequences of a step on average; shares: of GPU time, and of the time between two tokens."""
SHOWN = 10
AS_ASKED: Names = ("as asked", "what if")  # what the two runs are called
COMPARED, COMPARED_PARTS = ("mean", "p50", "p95", "p99"), ("mean", "p99")  # of latencies, and of the parts of one


def step_title(side: compare.Side) -> str:
    return f"Steps {side.place}: the GPU waits within them in {format_percent(side.host_bound)} of their time"


def family_columns(both: compare.SideBySide) -> tuple[str, ...]:
    return ("", *(side.name for side in both.sides), "change")


def family_rows(step: compare.SameStep) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (name, _seconds(one), _seconds(other), _change(one, other or None)) for name, one, other in step.families
    ]
    before, after = step.costs
    rows.append(("the step", *(_seconds(each.seconds) for each in step.costs), _change(before.seconds, after.seconds)))
    rows.append(("launched by", before.launch, after.launch, ""))
    rows.append(("tokens computed", f"{before.padded_tokens:,}", f"{after.padded_tokens:,}", ""))
    return rows


def _side_dict(side: compare.Side) -> dict[str, Any]:
    return {
        **pick(side, "name prefix_hit_rate", engine="deployment.engine.name", kv_cache_tokens="kv_tokens"),
        "host_bound_share": side.host_bound,
        "kinds": [kind._asdict() for kind in side.kinds],
    }


def _step_dict(step: compare.SameStep, number: int) -> dict[str, Any]:
    cost = step.costs[number]
    return {
        **pick(cost, "launch padded_tokens"),
        "step_us": cost.seconds / MICRO,
        "families_us": {name: seconds[number] / MICRO for name, *seconds in step.families},
    }


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds > 0 else "-"


def render_runs(
    runs: tuple[Watched, Watched], changes: str, *, names: Names = AS_ASKED, breakdown: bool = False
) -> list[Printable]:
    before, after = (run.forecast for run in runs)
    both, explained = compare.side_by_side(runs, names), compare.compare_runs(*runs)
    asked = [(f": {title[:1].lower()}{title[1:]}" if len(before.pools) > 1 else "", rows)
             for title, rows in system_facts(before)]  # fmt: skip
    return [
        *(Section(f"As asked for{which}", Facts(rows)) for which, rows in asked),
        *(
            Section(
                f"With {changes}" if one.role == BOTH else f"With {changes}: {one.role} pool",
                Facts(_differing(pool_facts(one), pool_facts(other))),
            )
            for one, other in zip(before.pools, after.pools, strict=True)
        ),
        Section("Side by side", Grid(("", *names, "change"), headline_rows(before, after))),
        Section("Why", Facts(("-", sentence) for sentence in compare.reasons(both, explained))),
        *(Section(step_title(side), Grid(*cells(STEP_FIELDS, side.kinds))) for side in both.sides),
        *(Section(f"A step of {step.title}", Grid(family_columns(both), family_rows(step))) for step in both.steps),
        *(
            Section(f"What explains the mean {name}", _differences(comparison, names))
            for name, comparison in explained.items()
        ),
        *(_breakdowns(runs, changes) if breakdown else ()),
        caveat_section(caveats_of((before, after))),
    ]


def _breakdowns(runs: tuple[Watched, Watched], changes: str) -> Iterator[Printable]:
    for title, run in zip(("As asked for", f"With {changes}"), runs, strict=True):
        yield styled(title, style="bold")
        yield from render_breakdown(break_down(run))


def render_steps(
    before: tuple[Deployment, StepCost], after: tuple[Deployment, StepCost], changes: str, question: str
) -> list[Printable]:
    return [
        Section("As asked for", Facts([*deployment_facts(before[0]), ("step", question)])),
        Section(f"With {changes}", Facts(_differing(deployment_facts(before[0]), deployment_facts(after[0])))),
        Section("What explains it, in time of the step", _differences(compare.compare_steps(before[1], after[1]))),
    ]


def runs_dict(
    runs: tuple[Watched, Watched], changes: str, *, names: Names = AS_ASKED, breakdown: bool = False
) -> dict[str, Any]:
    before, after = (forecast_dict(run.forecast) for run in runs)
    if breakdown:
        before["breakdown"], after["breakdown"] = (breakdown_dict(break_down(run)) for run in runs)
    both, explained = compare.side_by_side(runs, names), compare.compare_runs(*runs)
    return {
        "what_if": changes, "before": before, "after": after, "reasons": compare.reasons(both, explained),
        "steps": [_side_dict(side) for side in both.sides],
        "same_steps": [
            {"step": step.title, "before": _step_dict(step, 0), "after": _step_dict(step, 1)} for step in both.steps
        ],
        "explained": {name.lower(): comparison_list(comparison) for name, comparison in explained.items()},
    }  # fmt: skip


def steps_dict(before: tuple[Deployment, StepCost], after: tuple[Deployment, StepCost], changes: str) -> dict[str, Any]:
    return {
        "what_if": changes, "before": step_dict(*before), "after": step_dict(*after),
        "step_time": comparison_list(compare.compare_steps(before[1], after[1])),
    }  # fmt: skip


def comparison_list(comparison: compare.Comparison) -> list[dict[str, Any]]:
    return [
        {
            "kernel": each.name, "family": each.family, "before_us": in_us(each.before), "after_us": in_us(each.after),
            "explains": _explains(each, comparison),
        }
        for each in comparison.differences
    ]  # fmt: skip


def _explains(each: compare.Difference, comparison: compare.Comparison) -> float:
    """Its share of the whole difference; negative where it went the other way."""
    whole = comparison.after - comparison.before
    return each.change / whole if whole else 0.0


def _differing(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [fact for fact in after if fact not in before] or [("", "nothing that shows here")]


def headline_rows(before: Forecast, after: Forecast) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    others = {latency: values for latency, values, _ in latencies_of(after)}
    for latency, one, _ in latencies_of(before):
        other = others.get(latency)
        if one is not None and other is not None:
            for which in COMPARED if latency in LATENCIES else COMPARED_PARTS:
                pair = getattr(one, which), getattr(other, which)
                rows.append((f"{latency.short} {which}", *map(format_seconds, pair), _change(*pair)))
    quantities: tuple[Quantity[Forecast], ...] = (*RESULTS, *PROMISES, *COSTS, *ENERGIES, *LOADS)
    for quantity in quantities:
        if quantity.is_shown(before) or quantity.is_shown(after):
            (name, first), (_, second) = quantity.compared(before), quantity.compared(after)
            change = _change(first, second)
            if quantity.in_points and first is not None and second is not None:
                change = f"{100 * (second - first):+.1f} points"
            rows.append((name, quantity.written(first), quantity.written(second), change))
    tokens = [forecast.pools[-1].deployment.memory.num_tokens for forecast in (before, after)]
    rows.append(("KV cache tokens", *(f"{each:,}" for each in tokens), _change(*tokens)))
    rows.append(("price by", price_words(before), price_words(after), ""))
    sources = (f"{each.source}{': lower bound' if each.kind == 'bound' else ''}" for each in (before, after))
    return [*rows, ("estimates", *sources, "")]


def _differences(comparison: compare.Comparison, names: Names = AS_ASKED) -> Printable:
    rows = [_row(each.name, each, comparison) for each in comparison.differences[:SHOWN]]
    rest = comparison.differences[SHOWN:]
    if rest:
        others = compare.Difference("others", "", sum(each.before for each in rest), sum(each.after for each in rest))
        rows.append(_row(f"{len(rest)} others", others, comparison))
    rows.append(_row("together", compare.Difference("", "", comparison.before, comparison.after), comparison))
    return Grid(("kernel", "family", *names, "change", "explains"), rows, text_columns=2)


def _row(name: str, each: compare.Difference, comparison: compare.Comparison) -> tuple[str, ...]:
    change = _change(each.before, each.after or None)
    explains = format_percent(_explains(each, comparison))
    return name, each.family, _seconds(each.before), _seconds(each.after), change, explains


def _change(before: float | None, after: float | None) -> str:
    return f"{100 * (after / before - 1.0):+.1f} %" if before and after is not None else "-"
