"""The kernels of average steps under the roof of their GPU, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.rooflines import RooflinePoint, StepRoofline
from infercast.report.page.charts import COLOURS, HALF, OTHERS, draw
from infercast.report.page.svg import INK, MUTED, PAPER, Tips
from infercast.units import TERA, format_percent, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED = 6
"""Kernels of a roofline that are named; the others tell their names when they are pointed at."""
LINE, LETTER, AWAY, POINTS = 15.0, 6.9, 8.0, 0.72
"""Pixels of a line of text, of a letter and from a mark to its name; points in a pixel."""
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2, "relpos": (0.0, 0.5)}
"""The line from a name to its mark."""
LEFT, RIGHT = 0.3, 6e3
"""Operations per byte at the ends of a chart."""
PHASE_TITLES = {"prefill": "average step with prompt tokens", "decode": "average step of decoding"}


def roofline_chart(rooflines: Sequence[tuple[str, StepRoofline]]) -> str:
    """Kernels of average steps, each with its title, under the roof of the GPU."""
    charts = []
    for number, (title, roofline) in enumerate(rooflines):

        def paint(figure: Any, tips: Tips, title: str = title, roofline: StepRoofline = roofline) -> None:
            axes = figure.subplots(gridspec_kw={"left": 0.16, "right": 0.98, "bottom": 0.12, "top": 0.93})
            axes.set_title(title)
            _roofline(axes, roofline, tips)

        name = "roofline" if number == 0 else f"roofline-{number}"
        words = f"What kernels reach against what the GPU allows: {title}"
        charts.append(draw(name, words, 3.9, paint, HALF))
    return f'<div class="pair">{"".join(charts)}</div>'


def _roofline(axes: Axes, roofline: StepRoofline, tips: Tips) -> None:
    low, high = LEFT, RIGHT
    lowest = min(point.flops_per_second for point in roofline.points)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="operations per byte", ylabel="TFLOP/s", xlim=(low, high))
    axes.set_ylim(0.5 * lowest / TERA, 2.5 * max(roofline.peaks.values()) / TERA)
    used = {point.dtype for point in roofline.points if point.share >= 0.05}
    for dtype, peak in ((dtype, peak) for dtype, peak in roofline.peaks.items() if dtype in used):
        xs = [low, peak / roofline.bandwidth, high]
        axes.plot(xs, [min(peak, x * roofline.bandwidth) / TERA for x in xs], color=MUTED, lw=1.2)
        _say(axes, f"{dtype}: {format_rate(peak, 'FLOP/s')}", (high, peak / TERA), (-2, 3), ha="right", color=MUTED)
    slope = (8.0, 8.0 * roofline.bandwidth / TERA)
    _say(axes, f"memory: {format_rate(roofline.bandwidth, 'B/s')}", slope, (-6, 2), ha="right", color=MUTED)
    for point in roofline.points:
        (mark,) = axes.plot(
            [max(point.intensity, low)], [point.flops_per_second / TERA], "o", ms=_mark_size(point),
            color=COLOURS.get(point.family, OTHERS), alpha=0.75, mec=PAPER, mew=0.8,
        )  # fmt: skip
        reached = format_percent(point.flops_per_second / point.limit)
        rate = format_rate(point.flops_per_second, "FLOP/s")
        tips.put(mark, f"{point.name}: {format_percent(point.share)} of the step, {rate}, {reached} of the roof")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    _label_points(axes, roofline.points, LABELLED)


def _label_points(axes: Axes, points: Sequence[RooflinePoint], named: int) -> None:
    """Names beside or below their marks, each where no mark and no other name is, and led to its mark."""
    box = axes.get_window_extent()
    marks = [_mark_box(axes, point) for point in points]
    taken = list(marks)
    for point, (left, bottom, right, top) in sorted(
        zip(points[:named], marks[:named], strict=True), key=lambda pair: -pair[1][3]
    ):
        x, y = (left + right) / 2, (bottom + top) / 2
        width = LETTER * len(point.name)
        begin = min(right + AWAY, box.x1 - width)
        height = y
        while height > box.y0 + LINE and any(_meet(_name_box(begin, height, width), each) for each in taken):
            height -= 2.0
        taken.append(_name_box(begin, height, width))
        axes.annotate(
            point.name, (max(point.intensity, LEFT), point.flops_per_second / TERA), textcoords="offset points",
            xytext=(POINTS * (begin - x), POINTS * (height - y)), ha="left", va="center", color=INK, fontsize=8.5,
            arrowprops=LEADER,
        )  # fmt: skip


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in pixels."""


def _mark_size(point: RooflinePoint) -> float:
    """Points across: area by share."""
    return 5 + 22 * sqrt(point.share)


def _mark_box(axes: Axes, point: RooflinePoint) -> Box:
    x, y = axes.transData.transform((max(point.intensity, LEFT), point.flops_per_second / TERA))
    half = _mark_size(point) / POINTS / 2
    return float(x - half), float(y - half), float(x + half), float(y + half)


def _name_box(begin: float, height: float, width: float) -> Box:
    return begin, height - LINE / 2, begin + width, height + LINE / 2


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _say(
    axes: Axes, text: str, where: tuple[float, float], offset: tuple[float, float], *, ha: str, color: str
) -> None:
    axes.annotate(text, where, xytext=offset, textcoords="offset points", ha=ha, color=color, fontsize=8.5)
