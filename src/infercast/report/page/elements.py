"""Pieces that pages are made of: sections, tables and lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from infercast.forecast.result import Forecast
from infercast.report.by_part import CLASS_COLUMNS, TURN_COLUMNS, class_cells, session_rows, turn_cells


def section(name: str, title: str, body: str) -> str:
    """A part of a page under a title."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}</section>'


def facts_list(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of each."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in rows)}</dl>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: tuple[int, ...] = (0,)) -> str:
    """A table of cells that are HTML already; the columns in ``words`` hold text."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["words" if position in words else "number" for position in range(len(row))]
        return "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, row, strict=True))

    head, body = cells("th", columns), "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def part_sections(forecast: Forecast) -> list[str]:
    """Turns and classes, where a workload has any."""
    sections = []
    if (sessions := forecast.sessions) is not None:
        turns = table(TURN_COLUMNS, [list(map(escape, row)) for row in turn_cells(sessions)])
        sections.append(section("sessions", "Sessions", facts_list(session_rows(sessions)) + turns))
    if classes := forecast.classes:
        rows = [list(map(escape, row)) for row in class_cells(classes)]
        sections.append(section("classes", "Classes", table(CLASS_COLUMNS, rows, words=(0, 7))))
    return sections
