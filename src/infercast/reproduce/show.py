"""Papers, their claims and figures as tables of a terminal, as data, and as one HTML page with charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from typing import Any, NamedTuple

from infercast.report.page import canvas, elements
from infercast.report.terminal import Chart, Grid, Paragraph, Printable, Section, Series, TextCharts
from infercast.reproduce.papers import Claim, Figure, Paper, Table, number, written

MANY = 70  # rows of a table from which on a page has the chart alone


# Terminal and data.


def render_papers(papers: Iterable[Paper]) -> list[Printable]:
    rows = []
    for paper in papers:
        rows.append([paper.title, "", "", paper.source])
        rows += [["  " + first, *others] for first, *others in map(_claim_cells, paper.claims)]
    grid = Grid(("claim (%: errors)", "paper", "ours", "what differs"), rows, notes_at=(3,))
    return [grid, Paragraph("`infercast reproduce PAPER` shows one: pm2lat, ksight, synperf or apex.")]


def _claim_cells(claim: Claim) -> list[str]:
    unit = " x" if claim.unit == "times" else f" {claim.unit}"
    theirs = claim.theirs if claim.theirs.isalpha() else claim.theirs + unit
    return [claim.what, theirs, claim.value + unit, claim.differs]


def render_paper(paper: Paper) -> list[Printable]:
    claims = Grid(("claim", "paper", "ours", "what differs"), map(_claim_cells, paper.claims), notes_at=(3,))
    rows = [(each.name, "now" if each.is_computed else "recorded", each.title) for each in paper.figures]
    return [
        Section(f"{paper.title}: {paper.source}", claims),
        Section("Figures", Grid(("name", "made", "what it shows"), rows, notes_at=(1, 2))),
        Paragraph(f"`infercast reproduce {paper.name} {paper.figures[0].name}` shows one, --full or --html FILE all."),
    ]


def render_in_full(paper: Paper) -> list[Printable]:
    return [*render_paper(paper)[:-1], *(part for figure in paper.figures for part in render_figure(figure))]


def render_figure(figure: Figure) -> list[Printable]:
    table = figure.table
    rows = [[written(cell) for cell in row] for row in table.rows]
    words = [place for place in range(len(table.columns)) if all(number(row[place]) is None for row in table.rows)]
    parts: list[Printable] = [Section(figure.title, Grid(table.columns, rows, notes_at=words))]
    if figure.chart.get("kind") == "lines":
        parts.append(TextCharts([_text_chart(figure)], columns=1))
    return [*parts, Paragraph(_notes(figure), width=96)]


def _text_chart(figure: Figure) -> Chart:
    x, names = figure.chart["x"], figure.chart["y"]
    rows = _records(figure)
    series = [
        Series(name, mark, [_value(row[name]) for row in rows]) for name, mark in zip(names, "*ox+", strict=False)
    ]
    return Chart("", range(len(rows)), [written(row[x]) for row in rows], series, "{:,.0f}".format, from_zero=True)


def _notes(figure: Figure) -> str:
    made = "Computed now." if figure.is_computed else f"Recorded{f' from {figure.page}' if figure.page else ''}."
    again = f" {figure.command} makes it again." if figure.command else ""
    return f"{figure.differs} {made}{again}"


def papers_dict(papers: Iterable[Paper]) -> dict[str, Any]:
    return {"claims": [{"paper": paper.name, **_claim_dict(each)} for paper in papers for each in paper.claims]}


def _claim_dict(claim: Claim) -> dict[str, Any]:
    about = {"claim": claim.what, "unit": claim.unit, "theirs": claim.theirs, "ours": claim.value}
    return {**about, "differs": claim.differs, "figures": list(dict.fromkeys(part[0] for part in claim.ours))}


def paper_dict(paper: Paper) -> dict[str, Any]:
    claims = [_claim_dict(each) for each in paper.claims]
    about = {"paper": paper.name, "title": paper.title, "source": paper.source}
    return {**about, "claims": claims, "figures": [figure_dict(each) for each in paper.figures]}


def figure_dict(figure: Figure) -> dict[str, Any]:
    about = {"name": figure.name, "title": figure.title, "differs": figure.differs, "command": figure.command}
    return {**about, "computed": figure.is_computed, "rows": figure.table.records}


# One page.


def page(papers: Sequence[Paper], command: str) -> str:
    content = elements.Content(
        title="Papers and infercast",
        lead="Headline tables and figures of papers on forecasts of LLM inference, on infercast's bundled data",
        sections=[section for paper in papers for section in _sections(paper)],
        caveats=["Figures of papers are as published; what differs is said beside each."],
    )
    return elements.whole_page(content, command)


def _sections(paper: Paper) -> Iterable[elements.PageSection]:
    claims = elements.plain_table(("claim", "paper", "ours", "what differs"), map(_claim_cells, paper.claims), (0, 3))
    yield elements.PageSection(paper.name, f"{paper.title}: {paper.source}", claims, paper.title)
    for figure in paper.figures:
        name = f"{paper.name}-{figure.name}"
        note = f'<p class="note">{escape(_notes(figure))}</p>'
        yield elements.PageSection(name, figure.title, _chart(name, figure) + _rows(figure.table) + note, figure.name)


def _rows(table: Table) -> str:
    if len(table.rows) > MANY:
        return ""
    words = tuple(place for place in range(len(table.columns)) if all(number(row[place]) is None for row in table.rows))
    return elements.plain_table(table.columns, [[written(cell) for cell in row] for row in table.rows], words or (0,))


def _value(cell: Any) -> float:
    found = number(cell)
    return float("nan") if found is None else found


def _chart(name: str, figure: Figure) -> str:
    if not figure.chart:
        return ""
    picture = Picture(_records(figure), **{key: value for key, value in figure.chart.items() if key != "rows"})
    if picture.kind == "stack":
        return picture.stack.chart(name, figure.title)
    paint = {"bars": picture.bars, "lines": picture.lines, "points": picture.points}[picture.kind]
    height = 1.0 + 0.13 * len(picture.rows) * max(2, len(picture.y)) if picture.kind == "bars" else 3.6
    on_phones = len(picture.y) * height if picture.kind == "points" else None
    return canvas.draw(name, figure.title, height, paint, phone_height=on_phones)


def _records(figure: Figure) -> list[dict[str, Any]]:
    chosen, table = figure.chart.get("rows"), figure.table
    return [each for row, each in zip(table.rows, table.records, strict=True) if chosen in (None, row[0])]


class Picture(NamedTuple):
    """What a chart shows: quantities over x, or over what was measured of them."""

    rows: Sequence[dict[str, Any]]
    kind: str
    x: str
    y: Sequence[str]
    by: str = ""  # What colours of points are by
    log: str = ""  # Axes that are logarithmic
    roof: str = ""  # What bounds a quantity at each x

    def values(self, name: str) -> list[float]:
        return [_value(row[name]) for row in self.rows]

    @property
    def labels(self) -> list[str]:
        return [written(row[self.x]) for row in self.rows]

    @property
    def stack(self) -> canvas.Stack:
        parts = [canvas.Part(each, canvas.SERIES[place], self.values(each)) for place, each in enumerate(self.y)]
        return canvas.Stack(self.labels, parts, "ms", "ms", 0.34, 0.25 + canvas.LETTER * max(map(len, self.labels)))

    def bars(self, figure: Any, _: canvas.Tips) -> None:
        left = min(1.9, 0.25 + canvas.LETTER * max(map(len, self.labels)))
        axes = figure.subplots(gridspec_kw=canvas.room(figure, left=left, bottom=0.75))
        thick, count = 0.8 / len(self.y), len(self.rows)
        for place, each in enumerate(self.y):
            at = [row + thick * (place - (len(self.y) - 1) / 2) for row in range(count)]
            axes.barh(at, self.values(each), thick, color=canvas.SERIES[place], label=each)
        axes.set_yticks(range(count), self.labels)
        axes.set_ylim(count - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        figure.legend(loc="lower center", ncols=2)

    def lines(self, figure: Any, _: canvas.Tips) -> None:
        axes = figure.subplots(gridspec_kw=canvas.room(figure, left=0.6, bottom=1.0))
        for place, each in enumerate(self.y):
            axes.plot(self.values(self.x), self.values(each), "o-", ms=3, color=canvas.SERIES[place], label=each)
        axes.set(xlabel=self.x, ylim=(0, None), xscale="log" if self.log else "linear")
        if self.log:
            canvas.round_ticks(axes.xaxis, *axes.get_xlim())
        figure.legend(loc="lower center", ncols=2)

    def points(self, figure: Any, _: canvas.Tips) -> None:
        groups = list(dict.fromkeys(row[self.by] for row in self.rows))
        down, across = canvas.stacked(figure, len(self.y), len(self.y))
        room = canvas.room(figure, left=0.6, bottom=1.0, wspace=0.3, hspace=0.5)
        panels = figure.subplots(down, across, squeeze=False, gridspec_kw=room)
        for axes, each in zip(panels.flat, self.y, strict=True):
            names = (f"{each}, {self.x}", f"{each}, ours") if self.x == "measured" else (self.x, each)
            for place, group in enumerate(groups):
                chosen = [row for row in self.rows if row[self.by] == group]
                pairs = [[_value(row[name]) for row in chosen] for name in names]
                axes.plot(*pairs, "o", ms=3, color=canvas.SERIES[place], label=group, alpha=0.7)
            axes.set(xscale="log", yscale="log", title=each, xlabel=self.x)
            if self.x == "measured":
                ends: Any = [pick(filter(isfinite, self.values(names[0]))) for pick in (min, max)]
                axes.plot(ends, ends, color=canvas.MUTED, lw=0.8)
            if self.roof:
                ends = zip(*sorted(zip(self.values(self.x), self.values(self.roof), strict=True)), strict=True)
                axes.plot(*ends, color=canvas.MUTED, lw=0.8, label="limit")
            canvas.round_ticks(axes.xaxis, *axes.get_xlim())
            canvas.round_ticks(axes.yaxis, *axes.get_ylim())
        figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="lower center", ncols=4)
