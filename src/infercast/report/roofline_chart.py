"""The kernels of average steps under the roof of their GPU, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infercast.forecast.rooflines import RooflinePoint, StepRoofline
from infercast.report.charts import COLOURS, OTHERS, draw
from infercast.report.svg import INK, MUTED, PAPER, Tips
from infercast.units import TERA, format_percent, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED = 6
"""Kernels of a roofline that are named; the others tell their names when they are pointed at."""
LINE, NEAR = 15.0, 90.0
"""Pixels between two lines of text, and from which distance two names do not meet."""
PHASE_TITLES = {"prefill": "average step with prompt tokens", "decode": "average step of decoding"}


def roofline_chart(rooflines: Sequence[StepRoofline]) -> str:
    """Kernels of average steps under the roof of the GPU."""

    def paint(figure: Any, tips: Tips) -> None:
        panels = figure.subplots(
            1,
            len(rooflines),
            squeeze=False,
            sharey=True,
            gridspec_kw={"left": 0.07, "right": 0.985, "bottom": 0.13, "top": 0.92, "wspace": 0.06},
        )[0]
        for axes, roofline in zip(panels, rooflines, strict=True):
            _roofline(axes, roofline, tips)
        panels[0].set_ylabel("TFLOP/s")

    return draw("roofline", "What the kernels of average steps reach against what the GPU allows", 4.2, paint)


def _roofline(axes: Axes, roofline: StepRoofline, tips: Tips) -> None:
    low, high = 0.3, 6e3
    lowest = min(point.flops_per_second for point in roofline.points)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(title=PHASE_TITLES[roofline.phase], xlabel="operations per byte", xlim=(low, high))
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
            [max(point.intensity, low)], [point.flops_per_second / TERA], "o", ms=5 + 22 * point.share**0.5,
            color=COLOURS.get(point.family, OTHERS), alpha=0.75, mec=PAPER, mew=0.8,
        )  # fmt: skip
        reached = format_percent(point.flops_per_second / point.limit)
        rate = format_rate(point.flops_per_second, "FLOP/s")
        tips.put(mark, f"{point.name}: {format_percent(point.share)} of the step, {rate}, {reached} of the roof")
    _label_points(axes, roofline.points[:LABELLED])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def _label_points(axes: Axes, points: Sequence[RooflinePoint]) -> None:
    """Names to the right of their marks; where marks lie on each other, one below the other."""
    places = [axes.transData.transform((point.intensity, point.flops_per_second / TERA)) for point in points]
    taken: list[tuple[float, float]] = []
    for point, (x, y) in sorted(zip(points, places, strict=True), key=lambda pair: -pair[1][1]):
        top = min((below - LINE for right, below in taken if abs(right - x) < NEAR), default=y)
        height = min(float(y), top)
        taken.append((float(x), height))
        where = (point.intensity, point.flops_per_second / TERA)
        _say(axes, point.name, where, (6 + 12 * point.share**0.5, 0.72 * (height - y) - 3), ha="left", color=INK)


def _say(
    axes: Axes, text: str, where: tuple[float, float], offset: tuple[float, float], *, ha: str, color: str
) -> None:
    axes.annotate(text, where, xytext=offset, textcoords="offset points", ha=ha, color=color, fontsize=8.5)
