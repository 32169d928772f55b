"""Pieces that pages are made of: sections, cards, tables and lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape, unescape
from re import sub
from typing import NamedTuple

from infercast.forecast.result import Forecast
from infercast.report.by_part import CLASS_COLUMNS, TURN_COLUMNS, class_cells, session_rows, turn_cells

FITS_PHONE, LONG, FIRST, SHORT, WRAPPED = 50, 15, 12, 10, 10
"""Letters of a row of a table that a phone has room for; of a cell that needs the width of a card, of a first cell that
does, of a cell of which four stand beside each other; and of a line of a cell that is broken."""


class Section(NamedTuple):
    """A part of a page under a title; its name is where links to it lead."""

    name: str
    title: str
    body: str
    short: str = ""
    """What the list at the top of the page calls it; empty: its title."""

    @property
    def html(self) -> str:
        """The part as an element."""
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>\n{self.body}</section>'

    @property
    def link(self) -> str:
        """A link to it."""
        return f'<a href="#{self.name}">{escape(self.short or self.title)}</a>'


class Card(NamedTuple):
    """One number at the top of a page, and what is to be said below it."""

    name: str
    value: str
    note: str = ""

    @property
    def html(self) -> str:
        """The card as an element."""
        note = f'<div class="interval">{escape(self.note)}</div>' if self.note else ""
        name, value = escape(self.name), escape(self.value)
        return f'<div class="card"><div class="name">{name}</div><div class="value">{value}</div>{note}</div>'


def cards(shown: Iterable[Card], note: str) -> str:
    """Several cards, and what holds for all of them."""
    return f'<div class="cards">{"".join(card.html for card in shown)}</div><p class="note">{escape(note)}</p>'


def items(sentences: Iterable[str]) -> str:
    """A list of sentences, in which commands stand between backticks."""
    return f"<ul>{''.join(f'<li>{_with_code(each)}</li>' for each in sentences)}</ul>"


def _with_code(sentence: str) -> str:
    return sub(r"`([^`]+)`", r"<code>\1</code>", escape(sentence))


def facts_list(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of each; rows without a name say more of the one above."""
    groups: list[tuple[str, list[str]]] = []
    for name, value in rows:
        if name or not groups:
            groups.append((name, []))
        groups[-1][1].append(value)
    shown = "".join(
        f"<dt>{escape(name)}</dt>{''.join(f'<dd>{escape(value)}</dd>' for value in values)}" for name, values in groups
    )
    return f"<dl>{shown}</dl>" if groups else ""


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: tuple[int, ...] = (0,)) -> str:
    """A table of plain text."""
    return table([escape(column) for column in columns], [[escape(cell) for cell in row] for row in rows], words)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: tuple[int, ...] = (0,)) -> str:
    """A table of cells that are HTML already; the columns in ``words`` hold text.

    On a phone each row of a table that is too wide becomes a card, with the names of columns before their values. Roles
    are spelled out, because browsers forget that a table is one when it is laid out otherwise.
    """
    rows = [list(row) for row in rows]
    names, *texts = ([_text(cell) for cell in row] for row in (columns, *rows))
    kinds = ["words" if place in words else "number" for place in range(len(columns))]
    head = "".join(
        f'<th scope="col" role="columnheader" class="{kind}">{column}</th>'
        for kind, column in zip(kinds, columns, strict=True)
    )
    if max((len(row[0]) for row in texts), default=0) > FIRST:
        kinds[0] += " long"
    body = "".join(_line(names, kinds, row, text) for row, text in zip(rows, texts, strict=True))
    layout = _layout(names, texts)
    return (
        f'<div class="wide"><table role="table" class="{layout}"><thead role="rowgroup"><tr role="row">{head}</tr>'
        f'</thead><tbody role="rowgroup">{body}</tbody></table></div>'
    )


def _layout(names: Sequence[str], texts: Sequence[Sequence[str]]) -> str:
    """How a phone shows a table: as it is if it is small, or as cards with three or four cells beside each other."""
    columns = [*zip(*texts, strict=True)] or [() for _ in names]
    widths = [max(min(len(name), SHORT), _width(column)) for name, column in zip(names, columns, strict=True)]
    if sum(widths) + 2 * len(widths) <= FITS_PHONE:
        return "small"
    first = max(map(len, columns[0]), default=0)
    beside = columns[1:] if first > FIRST else columns
    widest = [max(map(len, column)) for column in beside]
    in_grid = [width for width in widest if width <= LONG]
    return "rows four" if in_grid and len(in_grid) % 4 == 0 and max(in_grid) <= SHORT else "rows"


def _width(column: Sequence[str]) -> int:
    """Letters of the widest cell; a cell that is longer than most others is broken."""
    lengths = [len(text) for text in column]
    if 2 * sum(length > LONG for length in lengths) > len(lengths):
        return max(lengths)
    return max((length if length <= LONG else WRAPPED for length in lengths), default=0)


def _line(names: Sequence[str], kinds: Sequence[str], row: Sequence[str], texts: Sequence[str]) -> str:
    """A row: cells know the names of their columns, and whether they need the width of a card."""
    cells = []
    for place, (name, kind, cell, text) in enumerate(zip(names, kinds, row, texts, strict=True)):
        tag, role = ('th scope="row"', "rowheader") if place == 0 else ("td", "cell")
        wide = " long" if place and len(text) > LONG else ""
        label = f' data-label="{escape(name)}"' if name else ""
        cells.append(f'<{tag} role="{role}" class="{kind}{wide}"{label}>{cell}</{tag[:2]}>')
    return f'<tr role="row">{"".join(cells)}</tr>'


def _text(cell: str) -> str:
    """What a reader sees of a cell, less what stands in small letters below it."""
    return unescape(sub(r"<small>.*?</small>|<(?!br)[^>]*>", "", cell).replace("<br>", " "))


def part_sections(forecast: Forecast) -> list[Section]:
    """Turns and classes, where a workload has any."""
    sections = []
    if (sessions := forecast.sessions) is not None:
        turns = plain_table(TURN_COLUMNS, turn_cells(sessions))
        sections.append(Section("sessions", "Sessions", facts_list(session_rows(sessions)) + turns))
    if classes := forecast.classes:
        sections.append(Section("classes", "Classes", plain_table(CLASS_COLUMNS, class_cells(classes), (0, 7))))
    return sections
