"""The Pareto front: those that no other beats in cost (or energy), TTFT and TPOT together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.result import Row
from infercast.forecast.plan.space import Option

Point = tuple[float, ...]
Each = TypeVar("Each")

SURE = 1.1
"""A headroom by the quick estimate at which a candidate is simulated for its place on the front."""
MOST = 5
"""Candidates that are simulated for it."""
SAME = 1.02
"""Times that differ by less are the same."""
ALIKE = 0.05
"""Two points whose times differ by less are one."""


def front_of(rows: Sequence[Row], winner: Row | None = None, spent: Callable[[Row], float] | None = None) -> list[Row]:
    """Of rows that keep the SLO, the cheapest first; the winner is among them, and of those like it no other.

    ``spent`` is what counts instead of money, such as energy.
    """

    def point(row: Row) -> Point:
        figures = row.figures
        assert figures is not None
        first = _money(row.cost, row.gpus) if spent is None else spent(row)
        return first, figures.ttft.p50, 0.0 if figures.tpot is None else figures.tpot.p50

    ordered = sorted(rows, key=lambda row: (point(row)[0], row is not winner, point(row), str(row.candidate)))
    return _undominated(ordered, point, SAME)


def likely_front(options: Sequence[Option], most: float) -> list[Candidate]:
    """A few candidates that cost up to ``most`` and are on the front by the quick estimate, from end to end."""

    def point(option: Option) -> Point:
        return _money(option.cost, option.candidate.gpus), option.guess.ttft, option.guess.tpot

    sure = [each for each in options if each.guess.headroom >= SURE and (each.cost is None or each.cost <= most)]
    found = _undominated(sorted(sure, key=lambda option: (point(option), str(option.candidate))), point)
    thinned = [found[0]] if found else []
    for option in found[1:]:
        if all(_differ(point(option), point(each)) for each in thinned):
            thinned.append(option)
    step = max(1.0, (len(thinned) - 1) / max(1, MOST - 1))
    chosen = {round(number * step) for number in range(min(MOST, len(thinned)))}
    return [thinned[number].candidate for number in sorted(chosen) if number < len(thinned)]


def _undominated(ordered: Sequence[Each], point: Callable[[Each], Point], same: float = 1.0) -> list[Each]:
    """Those that none before them, which are no dearer, equals or beats in everything, to within a factor."""
    kept: list[tuple[Point, Each]] = []
    for each in ordered:
        mine = point(each)
        if not any(all(theirs <= own * same for theirs, own in zip(other, mine, strict=True)) for other, _ in kept):
            kept.append((mine, each))
    return [each for _, each in kept]


def _differ(one: Point, other: Point) -> bool:
    return any(abs(left - right) > ALIKE * max(left, right) for left, right in zip(one[1:], other[1:], strict=True))


def _money(cost: float | None, gpus: int) -> float:
    """What a candidate costs, in GPUs where no price is known."""
    return float(gpus) if cost is None else min(cost, inf)
