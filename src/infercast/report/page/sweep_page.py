"""A sweep as a picture: latencies, what is served and what it costs, along the axis."""

from __future__ import annotations

from html import escape
from math import isfinite
from typing import Any

from infercast.forecast.sweep.points import Sweep
from infercast.report.caveats import caveats_of
from infercast.report.page.canvas import LETTER, inches, is_narrow, room, stacked
from infercast.report.page.elements import Section, facts_list, table
from infercast.report.page.plot import Plot
from infercast.report.page.svg import INK, MUTED, SERIES, Tips
from infercast.report.sweep import UNITS, charts_of, columns_of, overload_notes, summary_rows
from infercast.report.text_chart import Chart
from infercast.units import MILLI

LINES = ("-", "--", ":")
LATENCIES = ("TTFT", "TPOT")
APART = 0.2
"""Names of lines that are closer than this share of a chart are written as one."""


def sweep_plot(sweep: Sweep, version: str) -> Plot:
    """The picture, and the table below it on a page."""
    name = UNITS.get(sweep.axis.name, sweep.axis.name)
    columns = columns_of(sweep)
    rows = [[column.cell(point) for column in columns] for point in sweep.simulated]
    notes = [f"{each.label}: {each.problem}" for each in sweep.points if each.problem] + overload_notes(sweep)
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    values = table([escape(column.title).replace(" ", "<br>") for column in columns], _escaped(rows))

    def paint(figure: Any, tips: Tips) -> None:
        charts = charts_of(sweep)
        shape = stacked(figure, len(charts), 2)
        gaps = {"hspace": 0.62 if is_narrow(figure) else 0.45, "wspace": 0.18}
        panels = figure.subplots(*shape, gridspec_kw=room(figure, left=0.62, **gaps))
        for axes, chart in zip(panels.flat, charts, strict=True):
            _panel(axes, chart, tips, name)
            _bends(axes, sweep)

    summary = facts_list(summary_rows(sweep))
    return Plot(
        "sweep",
        f"{sweep.title} along {name}",
        sweep.workload,
        height=5.6,
        phone_height=9.6,
        paint=paint,
        sections=(
            Section("curves", "Where it bends" if sweep.axis.is_load else "Best values", summary, "Curves"),
            Section("values", f"Each value of {name}", values + below, "Values"),
        ),
        caveats=tuple(caveats_of([each.forecast for each in sweep.simulated if each.forecast is not None])),
        version=version,
    )


def _escaped(rows: list[list[str]]) -> list[list[str]]:
    return [[escape(cell) for cell in row] for row in rows]


def _panel(axes: Any, chart: Chart, tips: Tips, name: str) -> None:
    """One chart with its lines, and what was promised."""
    scale = MILLI if chart.title in LATENCIES else 1.0
    for place, series in enumerate(chart.series):
        values = [value / scale for value in series.values]
        style = {"color": SERIES[place], "lw": 1.5, "marker": "o", "ms": 3.5, "label": series.name}
        axes.plot(chart.positions, values, LINES[place], **style)
        for position, label, value in zip(chart.positions, chart.labels, series.values, strict=True):
            if isfinite(value):
                (dot,) = axes.plot([position], [value / scale], "o", ms=9, alpha=0.0, color=SERIES[place])
                tips.put(dot, f"{label} {name}: {series.name} {chart.write(value)}")
    if chart.limit is not None:
        axes.axhline(chart.limit / scale, color=SERIES[6], lw=1.2, ls="-.", label=chart.limit_name)
    axes.set_title(f"{chart.title}, ms" if scale == MILLI else chart.title)
    _vertical(axes, [value / scale for series in chart.series for value in series.values if isfinite(value)], scale)
    if list(chart.positions) == list(range(len(chart.labels))):
        axes.set_xticks(list(chart.positions), chart.labels)
    if len(chart.series) > 1:
        axes.legend(loc="best")
    axes.set_xlabel(name)


def _vertical(axes: Any, values: list[float], scale: float) -> None:
    """From nothing on, or logarithmic with round numbers where latencies differ by much."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if scale == MILLI and high > 20 * low > 0:
        axes.set_yscale("log")
        ticks = [mantissa * 10.0**power for power in range(-3, 8) for mantissa in (1, 2, 5)]
        ticks = [tick for tick in ticks if low / 1.5 <= tick <= 1.5 * high]
        axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.set_yticks([], minor=True)
    else:
        axes.set_ylim(0, max(1.08 * high, axes.get_ylim()[1]))


def _bends(axes: Any, sweep: Sweep) -> None:
    """Lines at the knee and where the promise ends, named above the chart where the title leaves room."""
    found = {"knee": sweep.knee, "SLO": sweep.promise}
    ends = {name: edge.value for name, edge in found.items() if edge is not None and edge.reached and edge.value}
    places = {name: _across(axes, value) for name, value in ends.items()}
    for name, value in ends.items():
        axes.axvline(value, color=MUTED if name == "knee" else INK, lw=0.9, ls=(0, (2, 3)))
    if len(places) == 2 and abs(places["knee"] - places["SLO"]) < APART:
        places = {"knee, SLO": max(places.values())}
    for name, place in places.items():
        half = LETTER * len(name) / 2 / inches(axes)
        middle = min(place, 1.0 - half)
        if middle - half > LETTER * (len(axes.get_title(loc="left")) + 2) / inches(axes):
            axes.annotate(name, (middle, 1.0), (0, 3), xycoords="axes fraction", textcoords="offset points",
                          fontsize=8, color=MUTED, ha="center", va="bottom")  # fmt: skip


def _across(axes: Any, value: float) -> float:
    """Where a value stands, as a share of the width of a chart."""
    begin, end = axes.get_xlim()
    return float((value - begin) / (end - begin))
