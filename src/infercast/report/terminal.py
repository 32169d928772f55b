"""Printed results: sections, facts, tables, text charts, what of them fits a screen, and all of them as Markdown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import chain, pairwise, zip_longest
from math import ceil, isfinite, log10
from textwrap import wrap
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from unicodedata import east_asian_width

from infercast.units import MICRO, MILLI

T_contra = TypeVar("T_contra", contravariant=True)
V = TypeVar("V")
W = TypeVar("W")
PIPE_WIDTH = 160
SCREEN, LINES = 100, 40  # columns and lines of a screen, within which every answer fits unless --full is asked for
LEAST_WIDTH = 40  # on a narrower terminal lines run over its edge
BETWEEN, RULE = 2, "─"  # blanks between two columns of a table, and what is drawn below its head
FOLDED = (
    "What was simulated", "As asked for", "Deployment", "Where time goes", "Caveats", "Notes", "Rests on",
    "Kernels: what",
)  # fmt: skip
"""Sections with titles like these are details: collapsed in notebooks, and the first to be left out of a screen."""
FEWER = ((20, 100), (12, 100), (12, 3), (5, 3), (3, 1))  # Most rows of each table and fewest parts, until there is room
HEIGHT = 9  # lines of the area that is drawn in
WIDEST, NARROWEST = 110, 40
BESIDE, BELOW = 36, 76  # least width of each of two charts side by side, and the most for one alone
GAP = 3  # columns between two charts side by side
STYLES = ("cyan", "yellow", "green", "magenta")
WIDTH = 76  # of charts, which are drawn with characters


Line = list[tuple[str, str]]
"""Texts next to each other, each with its style, as ``bold cyan``."""


class Printable(Protocol):
    def lines(self, width: int) -> list[Line]:
        """What is printed where lines have room for this many letters."""


def room_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(each) in "WF") for each in text)


def wrapped(text: str, width: int) -> list[str]:
    every = (wrap(line, max(width, 1), break_on_hyphens=False) or [""] for line in text.splitlines() or [""])
    return [each.rstrip() for lines in every for each in lines]


class Facts:
    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self.rows = list(rows)

    def lines(self, width: int) -> list[Line]:
        names = max((room_of(name) for name, _ in self.rows), default=0)
        found: list[Line] = []
        for name, value in self.rows:
            for number, text in enumerate(wrapped(value, max(width - names - BETWEEN, LEAST_WIDTH // 4))):
                shown = "" if number else name
                found.append([(shown + " " * (names + BETWEEN - room_of(shown)), "dim"), (text, "")])
        return found


def named_first(name: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Rows of `Facts`, the first of which has a name."""
    return [("" if number else name, text) for number, text in enumerate(texts)]


class Grid:
    """A table of words and right-aligned numbers, in blocks of columns where it is wider than the terminal."""

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1,
        notes_at: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.columns, self.rows = list(columns), [list(row) for row in rows]
        self.text_columns, self.notes_at = text_columns, notes_at
        self.words = {*range(text_columns), *notes_at}  # Columns that align to the left

    def lines(self, width: int) -> list[Line]:
        every = range(len(self.columns))
        if self.natural <= width:
            return self._table(every, width)
        if blocks := self._blocks(width):
            return joined([self._table(block, width) for block in blocks])
        return joined([Facts(zip(self.columns, row, strict=True)).lines(width) for row in self.rows])

    @property
    def natural(self) -> int:
        """Letters of a line of the whole table, with nothing broken."""
        return sum(map(self._natural, range(len(self.columns)))) + BETWEEN * (len(self.columns) - 1)

    def _blocks(self, room: int) -> list[list[int]]:
        """Columns of each block, after those that name a row; empty where none fits next to these (rows are lists)."""
        every, keys = range(len(self.columns)), list(range(max(1, self.text_columns)))
        if self._width(list(every)) <= room:
            return [list(every)]
        if self._width(keys) > room // 2:
            keys = keys[:1]
        blocks: list[list[int]] = []
        for column in every[len(keys) :]:
            if self._width([*keys, column]) > room:
                return []
            if not blocks or self._width([*blocks[-1], column]) > room:
                blocks.append(list(keys))
            blocks[-1].append(column)
        return blocks

    def _width(self, columns: Sequence[int]) -> int:
        return sum(map(self._least, columns)) + BETWEEN * (len(columns) - 1)

    def _least(self, column: int) -> int:
        note_width = 24  # a column of notes takes at least this much, so that they are not broken at every word
        return min(self._natural(column), note_width) if column in self.notes_at else self._natural(column)

    def _natural(self, column: int) -> int:
        cells = (self.columns[column], *(row[column] for row in self.rows))
        return max(room_of(line) for cell in cells for line in cell.splitlines() or [""])

    def _table(self, columns: Sequence[int], width: int) -> list[Line]:
        """Notes are broken as far as they have to be, the longest first."""
        sizes = {each: self._natural(each) for each in columns}
        notes = [each for each in columns if sizes[each] > self._least(each)]
        while notes and (over := sum(sizes.values()) + BETWEEN * (len(sizes) - 1) - width) > 0:
            longest = max(notes, key=sizes.__getitem__)
            second = max((sizes[each] for each in notes if sizes[each] < sizes[longest]), default=0)
            sizes[longest] = max(sizes[longest] - over, second - 1, self._least(longest))
            notes = [each for each in notes if sizes[each] > self._least(each)]
        found: list[Line] = []
        for number, row in enumerate((self.columns, *self.rows)):
            cells = [wrapped(row[each], size) if each in self.notes_at else row[each].splitlines() or [""]
                     for each, size in sizes.items()]  # fmt: skip
            for texts in zip_longest(*cells, fillvalue=""):
                padded = []
                for (each, size), text in zip(sizes.items(), texts, strict=True):
                    blanks = " " * (size - room_of(text))
                    padded.append(text + blanks if each in self.words else blanks + text)
                found.append([((" " * BETWEEN).join(padded), "" if number else "bold")])
            if not number:
                found.append([(RULE * (sum(sizes.values()) + BETWEEN * (len(sizes) - 1)), "")])
        return found


class Paragraph:
    """Sentences, one or more to a line of the text, in lines of at most ``width`` characters."""

    def __init__(self, text: str, width: int = 78, style: str = "") -> None:
        self.text, self.width, self.style = text, width, style

    def lines(self, width: int) -> list[Line]:
        return [[(each, self.style)] for each in wrapped(self.text, min(width, self.width))]


class Section:
    def __init__(self, title: str, body: Printable) -> None:
        self.title, self.body = title, body

    def lines(self, width: int) -> list[Line]:
        title: list[Line] = [[(each, "bold cyan")] for each in wrapped(self.title, width)]
        return [*title, *([("  ", ""), *line] for line in self.body.lines(width - 2))]


class Group:
    def __init__(self, *parts: Printable) -> None:
        self.parts = parts

    def lines(self, width: int) -> list[Line]:
        return [line for part in self.parts for line in part.lines(width)]


def styled(text: str, style: str = "") -> Paragraph:
    """A text as wide as the terminal."""
    return Paragraph(text, 10_000, style)


def joined(blocks: Sequence[list[Line]]) -> list[Line]:
    """The lines of all, with an empty one between."""
    return [line for block in blocks for line in ([("", "")], *block)][1:]


def plain(line: Line) -> str:
    text = "".join(text for text, _ in line).rstrip()
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def show(*parts: Printable, width: int = PIPE_WIDTH) -> None:
    """Print to standard output: in colour and at its width on a terminal, as plain text into a pipe or a file."""
    # The second: variables that ask for colours in a pipe, too.
    if sys.stdout.isatty() or {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        from rich.console import Console  # noqa: PLC0415 - pipes need none of it
        from rich.text import Text  # noqa: PLC0415

        console = Console(highlight=False, emoji=False)
        if console.is_terminal:
            room = max(console.width, LEAST_WIDTH)
            for line in joined([part.lines(room) for part in parts]):
                console.print(Text.assemble(*line), soft_wrap=True)
            return
    text = "\n".join(map(plain, joined([part.lines(width) for part in parts])))
    print(text if (sys.stdout.encoding or "utf-8").lower() == "utf-8" else text.replace(RULE, "-"))


def on_screen(parts: Iterable[Printable]) -> list[Printable]:
    """The parts of an answer that fit a screen: without details, charts and rows where it is too long for them."""
    found, left = list(parts), list[str]()
    if _height(found) <= LINES:
        return found
    for name_of in (_detail, _chart):
        if _height(found) >= LINES - 1:
            left += filter(None, map(name_of, found))
            found = [part for part in found if not name_of(part)]
    whole = found
    for most, fewest in FEWER:
        if _height(found) >= LINES - 1:
            found = [_first_rows(part, most) for part in whole]
            left.append("rows of tables")
        while _height(found) >= LINES - 1 and len(found) > fewest:
            left.append("further tables")
            found.pop()
    return [*found, styled(f"left out: {', '.join(dict.fromkeys(left))}; --full prints all", style="dim")]


def _height(parts: Sequence[Printable]) -> int:
    return sum(drawn(part, SCREEN).count("\n") + 2 for part in parts) - 1


def _detail(part: Printable) -> str:
    """The name of a section of details; empty for any other part."""
    title = part.title if isinstance(part, Section) else ""
    return f"{title[:1].lower()}{title[1:]}".partition(":")[0] if title.startswith(FOLDED) else ""


def _chart(part: Printable) -> str:
    return "charts" if isinstance(getattr(part, "body", part), TextCharts) else ""


def _first_rows(part: Any, most: int) -> Any:
    part = copy(part)
    if isinstance(part, Section):
        part.body = _first_rows(part.body, most)
    elif isinstance(part, (Grid, FittingTable, Facts)):
        part.rows = part.rows[:most]
    elif isinstance(part, Group):
        part = Group(*(_first_rows(each, most) for each in part.parts))
    return part


class Series(NamedTuple):
    """One line of a chart; a value that is not a number is left out."""

    name: str
    mark: str
    values: Sequence[float]


class Chart(NamedTuple):
    title: str
    positions: Sequence[float]  # Position of each value, from left to right
    labels: Sequence[str]  # Labels below them, as far as there is room
    series: Sequence[Series]
    write: Callable[[float], str]  # A value on the vertical axis
    limit: float | None = None  # A line across, such as a promise ...
    limit_name: str = "limit"  # ... and its name.
    joined: bool = True  # Whether dots lead from one mark to the next
    from_zero: bool = False


class TextCharts:
    """Charts two by two, or one below the other where the terminal is narrow."""

    def __init__(self, charts: Sequence[Chart], *, columns: int = 2) -> None:
        self._charts, self._columns = charts, columns

    def lines(self, width: int) -> list[Line]:
        width, columns = max(NARROWEST, min(width, WIDEST)), self._columns
        each = (width - GAP * (columns - 1)) // columns
        if columns > 1 and (each < BESIDE or any(len(plain(_heading(chart, each))) > each for chart in self._charts)):
            columns, each = 1, min(width, BELOW)
        rows = []
        for first in range(0, len(self._charts), columns):
            drawn = [draw_chart(chart, each) for chart in self._charts[first : first + columns]]
            rows.append([[*chain.from_iterable((*line, (" " * GAP, "")) for line in beside)][:-1]
                         for beside in zip(*drawn, strict=True)])  # fmt: skip
        return joined(rows)


def draw_chart(chart: Chart, width: int) -> list[Line]:
    """The lines of a chart, all of one width: title, area, axis, labels."""
    low, high, is_log = _range(chart)
    ticks = {row: chart.write(_value(row, low, high, is_log)) for row in (0, HEIGHT // 2, HEIGHT - 1)}
    margin = max(map(len, ticks.values())) + 2
    columns = _columns(chart.positions, width - margin)
    area = [[(" ", "")] * (width - margin) for _ in range(HEIGHT)]
    if chart.limit is not None and low <= chart.limit <= high:
        area[_chart_row(chart.limit, low, high, is_log)] = [("-", "red")] * (width - margin)
    for style, series in zip(STYLES, chart.series, strict=False):
        rows = [_chart_row(value, low, high, is_log) for value in series.values]
        points = [(column, row) for column, row in zip(columns, rows, strict=True) if row >= 0]
        for (left, below), (right, above) in pairwise(points) if chart.joined else ():
            for column in range(left + 1, right):
                row = round(below + (above - below) * (column - left) / (right - left))
                if area[row][column][0] in " -":
                    area[row][column] = (".", style)
        for column, row in points:
            area[row][column] = (series.mark, style)
    lines = [_heading(chart, width)]
    lines += [[(f"{ticks.get(row, ''):>{margin - 2}} |", "dim"), *area[row]] for row in reversed(range(HEIGHT))]
    lines.append([(f"{'':>{margin - 2}} +{'-' * (width - margin)}", "dim")])
    lines.append([(_below(chart.labels, columns, margin, width), "dim")])
    return [_fitted(line, width) for line in lines]


def _fitted(line: Line, width: int) -> Line:
    """The same, cut or filled to a width."""
    found: Line = []
    for text, style in (*line, (" " * width, "")):
        found.append((text[:width], style))
        width -= len(text[:width])
    return found


def _heading(chart: Chart, width: int) -> Line:
    heading = [(chart.title, "bold")]
    for style, series in zip(STYLES, chart.series, strict=False):
        heading += [(f"  {series.mark} {series.name}", style)] if series.name else []
    if chart.limit is not None and len(plain(heading)) + len(chart.limit_name) + 4 <= width:
        heading.append((f"  - {chart.limit_name}", "red"))
    return heading


def _range(chart: Chart) -> tuple[float, float, bool]:
    values = [value for series in chart.series for value in series.values if isfinite(value)]
    if not values:
        return 0.0, 1.0, False
    low, high = min(values), max(values)
    if chart.limit is not None and chart.limit < 5 * high:
        low, high = min(low, chart.limit), max(high, chart.limit)
    logarithmic_from = 20.0  # values that differ by more than this factor have a logarithmic axis
    is_log = not chart.from_zero and low > 0 and high > logarithmic_from * low
    low = low if is_log else 0.0
    return low, high if high > low else low + 1.0, is_log


def _value(row: int, low: float, high: float, is_log: bool) -> float:
    share = row / (HEIGHT - 1)
    return float(low * (high / low) ** share) if is_log else low + share * (high - low)


def _chart_row(value: float, low: float, high: float, is_log: bool) -> int:
    if not isfinite(value):
        return -1
    share = log10(max(value, low) / low) / log10(high / low) if is_log else (value - low) / (high - low)
    return round(min(1.0, max(0.0, share)) * (HEIGHT - 1))


def _columns(positions: Sequence[float], width: int) -> list[int]:
    """Where values stand: the first and the last a column from the edges."""
    low, high = min(positions), max(positions)
    if high <= low:
        return [width // 2] * len(positions)
    return [1 + round((position - low) / (high - low) * (width - 3)) for position in positions]


def _below(labels: Sequence[str], columns: Sequence[int], margin: int, width: int) -> str:
    """Labels below their columns, as many as there is room for; the last one is always there."""
    line, end = [" "] * (width + 1), 0
    shown = [
        (min(max(0, margin + at - ceil(len(label) / 2) + 1), width - len(label)), label)
        for label, at in zip(labels, columns, strict=True)
        if label
    ]
    for begin, label in shown:
        if begin >= end and ((begin, label) == shown[-1] or begin + len(label) < shown[-1][0]):
            line[begin : begin + len(label)] = label
            end = begin + len(label) + 1
    return "".join(line).rstrip()


def at(path: str) -> Callable[[Any], Any]:
    """Reads a path of attributes such as ``energy.mean_watts``; None where a part of it is None. Empty: the owner."""
    names = path.split(".") if path else []

    def read(owner: Any) -> Any:
        for name in names:
            if owner is None:
                return None
            owner = getattr(owner, name)
        return owner

    return read


def in_ms(seconds: float) -> float:
    return seconds / MILLI


def in_us(seconds: float) -> float:
    return seconds / MICRO


class Field(Generic[T_contra]):
    """One value of a row: under a key of JSON, in a column of tables, or both; None is null or a dash."""

    def __init__(
        self,
        key: str,  # Empty: in tables only
        of: Callable[[T_contra], V | None],
        title: str | None = None,  # Of its column; None: in JSON only
        write: Callable[[V], str] = str,
        rank: int = 0,  # Where a terminal is too narrow, columns of the highest rank are left out first; 0: never
        *,
        data: Callable[[V], Any] | None = None,  # The value as JSON has it; None: as it is
        words: bool = False,  # Aligned to the left
        matters: Callable[[Sequence[T_contra]], bool] | None = None,  # Whether any row needs it
    ) -> None:
        self.key, self.title, self.rank, self.words = key, title, rank, words
        self.of: Callable[[T_contra], Any] = of
        self._write: Callable[[Any], str] = write
        self._data: Callable[[Any], Any] | None = data
        self._matters = matters

    def cell(self, row: T_contra) -> str:
        value = self.of(row)
        return "-" if value is None else self._write(value)

    def plain(self, row: T_contra) -> Any:
        value = self.of(row)
        return value if value is None or self._data is None else self._data(value)

    def within(self, part: Callable[[W], T_contra | None]) -> Field[W]:
        """The same of what this is a part of; no value where it has no such part."""
        whole: Field[Any] = copy(self)
        whole.of = lambda row: None if (found := part(row)) is None else self.of(found)
        return whole

    def is_column(self, rows: Sequence[T_contra]) -> bool:
        return self.title is not None and (self._matters is None or self._matters(rows))


def any_has(of: Callable[[T_contra], object]) -> Callable[[Sequence[T_contra]], bool]:
    return lambda rows: any(of(row) is not None for row in rows)


def record(fields: Iterable[Field[T_contra]], row: T_contra) -> dict[str, Any]:
    return {each.key: each.plain(row) for each in fields if each.key}


def cells(fields: Iterable[Field[T_contra]], rows: Iterable[T_contra]) -> tuple[list[str], list[list[str]]]:
    shown = [(each.title, each) for each in fields if each.title is not None]
    return [title for title, _ in shown], [[each.cell(row) for _, each in shown] for row in rows]


def pick(owner: Any, names: str = "", **paths: str) -> dict[str, Any]:
    """Attributes as plain data by name, or by the path that each key has: ``gpus model=spec.name``."""
    keys = {key: path or key for key, _, path in (name.partition("=") for name in names.split())}
    return {key: at(path)(owner) for key, path in (keys | paths).items()}


class FittingTable:
    """Rows with as many columns as there is room for."""

    def __init__(self, fields: Iterable[Field[T_contra]], rows: Sequence[T_contra]) -> None:
        self._columns: list[Field[Any]] = [each for each in fields if each.is_column(rows)]
        self.rows: Sequence[Any] = rows

    def lines(self, width: int) -> list[Line]:
        shown = self._fitting(width)
        found = self._table(shown).lines(width)
        if left_out := [self._name(each) for each in self._columns if each not in shown]:
            words = f"not shown at this width: {', '.join(left_out)}; --format csv has all"
            found += [[(each, "dim")] for each in wrapped(words, width)]
        return found

    def _name(self, column: Field[Any]) -> str:
        """Its title; where several have it, of which column before it: ``80 % of TTFT``."""
        titles = [str(each.title) for each in self._columns]
        if titles.count(str(column.title)) == 1:
            return str(column.title)
        before = titles[: self._columns.index(column)]
        return f"{column.title} of {next(title for title in reversed(before) if titles.count(title) == 1)}"

    @property
    def whole(self) -> Grid:
        return self._table(self._columns)

    def _fitting(self, width: int) -> Sequence[Field[Any]]:
        for most in range(max(column.rank for column in self._columns), 0, -1):
            columns = [column for column in self._columns if column.rank <= most]
            if self._table(columns).natural <= width:
                return columns
        return [column for column in self._columns if not column.rank]

    def _table(self, columns: Sequence[Field[Any]]) -> Grid:
        words = [place for place, column in enumerate(columns) if column.words]
        return Grid(*cells(columns, self.rows), notes_at=words)


class Renderers(NamedTuple):
    """The functions that write an answer of one kind; the module of each kind has them in its ``RENDERERS``."""

    document: Callable[..., Any]
    tables: Callable[[Any], Sequence[Printable]]
    rows: str | None = None  # The key of the document under which the rows of a table are
    csv: Callable[[Any], Iterable[str]] | None = None  # Lines of the table that ``--csv`` writes
    brief: Callable[[Any], Sequence[Printable]] | None = None
    """The answer on one screen, where it is more than the first of the tables."""


def markdown(parts: Iterable[Printable]) -> str:
    return "\n\n".join(filter(None, map(_written, parts))) + "\n"


def _written(part: Any) -> str:
    match part:
        case Section():
            text = f"## {part.title}\n\n{_written(part.body)}"
        case Facts():
            text = "\n".join(f"- {name}: {_line(value)}" if name else f"- {_line(value)}" for name, value in part.rows)
        case Paragraph():
            text = "\n\n".join(filter(None, part.text.splitlines()))
        case FittingTable():
            text = _written(part.whole)
        case Grid():
            sides = ["---" if place in part.words else "--:" for place in range(len(part.columns))]
            text = "\n".join(_row(line) for line in [part.columns, sides, *part.rows])
        case Group():
            text = "\n\n".join(filter(None, map(_written, part.parts)))
        case _:
            text = f"```\n{drawn(part)}\n```"
    return text


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_line(cell).replace('|', '&#124;') for cell in cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split()) if "\n" in text else text.rstrip()


def drawn(part: Printable, width: int = WIDTH) -> str:
    return "\n".join(map(plain, part.lines(width)))
