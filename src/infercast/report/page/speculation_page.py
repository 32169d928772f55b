"""Up to which load speculative decoding pays, as a picture."""

from __future__ import annotations

from html import escape
from typing import Any

from infercast.forecast.break_even import BreakEven
from infercast.report.caveats import caveats_of
from infercast.report.drafts import drafting_words
from infercast.report.page.canvas import room, stacked
from infercast.report.page.elements import Section, table
from infercast.report.page.plot import Plot
from infercast.report.page.svg import MUTED, SERIES, Tips
from infercast.report.speculation import COLUMNS
from infercast.units import MILLI

CLIENTS = "clients at the same time"
MEASURES = ("", "", "tokens/s ", "", "", "TPOT p50 ", "", "TTFT p50 ", "")
"""What stands before the titles of columns, each of which is read by itself on a phone."""


def break_even_plot(found: BreakEven, version: str) -> Plot:
    """The picture, and the table below it on a page."""
    rows = [[escape(column.cell(point)) for column in COLUMNS] for point in found.points]
    titles = [f"{measure}{escape(column.title)}" for measure, column in zip(MEASURES, COLUMNS, strict=True)]
    answer = f'<p class="answer">{escape(found.sentence)}</p>'
    loads = table([title.replace(" ", "<br>") for title in titles], rows)

    def paint(figure: Any, tips: Tips) -> None:
        clients = [point.clients for point in found.points]
        around = room(figure, left=0.55, hspace=0.5, wspace=0.16)
        left, right = figure.subplots(*stacked(figure, 2, 2), gridspec_kw=around).flat
        _line(left, tips, clients, [point.speed_up for point in found.points], "with / without", 0)
        left.axhline(1.0, color=SERIES[6], lw=1.2, ls="-.")
        left.set_ylim(0, 1.1 * max(1.0, *[point.speed_up for point in found.points]))
        left.set_title("output tokens/s, with drafts / without")
        if found.clients is not None:
            left.axvline(found.clients, color=MUTED, lw=0.9, ls=(0, (2, 3)))
        for place, name in enumerate(("without", "with")):
            runs = [point.plain if name == "without" else point.drafted for point in found.points]
            values = [float("nan") if run.tpot is None else run.tpot.p50 / MILLI for run in runs]
            _line(right, tips, clients, values, name, place)
        right.set_title("TPOT p50, ms")
        right.legend(loc="best")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(clients, [f"{each:,}" for each in clients])
            axes.set_xticks([], minor=True)
            axes.set_xlabel(CLIENTS)

    lead = f"{found.workload}; {drafting_words(found.drafting)}"
    return Plot(
        "speculation",
        f"{found.title}: where drafts stop paying",
        lead,
        height=3.4,
        phone_height=5.6,
        paint=paint,
        sections=(
            Section("curves", "With and without drafts", "", "Curves"),
            Section("loads", "Each number of clients", loads, "Loads"),
        ),
        caveats=tuple(caveats_of([point.drafted for point in found.points])),
        version=version,
        top=answer,
    )


def _line(axes: Any, tips: Tips, clients: list[int], values: list[float], name: str, place: int) -> None:
    axes.plot(clients, values, "-", color=SERIES[place], lw=1.5, marker="o", ms=3.5, label=name)
    for client, value in zip(clients, values, strict=True):
        (dot,) = axes.plot([client], [value], "o", ms=9, alpha=0.0, color=SERIES[place])
        tips.put(dot, f"{client:,} clients: {name} {value:.3g}")
