"""The few shapes that all printed results are made of. rich is loaded when they are printed: JSON needs none of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 160
LEAST_WIDTH = 40
"""On a narrower terminal lines run over its edge."""
NOTE_WIDTH = 24
"""A column of notes takes at least this much, so that they are not broken at every word."""
BETWEEN = 2
"""What stands between two columns of a table."""


class Facts:
    """Name and value side by side."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self.rows = list(rows)

    def __rich__(self) -> Table:
        """Called by rich to print it."""
        from rich.table import Table  # noqa: PLC0415 - as said above

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.rows:
            table.add_row(name, styled(value))
        return table


class Grid:
    """A table of numbers. Where it is wider than the terminal its columns come in blocks, so that none is ever cut."""

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int, notes_at: Sequence[int]
    ) -> None:
        self.columns, self.rows = list(columns), [list(row) for row in rows]
        self.text_columns, self.notes_at = text_columns, notes_at
        self.words = {*range(text_columns), *notes_at}
        """Columns that align to the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        blocks = self._blocks(options.max_width)
        for number, block in enumerate(blocks):
            if number:
                yield styled("")
            yield self._table(block)
        if not blocks:
            for number, row in enumerate(self.rows):
                if number:
                    yield styled("")
                yield Facts(zip(self.columns, row, strict=True))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Called by rich for what is put around it."""
        from rich.measure import Measurement  # noqa: PLC0415 - as said above

        natural = sum(map(self._natural, range(len(self.columns)))) + BETWEEN * (len(self.columns) - 1)
        return Measurement(min(LEAST_WIDTH, natural), natural)

    def _blocks(self, room: int) -> list[list[int]]:
        """Which columns stand beside each other; those that say what a row is come first in each block.

        There are none where a single column does not fit beside them: rows then stand one below the other.
        """
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
        least = (min(self._natural(each), NOTE_WIDTH) if each in self.notes_at else self._natural(each)
                 for each in columns)  # fmt: skip
        return sum(least) + BETWEEN * (len(columns) - 1)

    def _natural(self, column: int) -> int:
        from rich.cells import cell_len  # noqa: PLC0415 - as said above

        return max(cell_len(cell) for cell in (self.columns[column], *(row[column] for row in self.rows)))

    def _table(self, columns: Sequence[int]) -> Table:
        """Some of the columns; only notes are ever broken into lines."""
        from rich import box  # noqa: PLC0415 - as said above
        from rich.table import Table  # noqa: PLC0415 - as said above

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for position in columns:
            note = position in self.notes_at
            table.add_column(
                self.columns[position],
                justify="left" if position in self.words else "right",
                no_wrap=not note,
                overflow="fold",
                min_width=None if note else self._natural(position),
            )
        for row in self.rows:
            table.add_row(*(styled(row[position]) for position in columns))
        return table


class Paragraph:
    """Sentences in lines that are easy to read, also on a wide screen."""

    def __init__(self, text: str, width: int, style: str) -> None:
        self.text, self.width, self.style = text, width, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        width = min(options.max_width, self.width)
        yield styled("\n".join(fill(line, width) for line in self.text.splitlines()), style=self.style)


class Section:
    """A heading with something below it."""

    def __init__(self, title: str, body: RenderableType) -> None:
        self.title, self.body = title, body

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        from rich.padding import Padding  # noqa: PLC0415 - as said above

        yield styled(self.title, style="bold cyan")
        yield Padding(self.body, (0, 0, 0, 2), expand=False)


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Name and value side by side."""
    return Facts(rows)


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1, notes_at: Sequence[int] = ()
) -> Grid:
    """A table of numbers: the first ``text_columns`` and those in ``notes_at`` are words, the rest align right."""
    return Grid(columns, rows, text_columns, notes_at)


def section(title: str, body: RenderableType) -> RenderableType:
    """A heading with something below it."""
    return Section(title, body)


def paragraph(text: str, width: int = 78, style: str = "") -> RenderableType:
    """Sentences, one or more to a line of the text, in lines of at most ``width`` characters."""
    return Paragraph(text, width, style)


def styled(text: str, style: str = "") -> Text:
    """Plain text, in one style."""
    from rich.text import Text  # noqa: PLC0415 - as said above

    return Text(text, style=style)


def show(*parts: RenderableType) -> None:
    """Print to standard output: in colour and at its width on a terminal, as plain wide text into a pipe or a file."""
    from rich.console import Console  # noqa: PLC0415 - as said above

    console = Console(highlight=False, emoji=False)
    spaced = [line for part in parts for line in (styled(""), part)][1:]
    if console.is_terminal:
        console.width = max(console.width, LEAST_WIDTH)
        for part in spaced:
            console.print(part)
        return
    console.width = PIPE_WIDTH
    with console.capture() as captured:
        console.print(*spaced, sep="\n")
    for line in captured.get().splitlines():
        print(line.rstrip())
