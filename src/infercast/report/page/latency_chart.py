"""How many requests had which latency, with percentiles and their intervals above, drawn by matplotlib."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.overview import Histogram, Overview
from infercast.forecast.intervals.intervals import Band
from infercast.forecast.latency import Percentiles
from infercast.report.intervals import format_interval
from infercast.report.page.canvas import HALF, draw, room, round_ticks
from infercast.report.page.svg import INK, MUTED, PAPER, SERIES, Tips
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = ("p50", "p90", "p95", "p99")
HEIGHT, STRIP = 3.3, 0.8
"""Inches of a chart, and of the strip with percentiles in it."""


def latency_chart(overview: Overview) -> str:
    """Histograms of TTFT and TPOT with their percentiles and the intervals of these."""
    forecast, intervals = overview.forecast, overview.intervals
    charts = [_histogram("latency", "time to first token", overview.ttft, forecast.ttft, intervals.ttft, SERIES[0])]
    if overview.tpot is not None and forecast.tpot is not None and intervals.tpot is not None:
        title = "time per output token"
        charts.append(_histogram("latency-tpot", title, overview.tpot, forecast.tpot, intervals.tpot, SERIES[1]))
    return f'<div class="pair">{"".join(charts)}</div>'


def _histogram(name: str, title: str, histogram: Histogram, values: Percentiles, band: Band, colour: str) -> str:
    edges = [edge / MILLI for edge in histogram.edges]
    low = min(edges[0], *(getattr(band.low, each) / MILLI for each in PERCENTILES))
    high = max(edges[-1], *(getattr(band.high, each) / MILLI for each in PERCENTILES))

    def paint(figure: Any, tips: Tips) -> None:
        shares = [STRIP, HEIGHT - STRIP - 0.9]
        around = room(figure, left=0.95, bottom=0.48, top=0.34, hspace=0.06)
        strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=shares, gridspec_kw=around)
        axes.set_xscale("log")
        widths = [right - left for left, right in pairwise(edges)]
        bars = axes.bar(edges[:-1], histogram.counts, widths, align="edge")
        for bar, count, (left, right) in zip(bars, histogram.counts, pairwise(histogram.edges), strict=True):
            bar.set(color=colour, edgecolor=PAPER, linewidth=0.5)
            tips.put(bar, f"{count:,} requests from {format_seconds(left)} to {format_seconds(right)}")
        _percentiles(strip, axes, values, band, tips)
        strip.set_title(title, x=-0.9 / (figure.get_figwidth() - 1.05))
        axes.set(xlabel="ms", ylabel="requests", xlim=(0.98 * low, 1.02 * high))
        axes.yaxis.get_major_locator().set_params(integer=True)
        round_ticks(axes, low, high)
        axes.grid(visible=False, axis="x")

    return draw(name, f"How many requests had which {title}", HEIGHT, paint, width=HALF)


def _percentiles(strip: Axes, axes: Axes, values: Percentiles, band: Band, tips: Tips) -> None:
    """A row for each percentile: its name and value before the axis, its 80 % interval as a bar, itself as a mark.

    Percentiles may be close to each other, so that names beside their marks would collide; rows never do.
    """
    for row, name in enumerate(PERCENTILES):
        low, value, high = (getattr(each, name) / MILLI for each in (band.low, values, band.high))
        (bar,) = strip.plot([low, high], [row, row], color=MUTED, alpha=0.4, lw=6, solid_capstyle="round")
        (mark,) = strip.plot([value], [row], "o", color=INK, ms=4.5)
        words = f"{name} {format_seconds(value * MILLI)}, 80 % interval {format_interval(low * MILLI, high * MILLI)}"
        tips.put(bar, words)
        tips.put(mark, words)
        axes.axvline(value, color=INK, lw=0.8, alpha=0.45, linestyle=(0, (2, 2)))
    labels = [f"{name} {format_seconds(getattr(values, name))}" for name in PERCENTILES]
    strip.set_yticks(range(len(labels)), labels)
    strip.set_ylim(len(labels) - 0.4, -0.6)
    strip.tick_params(axis="y", length=0, labelcolor=INK)
    strip.tick_params(axis="x", length=0, labelbottom=False)
    strip.spines[:].set_visible(False)
    strip.grid(visible=False)
