"""Printed results as HTML for notebooks: plain tables in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any

from infercast.report.fitting import FittingTable
from infercast.report.layout import Facts, Grid, Paragraph, Section
from infercast.report.markdown import drawn

if TYPE_CHECKING:
    from rich.console import RenderableType

FOLDED = ("What was simulated", "Deployment", "Where time goes", "Caveats", "Notes", "Rests on", "Kernels: what")
"""Sections that begin so are closed until somebody opens them."""
LEFT, RIGHT = ' style="text-align:left"', ' style="text-align:right"'


def html(title: str, parts: Iterable[RenderableType]) -> str:
    """One element: the title and the parts below it."""
    body = "".join(map(_written, parts))
    return f'<div class="infercast"><p><b>{escape(title)}</b></p>{body}</div>'


@singledispatch
def _written(part: Any) -> str:
    if hasattr(part, "renderables"):  # a Group of rich
        return "".join(map(_written, part.renderables))
    if hasattr(part, "plain"):  # a Text of rich
        return _lines(str(part.plain))
    return f"<pre>{escape(drawn(part))}</pre>"


@_written.register
def _section(part: Section) -> str:
    is_open = "" if part.title.startswith(FOLDED) else " open"
    return f"<details{is_open}><summary>{escape(part.title)}</summary>{_written(part.body)}</details>"


@_written.register
def _facts(part: Facts) -> str:
    rows = (f"<tr><th{LEFT}>{escape(name)}</th><td{LEFT}>{escape(value)}</td></tr>" for name, value in part.rows)
    return f"<table>{''.join(rows)}</table>"


@_written.register
def _paragraph(part: Paragraph) -> str:
    return _lines(part.text)


@_written.register
def _fitting(part: FittingTable) -> str:
    return _table(part.whole)


@_written.register
def _table(part: Grid) -> str:
    sides = [LEFT if place in part.words else RIGHT for place in range(len(part.columns))]
    head = "".join(f"<th{side}>{escape(name)}</th>" for side, name in zip(sides, part.columns, strict=True))
    rows = (
        "".join(f"<td{side}>{_cell(cell)}</td>" for side, cell in zip(sides, row, strict=True)) for row in part.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _cell(text: str) -> str:
    """Names of parts keep the blanks that they are indented by."""
    indent = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * indent + escape(text.lstrip(" "))


def _lines(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines() if line)
