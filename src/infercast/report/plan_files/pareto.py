"""What a plan was chosen from, as one picture: money or energy against TTFT and TPOT, drawn without any library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from infercast.forecast.plan.result import Plan, Row
from infercast.units import format_seconds

WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP, BELOW = 960, 420, 70, 64, 370, 90, 60
DEEP = HEIGHT - TOP - BELOW
STYLE = """
text { font: 12px sans-serif; fill: #333 } .title { font-size: 15px; font-weight: bold } .small { font-size: 11px }
.axis { stroke: #888; fill: none } .grid { stroke: #ddd } .other { fill: #b8c4d0 } .front { fill: #1f6fb2 }
.line { stroke: #1f6fb2; fill: none; stroke-width: 1.5 } .limit { stroke: #c0392b; stroke-dasharray: 5 4 }
.winner { fill: none; stroke: #c0392b; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) { svg { background: #16191d } text { fill: #ddd } .grid { stroke: #333 }
.other { fill: #51606e } .front { fill: #6db3ee } .line { stroke: #6db3ee } }
"""
TICKS = (1.0, 2.0, 5.0)
MOST_NAMED = 6
"""Points beside which their names have room."""


class Axis(NamedTuple):
    """A logarithmic axis, from pixel ``begin`` to pixel ``end``."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.begin + share * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values on it."""
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        digits = TICKS if self.high > 10 * self.low else range(1, 10)
        found = [digit * 10.0**power for power in powers for digit in digits]
        return [tick for tick in found if self.low <= tick <= self.high]


def pareto_svg(plan: Plan) -> str | None:
    """``pareto.svg``; None where nothing was simulated."""
    rows = [row for row in plan.rows if row.figures is not None and row.figures.state != "overloaded"]
    if not rows:
        return None
    across, label = _across(plan, rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Candidates of a plan: {label} against TTFT and TPOT">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="24">{escape(_title(plan))}</text>',
        f'<text class="small" x="{LEFT}" y="42">{escape(_legend(plan, rows))}</text>',
    ]
    for number, name in enumerate(("ttft", "tpot")):
        parts += _panel(plan, rows, across, label, name, LEFT + number * (PANEL + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(plan: Plan, rows: Sequence[Row]) -> tuple[Callable[[Row], float], str]:
    """What is spent: energy where that is the objective, else money, or GPUs where a price is not known."""
    goal = plan.question.goal
    if goal.name == "energy" and all(row.figures is not None and row.figures.drawn is not None for row in rows):
        return goal.value, "J per output token at the wall"
    if all(row.cost is not None for row in rows):
        return (lambda row: row.cost or 0.0), "$ per hour"
    return (lambda row: float(row.gpus)), "GPUs"


def _title(plan: Plan) -> str:
    question = plan.question
    return f"{question.model}, {question.rate:.3g} requests/s, {question.slo}"


def _legend(plan: Plan, rows: Sequence[Row]) -> str:
    ring = "" if plan.winner is None else f"; ringed: {plan.winner.candidate}"
    return f"{len(rows):,} simulated candidates; blue: no other is better in all{ring}"


def _panel(
    plan: Plan, rows: Sequence[Row], across: Callable[[Row], float], label: str, name: str, left: float
) -> Iterator[str]:
    """One latency against money."""
    limits = [limit for limit in plan.question.slo.limits if limit.quantity == name]
    which = "p99" if not limits or limits[0].percentile is None else f"p{limits[0].percentile:g}"
    which = which if which in ("p50", "p90", "p95", "p99") else "p99"

    def up(row: Row) -> float | None:
        values = None if row.figures is None else getattr(row.figures, name)
        return None if values is None else float(getattr(values, which))

    points = [(across(row), height, row) for row in rows if (height := up(row))]
    if not points:
        return
    heights = [height for _, height, _ in points] + [limit.seconds for limit in limits]
    wide = Axis(*_around([each for each, _, _ in points]), left, left + PANEL)
    tall = Axis(*_around(heights), TOP + DEEP, TOP)
    yield from _frame(wide, tall, label, f"{name.upper()} {which}", left)
    for limit in limits:
        y = tall.at(limit.seconds)
        tip = f"<title>{escape(str(limit))}</title>"
        yield f'<line class="limit" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}">{tip}</line>'
    best = {row.candidate for row in plan.front}
    front = [(each, height, row) for each, height, row in points if row.candidate in best]
    for each, height, row in points:
        kind = "front" if row.candidate in best else "other"
        tip = escape(f"{row.candidate}: {label} {each:.4g}, {format_seconds(height)}")
        yield f'<circle class="{kind}" cx="{wide.at(each)}" cy="{tall.at(height)}" r="4"><title>{tip}</title></circle>'
        if kind == "front" and len(front) <= MOST_NAMED:
            name_of = escape(f"{row.candidate.replicas} x {row.candidate.layout} {row.candidate.gpu}")
            yield f'<text class="small" x="{wide.at(each) + 8}" y="{tall.at(height) - 8}">{name_of}</text>'
    if len(front) > 1:
        path = " ".join(f"{wide.at(each)},{tall.at(height)}" for each, height, _ in sorted(front, key=lambda p: p[:2]))
        yield f'<polyline class="line" points="{path}"/>'
    for each, height, row in points:
        if plan.winner is not None and row.candidate == plan.winner.candidate:
            yield f'<circle class="winner" cx="{wide.at(each)}" cy="{tall.at(height)}" r="8"/>'


def _frame(wide: Axis, tall: Axis, label: str, title: str, left: float) -> Iterator[str]:
    """Axes, their ticks and names."""
    bottom = TOP + DEEP
    for tick in tall.ticks:
        y = tall.at(tick)
        yield f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}"/>'
        yield f'<text class="small" x="{left - 6}" y="{y + 4}" text-anchor="end">{format_seconds(tick)}</text>'
    for tick in wide.ticks:
        x = wide.at(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="small" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
    yield f'<path class="axis" d="M{left} {TOP} V{bottom} H{left + PANEL}"/>'
    yield f'<text x="{left + PANEL / 2}" y="{bottom + 36}" text-anchor="middle">{label}</text>'
    yield f'<text x="{left}" y="{TOP - 6}">{title}</text>'


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with some room on either side."""
    low, high = min(values), max(values)
    return (low / 1.3, high * 1.3) if high > 1.5 * low else (low / 2.0, high * 2.0)
