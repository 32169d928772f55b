"""Several saved runs compared on one page: who is best at what, all numbers side by side, steps, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from infercast.report.page.elements import Section, facts_list, items, plain_table, table
from infercast.report.page.several_charts import numbers_chart, steps_chart
from infercast.report.page.shell import Content, Made, whole_page
from infercast.report.several.rows import Row, leader_sentences, rows_of, settings_of, warnings_of
from infercast.report.several.saved import SavedRun
from infercast.report.state import TITLES


def several_page(runs: Sequence[SavedRun], version: str, command: str = "", date: str = "") -> str:
    """The whole page; ``command`` is what it was made by, ``date`` the day as in 2026-11-16."""
    rows = rows_of(runs)
    models = " and ".join(dict.fromkeys(run.model for run in runs))
    top = [f'<p class="warning">{escape(sentence)}</p>' for sentence in warnings_of(runs)]
    if leaders := leader_sentences(runs, rows):
        top.append(f"<h2>Which is best</h2>{items(leaders)}")
    content = Content(
        title=f"{models}: {len(runs)} runs compared",
        lead=runs[0].workload,
        sections=[
            Section("numbers", "What matters most", numbers_chart(runs, rows) + _NOTE, "Chart"),
            Section("headline", "Side by side", _headline(runs, rows)),
            *_steps(runs),
            *_settings(runs),
        ],
        caveats=_caveats(runs),
        top="".join(top),
    )
    return whole_page(content, Made(version, command, date))


_NOTE = '<p class="note">The bar of a mark is its 80 % interval, where the saved run has one.</p>'


def _headline(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    """Every number of every run, the best of a row in bold, with the difference from the first run."""
    lines = []
    for row in rows:
        best = row.best(runs)
        cells = [
            (f"<strong>{escape(cell)}</strong>" if place in best else escape(cell))
            + (f"<small>{escape(change)}</small>" if (change := row.change(place)) else "")
            for place, cell in enumerate(row.cells())
        ]
        lines.append([escape(row.name), *cells])
    note = f'<p class="note">Bold: the best of a row. Small: the difference from {escape(runs[0].name)}.</p>'
    return note + table(["", *(escape(run.name) for run in runs)], lines)


def _steps(runs: Sequence[SavedRun]) -> list[Section]:
    charts = [
        f"<h3>{escape(title[:1].upper() + title[1:])}</h3>{chart}"
        for kind, title in TITLES.items()
        if (chart := steps_chart(runs, kind))
    ]
    return [Section("steps", "Where the time of a step goes", "".join(charts), "Steps")] if charts else []


def _settings(runs: Sequence[SavedRun]) -> list[Section]:
    differing, same = settings_of(runs)
    names = ["", *(run.name for run in runs)]
    body = plain_table(names, differing, words=tuple(range(len(names)))) if differing else "<p>Nothing that shows.</p>"
    simulated = facts_list([(run.name, run.title) for run in runs])
    return [
        Section("differs", "What differs", simulated + body),
        *([Section("same", "The same in all runs", facts_list(same), "The same")] if same else []),
    ]


def _caveats(runs: Sequence[SavedRun]) -> list[str]:
    """What is true of all runs, then what is true of some, with their names."""
    sentences = list(dict.fromkeys(sentence for run in runs for sentence in run.caveats))
    holders = {sentence: [run.name for run in runs if sentence in run.caveats] for sentence in sentences}
    shared = [sentence for sentence in sentences if len(holders[sentence]) == len(runs)]
    return [*shared, *(f"{', '.join(holders[each])}: {each}" for each in sentences if each not in shared)]
