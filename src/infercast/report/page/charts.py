"""Charts of runs: load, steps, slowest requests, latencies, roofline, and several runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.breakdown import Breakdown
from infercast.forecast.explain.overview import Histogram, Overview, RooflinePoint, SlowRequest, StepRoofline
from infercast.forecast.explain.step_log import KINDS
from infercast.forecast.intervals import Band
from infercast.forecast.slo import Percentiles
from infercast.report.caveats import TITLES
from infercast.report.page import canvas
from infercast.report.quantities import format_interval
from infercast.report.saved_runs import Row, SavedPhase, SavedRun
from infercast.units import MILLI, TERA, format_many, format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FAMILIES = ("gemm", "attention", "moe", "lm_head", "norm", "activation", "collective", "kv_write", "rope")
COLOURS = dict(zip(FAMILIES, canvas.SERIES, strict=False))
OTHERS, HOST = canvas.SERIES[9], canvas.GRID
KIND_TITLES = {"prefill": "prompts alone", "mixed": "prompts with decoding", "decode": "decoding alone"}
PART_COLOURS = (
    *(canvas.SERIES[4], canvas.SERIES[1], canvas.SERIES[3], HOST, canvas.SERIES[0], canvas.SERIES[6], canvas.SERIES[8]),
    *(canvas.GRID, OTHERS, canvas.SERIES[2], canvas.SERIES[5], canvas.SERIES[7], canvas.SERIES[3], OTHERS),
)  # Of the parts of the time to first token; the second line is of a link and a decode pool
PERCENTILES = ("p50", "p90", "p95", "p99")
HEIGHT, STRIP = 3.3, 0.8  # inches of a chart, and of the strip with percentiles in it
LEFT, RIGHT = 0.3, 3e4  # operations per byte at the ends of a chart
LEADER = {"arrowstyle": "-", "color": canvas.MUTED, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
"""A line from a name to its mark."""
PHASE_TITLES = {"prefill": "average step with prompt tokens", "decode": "average step of decoding"}
DRAWN = (
    "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_tokens_per_s",
    "usd_per_million_output_tokens", "joules_per_output_token",
)  # fmt: skip
LONGEST, COLUMNS, MUCH, TICK = 18, 2, 20.0, 0.6
"""Letters of a name, panels side by side, factor of values on a logarithmic axis, inches of a number below an axis."""


def load_chart(overview: Overview) -> str:
    load = overview.load

    def paint(figure: Any, tips: canvas.Tips) -> None:
        del tips
        panels = figure.subplots(3, 1, sharex=True, gridspec_kw=canvas.room(figure, left=0.6, hspace=0.42))
        requests, tokens, cache = panels
        requests.plot(load.times, load.running, color=canvas.SERIES[0], lw=1.3, label="running")
        requests.plot(load.times, load.waiting, color=canvas.SERIES[1], lw=1.3, label="waiting")
        requests.set(title="requests", ylim=(0, None))
        requests.legend(
            loc="lower right", ncols=2, bbox_to_anchor=(1.0, 0.98), borderaxespad=0, handlelength=1.2, columnspacing=1
        )
        tokens.fill_between(load.times, load.output_tokens, color=canvas.SERIES[2], alpha=0.35, lw=0)
        tokens.plot(load.times, load.output_tokens, color=canvas.SERIES[2], lw=1.1)
        tokens.set(title="output tokens per second", ylim=(0, None))
        tokens.yaxis.set_major_formatter("{x:,g}")
        cache.fill_between(load.times, [100 * use for use in load.kv_usage], color=canvas.SERIES[3], alpha=0.35, lw=0)
        cache.plot(load.times, [100 * use for use in load.kv_usage], color=canvas.SERIES[3], lw=1.1)
        peak = 100 * max(load.kv_usage)
        cache.set(title="KV cache in use, % of its blocks", xlabel="seconds after the first request was sent")
        cache.set_ylim(0, min(100.0, 1.25 * peak) if peak else 1.0)
        cache.set_xlim(0, overview.forecast.duration)

    return canvas.draw("load", "Running and waiting requests, output tokens and KV cache use over time", 5.0, paint)


def composition_chart(breakdown: Breakdown) -> str:
    """What steps of each kind are made of, by kernel family."""
    kinds = [kind for kind in KINDS if breakdown.steps[kind]]
    families: dict[str, dict[str, float]] = {}
    for each in breakdown.kernels:
        of_family = families.setdefault(each.family, dict.fromkeys(KINDS, 0.0))
        for kind in KINDS:
            of_family[kind] += each.seconds[kind]
    host = breakdown.host.name
    rows = [*families.items(), (host, breakdown.host.seconds)]
    totals = {kind: sum(seconds[kind] for _, seconds in rows) for kind in kinds}
    parts = [
        canvas.Part(name, HOST if name == host else COLOURS.get(name, OTHERS), [100 * of[k] / totals[k] for k in kinds])
        for name, of in rows
    ]
    counts = {kind: format_many(breakdown.steps[kind], "step") for kind in kinds}
    labels = [f"{KIND_TITLES[kind]}\n{counts[kind]}" for kind in kinds]
    stack = canvas.Stack(labels, parts, "%", "% of the time of these steps", 0.5, 1.75)
    return stack.chart("composition", "Kernel families in steps of prompts and of decoding")


def slowest_chart(slowest: Sequence[SlowRequest]) -> str:
    parts = [
        canvas.Part(
            name, PART_COLOURS[number % len(PART_COLOURS)], [max(0.0, each.parts[name]) / MILLI for each in slowest]
        )
        for number, name in enumerate(slowest[0].parts)
    ]
    labels = [f"request {each.number:,}" for each in slowest]
    stack = canvas.Stack(labels, parts, "ms", "ms to the first token", 0.27, 1.0)
    return stack.chart("slowest", "Parts of the time to first token of the slowest requests")


def latency_chart(overview: Overview) -> str:
    forecast, intervals = overview.forecast, overview.intervals
    charts = [
        _histogram("latency", "time to first token", overview.ttft, forecast.ttft, intervals.ttft, canvas.SERIES[0])
    ]
    if overview.tpot is not None and forecast.tpot is not None and intervals.tpot is not None:
        title = "time per output token"
        charts.append(_histogram("latency-tpot", title, overview.tpot, forecast.tpot, intervals.tpot, canvas.SERIES[1]))
    return f'<div class="pair">{"".join(charts)}</div>'


def _histogram(name: str, title: str, histogram: Histogram, values: Percentiles, band: Band, colour: str) -> str:
    edges = [edge / MILLI for edge in histogram.edges]
    low = min(edges[0], *(getattr(band.low, each) / MILLI for each in PERCENTILES))
    high = max(edges[-1], *(getattr(band.high, each) / MILLI for each in PERCENTILES))

    def paint(figure: Any, tips: canvas.Tips) -> None:
        shares = [STRIP, HEIGHT - STRIP - 0.9]
        around = canvas.room(figure, left=0.95, bottom=0.48, top=0.34, hspace=0.06)
        strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=shares, gridspec_kw=around)
        axes.set_xscale("log")
        widths = [right - left for left, right in pairwise(edges)]
        bars = axes.bar(edges[:-1], histogram.counts, widths, align="edge")
        for bar, count, (left, right) in zip(bars, histogram.counts, pairwise(histogram.edges), strict=True):
            bar.set(color=colour, edgecolor=canvas.PAPER, linewidth=0.5)
            tips.put(bar, f"{format_many(count, 'request')} from {format_seconds(left)} to {format_seconds(right)}")
        _percentiles(strip, axes, values, band, tips)
        strip.set_title(title, x=-0.9 / (figure.get_figwidth() - 1.05))
        axes.set(xlabel="ms", ylabel="requests", xlim=(0.98 * low, 1.02 * high))
        axes.yaxis.get_major_locator().set_params(integer=True)
        canvas.round_ticks(axes.xaxis, low, high)
        axes.grid(visible=False, axis="x")

    return canvas.draw(name, f"How many requests had which {title}", HEIGHT, paint, width=canvas.HALF)


def _percentiles(strip: Axes, axes: Axes, values: Percentiles, band: Band, tips: canvas.Tips) -> None:
    """A row for each percentile: name and value, its 80 % interval as a bar, itself as a mark; rows never collide."""
    for row, name in enumerate(PERCENTILES):
        low, value, high = (getattr(each, name) / MILLI for each in (band.low, values, band.high))
        (bar,) = strip.plot([low, high], [row, row], color=canvas.MUTED, alpha=0.4, lw=6, solid_capstyle="round")
        (mark,) = strip.plot([value], [row], "o", color=canvas.INK, ms=4.5)
        words = f"{name} {format_seconds(value * MILLI)}, 80 % interval {format_interval(low * MILLI, high * MILLI)}"
        tips.put(bar, words)
        tips.put(mark, words)
        axes.axvline(value, color=canvas.INK, lw=0.8, alpha=0.45, linestyle=(0, (2, 2)))
    labels = [f"{name} {format_seconds(getattr(values, name))}" for name in PERCENTILES]
    strip.set_yticks(range(len(labels)), labels)
    strip.set_ylim(len(labels) - 0.4, -0.6)
    strip.tick_params(axis="y", length=0, labelcolor=canvas.INK)
    strip.tick_params(axis="x", length=0, labelbottom=False)
    strip.spines[:].set_visible(False)
    strip.grid(visible=False)


def roofline_chart(rooflines: Sequence[tuple[str, StepRoofline]]) -> str:
    charts = []
    for number, (title, roofline) in enumerate(rooflines):

        def paint(figure: Any, tips: canvas.Tips, title: str = title, roofline: StepRoofline = roofline) -> None:
            words = canvas.wrapped(figure, title, beside=0.8)
            axes = figure.subplots(gridspec_kw=canvas.room(figure, left=0.7, top=0.3 + 0.16 * words.count("\n")))
            axes.set_title(words)
            _roofline(axes, roofline, tips)

        name = "roofline" if number == 0 else f"roofline-{number}"
        words = f"What kernels reach against what the GPU allows: {title}"
        charts.append(canvas.draw(name, words, 3.9, paint, width=canvas.HALF))
    return f'<div class="pair">{"".join(charts)}</div>'


def _roofline(axes: Axes, roofline: StepRoofline, tips: canvas.Tips) -> None:
    lowest = min(point.flops_per_second for point in roofline.points)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="operations per byte", ylabel="TFLOP/s", xlim=(LEFT, RIGHT))
    axes.set_ylim(0.5 * lowest / TERA, 2.5 * max(roofline.peaks.values()) / TERA)
    _roofs(axes, roofline)
    for point in roofline.points:
        (mark,) = axes.plot(
            *_place(point), "o", ms=5 + 22 * sqrt(point.share), color=COLOURS.get(point.family, OTHERS), alpha=0.75,
            mec=canvas.PAPER, mew=0.8,
        )  # fmt: skip
        reached = format_percent(point.flops_per_second / point.limit)
        rate = format_rate(point.flops_per_second, "FLOP/s")
        tips.put(mark, f"{point.name}: {format_percent(point.share)} of the step, {rate}, {reached} of the roof")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    # The others tell their names when they are pointed at.
    lowest_first = sorted(roofline.points[:6], key=lambda point: point.flops_per_second)
    left = 0.98 - canvas.LETTER * max(len(point.name) for point in lowest_first) / canvas.inches(axes)
    for place, point in enumerate(lowest_first):  # in the corner that is never reached: much work a byte, and slow
        axes.annotate(
            point.name, _place(point), (left, 0.06 + 0.062 * place), textcoords="axes fraction", va="center",
            color=canvas.INK, fontsize=8.5, arrowprops={**LEADER, "relpos": (0.0, 0.5)},
        )  # fmt: skip


def _place(point: RooflinePoint) -> tuple[float, float]:
    return max(point.intensity, LEFT), point.flops_per_second / TERA


def _roofs(axes: Axes, roofline: StepRoofline) -> None:
    """The roof of each number format in use and that of memory, with their names."""
    used = {point.dtype for point in roofline.points if point.share >= 0.05}
    small: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "color": canvas.MUTED, "fontsize": 8.5}
    for dtype, peak in roofline.peaks.items():
        if dtype not in used:
            continue
        ridge = peak / roofline.bandwidth
        corners = [(x, min(peak, x * roofline.bandwidth) / TERA) for x in (LEFT, ridge, RIGHT)]
        axes.plot(*zip(*corners, strict=True), color=canvas.MUTED, lw=1.2)
        axes.annotate(f"{dtype}: {format_rate(peak, 'FLOP/s')}", corners[-1], (-2, 3), **small)
    words = f"memory: {format_rate(roofline.bandwidth, 'B/s')}"
    end = LEFT * (RIGHT / LEFT) ** (canvas.LETTER * len(words) / canvas.inches(axes))  # above the slope where it ends
    axes.annotate(words, (LEFT, end * roofline.bandwidth / TERA), (5, 0), **small | {"ha": "left"})


def numbers_chart(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    """A panel for each number that matters most, a line for each run in it: value, mark and 80 % interval."""
    shown = [row for row in rows if row.key in DRAWN]
    each = 0.5 + 0.34 * len(runs)

    def height(columns: int) -> float:
        return 0.15 + -(-len(shown) // columns) * (each + 0.35)

    def paint(figure: Any, tips: canvas.Tips) -> None:
        count, across = canvas.stacked(figure, len(shown), COLUMNS)
        left = canvas.LETTER * min(LONGEST, max(len(_short(run.name)) for run in runs)) + 0.2
        gaps = {"hspace": 0.75 / each + 0.15, "wspace": 0.0 if across == 1 else (left + 0.35) / _panel(figure, left)}
        around = canvas.room(figure, left=left, right=0.3, bottom=0.3, top=0.3, **gaps)
        panels = list(figure.subplots(count, across, squeeze=False, gridspec_kw=around).flat)
        for axes, row in zip(panels, shown, strict=False):
            _numbers(axes, row, runs, tips)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)

    words = "What matters most of each run, with 80 % intervals"
    return canvas.draw("runs", words, height(COLUMNS), paint, phone_height=height(1))


def _panel(figure: Any, left: float) -> float:
    """Inches of each of two panels side by side, both with names before them."""
    return float((figure.get_figwidth() - 2 * left - 0.55) / 2)


def _numbers(axes: Any, row: Row, runs: Sequence[SavedRun], tips: canvas.Tips) -> None:
    scale = MILLI if row.unit == MILLI else 1.0
    labels = []
    for place, (run, value, band, cell) in enumerate(zip(runs, row.values, row.bands, row.cells(), strict=True)):
        labels.append(f"{_short(run.name)}\n{cell}")
        if value is None:
            continue
        colour = canvas.SERIES[place % len(canvas.SERIES)]
        words = f"{run.name}: {row.name} {cell}"
        if band is not None:
            words += f", 80 % interval {row.write(band[0])} to {row.write(band[1])}"
            (line,) = axes.plot([end / scale for end in band], [place, place], color=colour, alpha=0.35, lw=7)
            line.set_solid_capstyle("round")
            tips.put(line, words)
        (mark,) = axes.plot([value / scale], [place], "o", color=colour, ms=6)
        tips.put(mark, words)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=canvas.INK, labelsize=8.5)
    axes.set_title(f"{row.name}, ms" if scale == MILLI else row.name)
    ends = [end for value, band in zip(row.values, row.bands, strict=True) for end in (*(band or ()), value) if end]
    _across(axes, [end / scale for end in ends])
    axes.grid(visible=False, axis="y")


def _across(axes: Any, ends: Sequence[float]) -> None:
    """From nothing on, or logarithmic where values differ by much, such as those of a run that is overloaded."""
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    most = max(2, min(6, int(canvas.inches(axes) / TICK)))
    if high > MUCH * low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
        canvas.round_ticks(axes.xaxis, low / 1.3, high * 1.3, most)
    else:
        axes.set_xlim(0, 1.06 * high)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.get_major_locator().set_params(nbins=most)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def steps_chart(runs: Sequence[SavedRun], kind: str) -> str:
    """What a step of one kind is made of in each run, in milliseconds; empty where no run has any."""
    found = [(run, phase) for run in runs for phase in run.phases if phase.name == kind]
    found = [
        (run, phase) for number, (run, phase) in enumerate(found) if run not in [each for each, _ in found[:number]]
    ]
    if not found:
        return ""
    names = list(dict.fromkeys(name for _, phase in found for name in phase.seconds))
    totals = {name: sum(_each(phase, name) for _, phase in found) for name in names}
    names.sort(key=lambda name: -totals[name])
    parts = [canvas.Part(each, COLOURS.get(each, OTHERS), [_each(phase, each) for _, phase in found]) for each in names]
    parts.append(canvas.Part("GPU waits for host", HOST, [phase.waiting / phase.steps / MILLI for _, phase in found]))
    labels = [_short(run.name) for run, _ in found]
    left = 0.25 + canvas.LETTER * max(map(len, labels))
    stack = canvas.Stack(labels, parts, "ms", f"ms of one of the {TITLES.get(kind, kind)}", 0.34, left)
    return stack.chart(f"steps-{kind}", f"Kernel families of one of the {TITLES.get(kind, kind)}, for each run")


def _each(phase: SavedPhase, name: str) -> float:
    return phase.seconds.get(name, 0.0) / phase.steps / MILLI
