"""The charts of a report, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.breakdown import Breakdown
from infercast.forecast.explain.overview import Histogram, Overview, SlowRequest
from infercast.forecast.explain.step_log import KINDS
from infercast.forecast.intervals.intervals import Band
from infercast.forecast.latency import Percentiles
from infercast.report.page.svg import GRID, INK, MUTED, PAPER, SERIES, STYLE, Tips, inline_svg
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HALF = 9.2, 4.4
"""Inches of a chart that fills the page, and of one that has another beside it, or below it on a phone."""
PERCENTILES = {"p50": "-", "p90": "--", "p95": "-.", "p99": ":"}
"""Each with its kind of line."""
MOST_TICKS = 7
COLOURS = {
    "gemm": SERIES[0], "attention": SERIES[1], "moe": SERIES[2], "lm_head": SERIES[3], "norm": SERIES[4],
    "activation": SERIES[5], "collective": SERIES[6], "kv_write": SERIES[7], "rope": SERIES[8],
}  # fmt: skip
OTHERS, HOST = SERIES[9], GRID
KIND_TITLES = {"prefill": "prompts alone", "mixed": "prompts beside decoding", "decode": "decoding alone"}
PART_COLOURS = (
    SERIES[4], SERIES[1], SERIES[3], HOST, SERIES[0], SERIES[6], SERIES[8], GRID, OTHERS,
    SERIES[2], SERIES[5], SERIES[7], SERIES[3], OTHERS,
)  # fmt: skip
"""Of the parts of the time to first token; the second line is of a link and a decode pool."""


def draw(name: str, description: str, height: float, paint: Callable[[Any, Tips], None], width: float = WIDTH) -> str:
    """One chart: ``paint`` is given an empty figure."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second that only a report needs
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(fname=STYLE):
        figure, tips = Figure(figsize=(width, height)), Tips()
        paint(figure, tips)
        svg = inline_svg(figure, name, description, tips)
    return svg if width == HALF else f'<div class="wide chart">{svg}</div>'


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
        axes = figure.subplots(gridspec_kw={"left": 0.12, "right": 0.985, "bottom": 0.15, "top": 0.77})
        axes.set_xscale("log")
        widths = [right - left for left, right in pairwise(edges)]
        bars = axes.bar(edges[:-1], histogram.counts, widths, align="edge")
        for bar, count, (left, right) in zip(bars, histogram.counts, pairwise(histogram.edges), strict=True):
            bar.set(color=colour, edgecolor=PAPER, linewidth=0.5)
            tips.put(bar, f"{count:,} requests from {format_seconds(left)} to {format_seconds(right)}")
        lines = [_percentile(axes, each, values, band) for each in PERCENTILES]
        # Above the chart: beside the lines the words would run into each other wherever percentiles are close.
        axes.legend(handles=lines, loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=2, handlelength=1.6)
        axes.set_title(title, y=1.2)
        axes.set(xlabel="ms", ylabel="requests", xlim=(0.98 * low, 1.02 * high))
        _round_ticks(axes, low, high)
        axes.grid(visible=False, axis="x")

    return draw(name, f"How many requests had which {title}", 2.9, paint, HALF)


def _percentile(axes: Axes, name: str, values: Percentiles, band: Band) -> Any:
    """A line at a percentile, and its 80 % interval."""
    low, value, high = (getattr(each, name) / MILLI for each in (band.low, values, band.high))
    axes.axvspan(low, high, color=MUTED, alpha=0.14, lw=0)
    label = f"{name} {format_seconds(value * MILLI)}"
    return axes.axvline(value, color=INK, lw=1.2, linestyle=PERCENTILES[name], label=label)


def _round_ticks(axes: Axes, low: float, high: float) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, or at even steps where it spans less than that."""
    ticks = [mantissa * 10.0**power for power in range(-6, 9) for mantissa in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > MOST_TICKS:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    if len(ticks) < 3:
        step = next(each for each in (10.0**power * part for power in range(-9, 9) for part in (1, 2, 5))
                    if (high - low) / each < MOST_TICKS - 1)  # fmt: skip
        ticks = [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
    axes.set_xticks(ticks, [f"{tick:.6g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def load_chart(overview: Overview) -> str:
    """Requests in the system, tokens and KV cache over time."""
    load = overview.load

    def paint(figure: Any, tips: Tips) -> None:
        del tips
        panels = figure.subplots(
            3, 1, sharex=True, gridspec_kw={"left": 0.065, "right": 0.99, "bottom": 0.1, "top": 0.95, "hspace": 0.42}
        )
        requests, tokens, cache = panels
        requests.plot(load.times, load.running, color=SERIES[0], lw=1.3, label="running")
        requests.plot(load.times, load.waiting, color=SERIES[1], lw=1.3, label="waiting")
        requests.set(title="requests in the system", ylim=(0, None))
        requests.legend(loc="upper right", ncols=2, bbox_to_anchor=(1.0, 1.28))
        tokens.fill_between(load.times, load.output_tokens, color=SERIES[2], alpha=0.35, lw=0)
        tokens.plot(load.times, load.output_tokens, color=SERIES[2], lw=1.1)
        tokens.set(title="output tokens per second", ylim=(0, None))
        cache.fill_between(load.times, [100 * use for use in load.kv_usage], color=SERIES[3], alpha=0.35, lw=0)
        cache.plot(load.times, [100 * use for use in load.kv_usage], color=SERIES[3], lw=1.1)
        peak = 100 * max(load.kv_usage)
        cache.set(title="KV cache in use, % of its blocks", xlabel="seconds after the first request was sent")
        cache.set_ylim(0, min(100.0, 1.25 * peak) if peak else 1.0)
        cache.set_xlim(0, overview.forecast.duration)

    return draw("load", "Running and waiting requests, output tokens and KV cache use over time", 5.0, paint)


def composition_chart(breakdown: Breakdown) -> str:
    """What steps of each kind are made of, by kernel family."""
    kinds = [kind for kind in KINDS if breakdown.steps[kind]]
    families: dict[str, dict[str, float]] = {}
    for part in breakdown.kernels:
        of_family = families.setdefault(part.family, dict.fromkeys(KINDS, 0.0))
        for kind in KINDS:
            of_family[kind] += part.seconds[kind]
    rows = [*families.items(), (breakdown.host.name, breakdown.host.seconds)]
    totals = {kind: sum(seconds[kind] for _, seconds in rows) for kind in kinds}
    height = 1.3 + 0.5 * len(kinds)

    def paint(figure: Any, tips: Tips) -> None:
        axes = figure.subplots(gridspec_kw={"left": 0.19, "right": 0.985, "bottom": 1.15 / height, "top": 0.98})
        _stack(
            axes,
            [f"{KIND_TITLES[kind]}\n{_count(breakdown.steps[kind], 'step')}" for kind in kinds],
            [
                (name, COLOURS.get(name, OTHERS) if name != breakdown.host.name else HOST, [s[k] for k in kinds])
                for name, s in rows
            ],
            [totals[kind] for kind in kinds],
            tips,
        )
        axes.set(xlim=(0, 100), xlabel="% of the time of these steps")

    return draw("composition", "Kernel families in steps of prompts and of decoding", height, paint)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def slowest_chart(slowest: Sequence[SlowRequest]) -> str:
    """Where the slowest first tokens spent their time."""
    names, height = list(slowest[0].parts), 1.3 + 0.27 * len(slowest)

    def paint(figure: Any, tips: Tips) -> None:
        axes = figure.subplots(gridspec_kw={"left": 0.12, "right": 0.985, "bottom": 1.05 / height, "top": 0.98})
        rows = [
            (name, PART_COLOURS[number % len(PART_COLOURS)], [max(0.0, each.parts[name]) / MILLI for each in slowest])
            for number, name in enumerate(names)
        ]
        _stack(axes, [f"request {each.number:,}" for each in slowest], rows, None, tips)
        axes.set(xlabel="ms to the first token")

    return draw("slowest", "Parts of the time to first token of the slowest requests", height, paint)


def _stack(
    axes: Axes,
    labels: list[str],
    rows: list[tuple[str, str, list[float]]],
    totals: list[float] | None,
    tips: Tips,
) -> None:
    """Horizontal bars of parts that add up; as shares of ``totals`` in per cent where these are given."""
    scales = [100 / total for total in totals] if totals else [1.0] * len(labels)
    ends = [0.0] * len(labels)
    for name, colour, seconds in rows:
        widths = [value * scale for value, scale in zip(seconds, scales, strict=True)]
        if sum(widths) < 1e-3 * sum(sum(each) for _, _, each in rows):
            continue
        bars = axes.barh(labels, widths, left=ends, color=colour, edgecolor=PAPER, linewidth=0.8, label=name)
        for bar, width, label in zip(bars, widths, labels, strict=True):
            amount = f"{width:.1f} %" if totals else f"{width:.1f} ms"
            tips.put(bar, f"{label.splitlines()[0]}: {name} {amount}")
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.figure.legend(loc="lower center", ncols=5, handlelength=1.0, handleheight=1.0, columnspacing=1.4)
