"""Printed results as Markdown, for issues, chats and documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from infercast.report.fitting import FittingTable
from infercast.report.layout import Facts, Grid, Paragraph, Section

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 76
"""Of charts, which are drawn with characters."""


def markdown(parts: Iterable[RenderableType]) -> str:
    """The parts one below the other, with an empty line between them."""
    return "\n\n".join(filter(None, map(_written, parts))) + "\n"


@singledispatch
def _written(part: Any) -> str:
    if hasattr(part, "renderables"):  # a Group of rich
        return "\n\n".join(filter(None, map(_written, part.renderables)))
    if hasattr(part, "plain"):  # a Text of rich
        return "\n\n".join(filter(None, str(part.plain).splitlines()))
    return f"```\n{drawn(part)}\n```"


@_written.register
def _section(part: Section) -> str:
    return f"## {part.title}\n\n{_written(part.body)}"


@_written.register
def _facts(part: Facts) -> str:
    return "\n".join(f"- {name}: {_line(value)}" if name else f"- {_line(value)}" for name, value in part.rows)


@_written.register
def _paragraph(part: Paragraph) -> str:
    return "\n\n".join(part.text.splitlines())


@_written.register
def _fitting(part: FittingTable) -> str:
    return _table(part.whole)


@_written.register
def _table(table: Grid) -> str:
    sides = ["---" if place in table.words else "--:" for place in range(len(table.columns))]
    lines = [table.columns, sides, *table.rows]
    return "\n".join(_row(line) for line in lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_line(cell).replace('|', '&#124;') for cell in cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split()) if "\n" in text else text.rstrip()


def drawn(part: RenderableType) -> str:
    """Whatever else there is, as a pipe would get it."""
    from rich.console import Console  # noqa: PLC0415 - charts alone need it

    console = Console(width=WIDTH, highlight=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
