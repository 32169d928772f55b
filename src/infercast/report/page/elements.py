"""Building blocks of an HTML page: head and style, sections, cards, tables, provenance and glossary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape, unescape
from importlib import resources

from infercast import __version__
from infercast.forecast.result import Forecast
from infercast.glossary import Term, glossary, spellings
from infercast.lazy_classes import NamedTuple
from infercast.report.files import today
from infercast.report.forecast import CLASS_FIELDS, TURN_FIELDS, session_rows
from infercast.report.terminal import cells

FITS_PHONE, LONG, FIRST, SHORT, WRAPPED = 50, 15, 12, 10, 10
"""Letters of a row of a table that a phone has room for; of a cell that needs the width of a card, of a first cell that
does, of a cell of which four stand beside each other; and of a line of a cell that is broken."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # nothing is loaded from anywhere, and a browser sees to it
MARKED = re.compile(
    r'(?P<opening><section\b[^>]*>|<header>)|(?P<tag><(?:th|dt)\b[^>]*>|<div class="name">)(?P<text>[^<]+)'
)  # Where words are explained: names of columns, rows, facts and cards; a section explains each word once
TOO_COMMON = {"measured", "step", "host", "engine", "kernel", "interval"}  # Would be marked in every second line


class PageSection(NamedTuple):
    name: str
    title: str
    body: str
    short: str = ""  # What the list at the top of the page calls it; empty: its title

    @property
    def html(self) -> str:
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>\n{self.body}</section>'

    @property
    def link(self) -> str:
        return f'<a href="#{self.name}">{escape(self.short or self.title)}</a>'


class Card(NamedTuple):
    name: str
    value: str
    note: str = ""

    @property
    def html(self) -> str:
        note = f'<div class="interval">{escape(self.note)}</div>' if self.note else ""
        name, value = escape(self.name), escape(self.value)
        return f'<div class="card"><div class="name">{name}</div><div class="value">{value}</div>{note}</div>'


def cards(shown: Iterable[Card], note: str) -> str:
    return f'<div class="cards">{"".join(card.html for card in shown)}</div><p class="note">{escape(note)}</p>'


def items(sentences: Iterable[str]) -> str:
    """A list of sentences, in which commands stand between backticks."""
    coded = (re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(each)) for each in sentences)
    return f"<ul>{''.join(f'<li>{each}</li>' for each in coded)}</ul>"


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
    return table([escape(column) for column in columns], [[escape(cell) for cell in row] for row in rows], words)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: tuple[int, ...] = (0,)) -> str:
    """A table of HTML cells (text in ``words``); rows too wide for a phone become cards, so roles are spelled out."""
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
    """How a phone shows a table: as it is if it is small, or as cards with three or four cells in a row."""
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
    return unescape(re.sub(r"<small>.*?</small>|<(?!br)[^>]*>", "", cell).replace("<br>", " "))


def part_sections(forecast: Forecast) -> list[PageSection]:
    sections = []
    if (sessions := forecast.sessions) is not None:
        turns = plain_table(*cells(TURN_FIELDS, sessions.turns))
        sections.append(PageSection("sessions", "Sessions", facts_list(session_rows(sessions)) + turns))
    if classes := forecast.classes:
        sections.append(PageSection("classes", "Classes", plain_table(*cells(CLASS_FIELDS, classes), (0, 7))))
    return sections


@cache
def _pattern() -> re.Pattern[str]:
    """Any spelling, the longest first, as a whole word."""
    texts = sorted((text for text in spellings() if text not in TOO_COMMON), key=lambda text: (-len(text), text))
    return re.compile(rf"(?<![\w-])(?:{'|'.join(re.escape(escape(text)) for text in texts)})(?![\w-])", re.IGNORECASE)


def explain_words(html: str) -> tuple[str, list[Term]]:
    """A page with glossary terms marked in its names, and these terms in the order of the glossary."""
    used: set[str] = set()
    here: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        term = spellings()[found[0].lower().replace("&amp;", "&")]
        if term.key in here:
            return found[0]
        here.add(term.key)
        used.add(term.key)
        return (
            f'<span class="term" tabindex="0" aria-describedby="term-{term.key}">{found[0]}'
            f'<span class="tip" aria-hidden="true"><b>{escape(term.title)}</b> {escape(term.meaning)}</span></span>'
        )

    def visit(found: re.Match[str]) -> str:
        if found["opening"]:
            here.clear()
            return found[0]
        return found["tag"] + _pattern().sub(mark, found["text"], count=1)

    marked = MARKED.sub(visit, html)
    return marked, [term for term in glossary() if term.key in used]


class Content(NamedTuple):
    title: str
    lead: str
    sections: Sequence[PageSection]
    caveats: Sequence[str]
    top: str = ""  # HTML below the title: warnings and cards


def style_sheet() -> str:
    return resources.files("infercast").joinpath("report/page.css").read_text(encoding="utf-8")


def whole_page(content: Content, command: str = "") -> str:
    """A page without script or network: in any browser, light and dark, on a phone and on paper."""
    by, day, sections = f"infercast {__version__}", f"{today().day} {today():%B %Y}", [*content.sections]
    if content.caveats:
        sections.append(PageSection("caveats", "Caveats", items(content.caveats)))
    typed = f"<p>Command:</p><pre><code>{escape(command)}</code></pre>" if command else ""
    made = typed + facts_list([("version", by), ("date", day)])
    sections.append(PageSection("made", "How this page was made", made, "Command"))
    line = " \u00b7 ".join(f"<span>{part}</span>" for part in ("A forecast, not a measurement", by, day))
    header = (
        f'<header><h1>{escape(content.title)}</h1><p class="lead">{escape(content.lead)}</p>'
        f'<p class="made">{line}</p>{content.top}</header>'
    )
    body, terms = explain_words("\n".join([header, "<main>", *(section.html for section in sections)]))
    if terms:
        rows = [f'<dt>{escape(each.title)}</dt><dd id="term-{each.key}">{escape(each.meaning)}</dd>' for each in terms]
        sections.append(PageSection("glossary", "Glossary", f'<dl class="glossary">{"".join(rows)}</dl>'))
        body = f"{body}\n{sections[-1].html}"
    links = ""
    several = 4  # sections of a page from which on a list of them stands at its top
    if len(sections) >= several:
        links = f'<nav aria-label="Sections">{" ".join(section.link for section in sections)}</nav>'
    return "\n".join(
        [
            "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(content.title)} - infercast</title>", f"<style>\n{style_sheet()}</style></head><body>",
            body.replace("</header>", f"{links}</header>", 1),
            f"</main><footer>A forecast by {by}; nothing on this page was measured.</footer>", "</body></html>\n",
        ]
    )  # fmt: skip
