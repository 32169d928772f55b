"""What moved between two sets of predictions, as a table that fits a screen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from values import Value

TOLERANCE = 1e-9
"""Relative: other processors and other versions of numpy round differently."""
MOST_ROWS = 40


@dataclass(frozen=True)
class Move:
    """One prediction that is not what it was; None where it is new or gone."""

    name: str
    was: Value | None
    now: Value | None

    @property
    def group(self) -> str:
        """The first word of its name."""
        return self.name.split()[0]

    @property
    def percent(self) -> float:
        """By how much a number moved; infinite where one of the two is none."""
        if isinstance(self.was, str | None) or isinstance(self.now, str | None) or self.was == 0:
            return math.inf
        return 100.0 * (self.now / self.was - 1.0)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """For people."""
        change = f"{self.percent:+.3g} %" if math.isfinite(self.percent) else "changed"
        change = "added" if self.was is None else "removed" if self.now is None else change
        return self.name, _short(self.was), _short(self.now), change


def is_same(was: Value, now: Value) -> bool:
    """Whole numbers and words exactly, others up to rounding."""
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(was) is type(now) and was == now


def moves_between(was: Mapping[str, Value], now: Mapping[str, Value]) -> list[Move]:
    """All that moved, was added or removed, the largest first."""
    moved = [
        Move(name, was.get(name), now.get(name))
        for name in was.keys() | now.keys()
        if name not in was or name not in now or not is_same(was[name], now[name])
    ]
    return sorted(moved, key=lambda move: (-abs(move.percent), move.name))


def describe(moved: list[Move], known: Mapping[str, Value], most: int = MOST_ROWS) -> str:
    """A table of the largest moves, and a line for each group."""
    if not moved:
        return f"all {len(known)} predictions are what they were"
    rows = [("prediction", "was", "is", "change"), *(move.row for move in moved[:most])]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {was:>{widths[1]}}  {now:>{widths[2]}}  {change:>{widths[3]}}"
        for name, was, now, change in rows
    ]
    if len(moved) > most:
        lines.append(f"... and {len(moved) - most} smaller moves")
    groups = sorted({move.group for move in moved} | {name.split()[0] for name in known})
    return "\n".join([*lines, "", *(_summary(group, moved, known) for group in groups)])


def _summary(group: str, moved: list[Move], known: Mapping[str, Value]) -> str:
    """How much of a group moved, and how far."""
    own = [move for move in moved if move.group == group]
    total = sum(name.split()[0] == group for name in known)
    sizes = sorted(abs(move.percent) for move in own if math.isfinite(move.percent))
    text = f"{group}: {len(own)} of {total} moved"
    if sizes:
        text += f", numbers by {sizes[len(sizes) // 2]:.3g} % in the median and {sizes[-1]:.3g} % at most"
    others = [move.row[3] for move in own if not math.isfinite(move.percent)]
    counts = [f"{others.count(kind)} {kind}" for kind in ("added", "removed", "changed") if kind in others]
    return ", ".join([text, *counts])


def _short(value: Value | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
