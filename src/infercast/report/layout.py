"""The few shapes that all printed results are made of. rich is loaded by the first of them: JSON needs none of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 160
# On a narrower terminal lines run over its edge, and where a table needs more its lines do: no digit is ever cut off.
LEAST_WIDTH = 80
WIDE = 100
"""What a table has that does not fit a terminal anyway: enough that its notes are not broken at every word."""


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Name and value side by side."""
    from rich.table import Table  # noqa: PLC0415 - as said above

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, styled(value))
    return table


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1, notes_at: Sequence[int] = ()
) -> Table:
    """A table of numbers: the first ``text_columns`` and those in ``notes_at`` are words, the rest align right.

    Only notes are ever broken into lines.
    """
    from rich import box  # noqa: PLC0415 - as said above
    from rich.cells import cell_len  # noqa: PLC0415 - as said above
    from rich.table import Table  # noqa: PLC0415 - as said above

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    written = [list(row) for row in rows]
    for position, name in enumerate(columns):
        note = position in notes_at
        words = note or position < text_columns
        table.add_column(
            name,
            justify="left" if words else "right",
            no_wrap=not note,
            overflow="fold",
            min_width=None if note else max(cell_len(cell) for cell in (name, *(row[position] for row in written))),
        )
    for row in written:
        table.add_row(*(styled(cell) for cell in row))
    return table


def styled(text: str, style: str = "") -> Text:
    """Plain text, in one style."""
    from rich.text import Text  # noqa: PLC0415 - as said above

    return Text(text, style=style)


def section(title: str, body: RenderableType) -> RenderableType:
    """A heading with something below it."""
    from rich.console import Group  # noqa: PLC0415 - as said above
    from rich.padding import Padding  # noqa: PLC0415 - as said above

    return Group(styled(title, style="bold cyan"), Padding(body, (0, 0, 0, 2), expand=False))


def show(*parts: RenderableType) -> None:
    """Print to standard output: in colour on a terminal, as plain wide text into a pipe or a file."""
    from rich.console import Console  # noqa: PLC0415 - as said above
    from rich.measure import Measurement  # noqa: PLC0415 - as said above

    console = Console(highlight=False, emoji=False)
    spaced = [line for part in parts for line in (styled(""), part)][1:]
    if console.is_terminal:
        least, unbound = max(console.width, LEAST_WIDTH), console.options.update(width=PIPE_WIDTH)
        for part in spaced:
            needed = Measurement.get(console, unbound, part).minimum
            console.width = least if needed <= least else max(needed, WIDE)
            console.print(part)
        return
    console.width = PIPE_WIDTH
    with console.capture() as captured:
        console.print(*spaced, sep="\n")
    for line in captured.get().splitlines():
        print(line.rstrip())
