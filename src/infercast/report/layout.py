"""The few shapes that all printed results are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 160


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Name and value side by side."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1, notes_at: Sequence[int] = ()
) -> Table:
    """A table of numbers: the first ``text_columns`` and those in ``notes_at`` are words, the rest align right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for position, name in enumerate(columns):
        words = position < text_columns or position in notes_at
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def section(title: str, body: RenderableType) -> RenderableType:
    """A heading with something below it."""
    return Group(Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2)))


def show(*parts: RenderableType) -> None:
    """Print to standard output: in colour on a terminal, as plain wide text into a pipe or a file."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    plain = Console(highlight=False, width=PIPE_WIDTH, no_color=True, file=StringIO())
    plain.print(*parts, sep="\n")
    for line in plain.file.getvalue().splitlines():  # type: ignore[attr-defined]
        print(line.rstrip())
