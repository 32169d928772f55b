"""Several runs in one chart: what matters most of each with its interval, and what their steps are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.report.page.canvas import LETTER, draw, inches, room, round_ticks, stacked
from infercast.report.page.charts import COLOURS, HOST, OTHERS
from infercast.report.page.stack import Part, Stack
from infercast.report.page.svg import INK, SERIES, Tips
from infercast.report.several.rows import Row
from infercast.report.several.saved import SavedPhase, SavedRun
from infercast.report.state import TITLES
from infercast.units import MILLI

DRAWN = (
    "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_tokens_per_s",
    "usd_per_million_output_tokens", "joules_per_output_token",
)  # fmt: skip
LONGEST, COLUMNS, MUCH, TICK = 18, 2, 20.0, 0.6
"""Letters of a name in a chart, panels beside each other, how many times values differ on a logarithmic
axis, and inches that a number below an axis takes."""
WAITING = "GPU waits for host"


def numbers_chart(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    """A panel for each number that matters most, a line for each run in it: value, mark and 80 % interval."""
    shown = [row for row in rows if row.key in DRAWN]
    each = 0.5 + 0.34 * len(runs)

    def height(columns: int) -> float:
        return 0.15 + -(-len(shown) // columns) * (each + 0.35)

    def paint(figure: Any, tips: Tips) -> None:
        count, across = stacked(figure, len(shown), COLUMNS)
        left = LETTER * min(LONGEST, max(len(_short(run.name)) for run in runs)) + 0.2
        gaps = {"hspace": 0.75 / each + 0.15, "wspace": 0.0 if across == 1 else (left + 0.35) / _panel(figure, left)}
        around = room(figure, left=left, right=0.3, bottom=0.3, top=0.3, **gaps)
        panels = list(figure.subplots(count, across, squeeze=False, gridspec_kw=around).flat)
        for axes, row in zip(panels, shown, strict=False):
            _numbers(axes, row, runs, tips)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)

    words = "What matters most of each run, with 80 % intervals"
    return draw("runs", words, height(COLUMNS), paint, phone_height=height(1))


def _panel(figure: Any, left: float) -> float:
    """Inches of each of two panels beside each other, both with names before them."""
    return float((figure.get_figwidth() - 2 * left - 0.55) / 2)


def _numbers(axes: Any, row: Row, runs: Sequence[SavedRun], tips: Tips) -> None:
    """One number of every run."""
    scale = MILLI if row.unit == MILLI else 1.0
    labels = []
    for place, (run, value, band, cell) in enumerate(zip(runs, row.values, row.bands, row.cells(), strict=True)):
        labels.append(f"{_short(run.name)}\n{cell}")
        if value is None:
            continue
        colour = SERIES[place % len(SERIES)]
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
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=8.5)
    axes.set_title(f"{row.name}, ms" if scale == MILLI else row.name)
    ends = [end for value, band in zip(row.values, row.bands, strict=True) for end in (*(band or ()), value) if end]
    _across(axes, [end / scale for end in ends])
    axes.grid(visible=False, axis="y")


def _across(axes: Any, ends: Sequence[float]) -> None:
    """From nothing on, or logarithmic where values differ by much, such as those of a run that is overloaded."""
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    most = max(2, min(6, int(inches(axes) / TICK)))
    if high > MUCH * low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
        round_ticks(axes, low / 1.3, high * 1.3, most)
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
    parts = [
        Part(name, COLOURS.get(name, OTHERS), [_each(phase, name) for _, phase in found])
        for name in sorted(names, key=lambda name: -totals[name])
    ]
    parts.append(Part(WAITING, HOST, [phase.waiting / phase.steps / MILLI for _, phase in found]))
    labels = [_short(run.name) for run, _ in found]
    left = 0.25 + LETTER * max(map(len, labels))
    stack = Stack(labels, parts, "ms", f"ms of one of the {TITLES.get(kind, kind)}", 0.34, left)
    return stack.chart(f"steps-{kind}", f"Kernel families of one of the {TITLES.get(kind, kind)}, for each run")


def _each(phase: SavedPhase, name: str) -> float:
    """Milliseconds of a family in one step."""
    return phase.seconds.get(name, 0.0) / phase.steps / MILLI
