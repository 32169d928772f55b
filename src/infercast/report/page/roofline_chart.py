"""The kernels of average steps under the roof of their GPU, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.rooflines import RooflinePoint, StepRoofline
from infercast.report.page.canvas import HALF, draw, room, wrapped
from infercast.report.page.charts import COLOURS, OTHERS
from infercast.report.page.labels import LETTER, LINE, POINTS, Box, line_boxes, put_names, text_box
from infercast.report.page.svg import MUTED, PAPER, Tips
from infercast.units import TERA, format_percent, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED = 6
"""Kernels of a roofline that are named; the others tell their names when they are pointed at."""
LEFT, RIGHT = 0.3, 3e4
"""Operations per byte at the ends of a chart."""
PHASE_TITLES = {"prefill": "average step with prompt tokens", "decode": "average step of decoding"}


def roofline_chart(rooflines: Sequence[tuple[str, StepRoofline]]) -> str:
    """Kernels of average steps, each with its title, under the roof of the GPU."""
    charts = []
    for number, (title, roofline) in enumerate(rooflines):

        def paint(figure: Any, tips: Tips, title: str = title, roofline: StepRoofline = roofline) -> None:
            words = wrapped(figure, title, beside=0.8)
            axes = figure.subplots(gridspec_kw=room(figure, left=0.7, top=0.3 + 0.16 * words.count("\n")))
            axes.set_title(words)
            _roofline(axes, roofline, tips)

        name = "roofline" if number == 0 else f"roofline-{number}"
        words = f"What kernels reach against what the GPU allows: {title}"
        charts.append(draw(name, words, 3.9, paint, width=HALF))
    return f'<div class="pair">{"".join(charts)}</div>'


def _roofline(axes: Axes, roofline: StepRoofline, tips: Tips) -> None:
    low, high = LEFT, RIGHT
    lowest = min(point.flops_per_second for point in roofline.points)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="operations per byte", ylabel="TFLOP/s", xlim=(low, high))
    axes.set_ylim(0.5 * lowest / TERA, 2.5 * max(roofline.peaks.values()) / TERA)
    obstacles = _roofs(axes, roofline)
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
    marks = [(point.name, _mark_box(axes, point)) for point in roofline.points]
    put_names(axes, marks[:LABELLED], [*obstacles, *(box for _, box in marks[LABELLED:])])


def _roofs(axes: Axes, roofline: StepRoofline) -> list[Box]:
    """The roof of each number format in use and that of memory, with their names; returns what these take."""
    used = {point.dtype for point in roofline.points if point.share >= 0.05}
    peaks = {dtype: peak for dtype, peak in roofline.peaks.items() if dtype in used}
    pixels = axes.transData.transform
    taken: list[Box] = []
    for dtype, peak in peaks.items():
        ridge = peak / roofline.bandwidth
        corners = [(x, min(peak, x * roofline.bandwidth) / TERA) for x in (LEFT, ridge, RIGHT)]
        axes.plot(*zip(*corners, strict=True), color=MUTED, lw=1.2)
        for start, end in pairwise(corners):
            taken += line_boxes(tuple(pixels(start)), tuple(pixels(end)))
        words = f"{dtype}: {format_rate(peak, 'FLOP/s')}"
        axes.annotate(words, corners[-1], (-2, 3), textcoords="offset points", ha="right", color=MUTED, fontsize=8.5)
        right, height = pixels(corners[-1])
        taken.append(text_box(right - LETTER * len(words) - 3, height + 12, words))
    taken.append(_memory_name(axes, roofline, f"memory: {format_rate(roofline.bandwidth, 'B/s')}"))
    return taken


def _memory_name(axes: Axes, roofline: StepRoofline, words: str) -> Box:
    """The name of the slope stands at the left, just above where the slope is at the end of the name."""
    pixels, values = axes.transData.transform, axes.transData.inverted().transform
    left = float(pixels((LEFT, 1.0))[0]) + 5
    end = float(values((left + LETTER * len(words), 0.0))[0])
    height = float(pixels((end, end * roofline.bandwidth / TERA))[1]) + LINE / 2
    where = tuple(values((left, height)))
    axes.annotate(words, where, (0, 0), textcoords="offset points", va="center", color=MUTED, fontsize=8.5)
    return text_box(left, height, words)


def _mark_size(point: RooflinePoint) -> float:
    """Points across: area by share."""
    return 5 + 22 * sqrt(point.share)


def _mark_box(axes: Axes, point: RooflinePoint) -> Box:
    x, y = axes.transData.transform((max(point.intensity, LEFT), point.flops_per_second / TERA))
    half = _mark_size(point) / POINTS / 2
    return Box(float(x - half), float(y - half), float(x + half), float(y + half))
