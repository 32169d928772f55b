"""Why, and what would change it: the sentences of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from infercast.engines.registry import engine_named
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Row, Stage, format_share
from infercast.hardware import load_gpu
from infercast.units import format_gpus, format_joules, format_seconds, format_watts

NEARLY = 0.9
"""A rate beyond so much of what can be served ends there, and not at a limit."""
SURE = 0.9
"""Odds below which it is said what better ones cost."""


def named(row: Row) -> str:
    """A candidate as part of a sentence."""
    return str(row.candidate)


def money(cost: float | None) -> str:
    """An hour of it."""
    return "an unknown price" if cost is None else f"${cost:,.2f} per hour"


def why_lost(question: Question, best: Row, other: Row | None) -> str:
    """Why the runner-up is not the winner."""
    if other is None:
        return "Nothing else keeps the SLO within these limits."
    goal, figures, theirs = question.goal, best.figures, other.figures
    assert figures is not None
    assert theirs is not None
    if not other.holds:
        return f"{named(other)} lost because it {other.verdict}."
    mine, its = goal.value(best), goal.value(other)
    room = f"its headroom is {theirs.headroom:.2f}, the winner's {figures.headroom:.2f}"
    if goal.name == "cost":
        more = f"it costs {money(other.cost)}, {format_share(its / mine - 1.0)} more" if its > mine else ""
    elif goal.name == "gpus":
        more = f"it needs {format_gpus(other.gpus)}, the winner {best.gpus}" if its > mine else ""
    elif goal.name == "energy":
        each = f"{format_joules(its)} per output token"
        more = f"it takes {each}, {format_share(its / mine - 1.0)} more" if its > mine else ""
    elif goal.finds_rate:
        more = f"it serves {-its:.3g} requests/s, the winner {-mine:.3g}" if its > mine else ""
    else:
        more = f"it answers in {format_seconds(its)}, the winner in {format_seconds(mine)}" if its > mine else ""
    return f"{named(other)} lost because {more or f'it takes as much and {room}'}{f'; {room}' if more else ''}."


def changes_of(question: Question, best: Row, held: Sequence[Row], most: float | None) -> tuple[str, ...]:
    """What would change the decision."""
    found = []
    if most is not None and not question.goal.finds_rate:
        capacity = None if best.figures is None else best.figures.capacity
        ends = "it no longer keeps the SLO"
        if capacity is not None and most > NEARLY * capacity:
            ends = "more arrives than it can serve, whatever headroom its latencies have"
        found.append(f"Above {most:.3g} requests/s {ends} ({question.rate:.3g} are asked for).")
    figures = best.figures
    if figures is not None and figures.headroom > 1.0:
        limit = next(limit for limit in question.slo.limits if limit.name == figures.tightest)
        found.append(f"It keeps {figures.tightest} down to {format_seconds(limit.seconds / figures.headroom)}.")
    if question.objective == "cost" and best.cost:
        found += _surer(best, held)
        mine = {pool.gpu for pool in best.candidate.pools}
        others = dict[str, Row]()
        for row in sorted(held, key=lambda each: (each.cost or 0.0, -(each.headroom or 0.0), str(each.candidate))):
            gpus = {pool.gpu for pool in row.candidate.pools}
            if not gpus & mine and len(gpus) == 1:
                others.setdefault(gpus.pop(), row)
        for gpu, row in others.items():
            assert row.cost is not None
            found.append(
                f"At a {format_share(1.0 - best.cost / row.cost)} lower price of {gpu}, {named(row)} would cost less."
                if row.cost > best.cost
                else f"{named(row)} costs as much."
            )
    return tuple(found)


def _surer(best: Row, held: Sequence[Row]) -> list[str]:
    """What more money buys, where the winner is not sure to keep the SLO."""
    odds = best.figures.odds if best.figures is not None else None
    if odds is None or odds >= SURE or not best.cost:
        return []
    sure = [row for row in held if row.cost and row.figures is not None and (row.figures.odds or 0.0) >= SURE]
    if not sure:
        return []
    row = min(sure, key=lambda each: (each.cost or 0.0, str(each.candidate)))
    assert row.figures is not None
    assert row.cost is not None
    more = f"for {format_share(row.cost / best.cost - 1.0)} more" if row.cost > best.cost else "for the same money"
    return [f"Odds are {100 * odds:.0f} %; {more} {named(row)} has {100 * (row.figures.odds or 0.0):.0f} %."]


def why_none(question: Question, rows: Sequence[Row]) -> str:
    """Which constraint fails where nothing keeps the SLO."""
    tried = [row for row in rows if row.stage is not Stage.REFUSED]
    if not tried:
        reason = rows[0].reason if rows else "no layout is allowed"
        return f"Nothing fits on up to {format_gpus(question.max_gpus)}: {reason}"
    seen = [row for row in tried if row.figures is not None]
    within = format_gpus(question.max_gpus) + ("" if question.budget is None else f" and {money(question.budget)}")
    within += "" if question.power_budget is None else f" and {format_watts(question.power_budget)}"
    if seen:
        best = max(seen, key=lambda row: row.headroom or 0.0)
        assert best.figures is not None
        if best.figures.beyond and best.figures.headroom > 1.0:
            return (
                f"No candidate keeps {question.slo} at {question.rate:.3g} requests/s within {within}: {named(best)} "
                f"would, but {best.figures.beyond}."
            )
        return (
            f"No candidate keeps {question.slo} at {question.rate:.3g} requests/s within {within}: the closest, "
            f"{named(best)}, {best.verdict}."
        )
    ruled_out = [row for row in tried if row.stage is Stage.BOUND]
    if len(ruled_out) == len(tried):
        best = max(ruled_out, key=lambda row: row.headroom or 0.0)
        return f"None of these GPUs can do it within {within}; of the best, {best.candidate.gpu}: {best.reason}."
    return f"No candidate keeps up with {question.rate:.3g} requests/s within {within}."


def notes_of(question: Question, rows: Sequence[Row]) -> tuple[str, ...]:
    """What to know before acting on it."""
    name = engine_named(question.engines[0]).bounds[2]
    notes = [f"{name} is {question.model_len:,}; the longest request has {question.longest:,} tokens"]
    if len(question.quantizations) > 1 or question.quantizations[0] is not None:
        notes.append("quantised weights change answers: check quality before you choose them")
    if any(row.figures is not None and row.figures.source in ("typical", "roofline") for row in rows):
        notes.append("some GPUs were never measured: their numbers are rough, as their wide intervals say")
    if any(row.figures is not None and row.figures.source == "published" for row in rows):
        notes.append("some GPUs were not measured here: their numbers rest on published kernels and runs")
    notes += [note for name in question.gpus for note in load_gpu(name).announced_notes]
    if question.network is not None and question.max_gpus > 8:
        notes.append(f"engines that span nodes are joined by {question.network}")
    return tuple(notes)
