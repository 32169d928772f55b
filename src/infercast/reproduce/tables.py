"""Tables of figures: columns and rows of words and numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from infercast.errors import InputError

Cell = str | float | None


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def cell(self, row: str, column: str) -> Cell:
        """The cell of a row that begins with these words, with bars between those of several columns."""
        words, place = row.split("|"), list(self.columns).index(column)
        for cells in self.rows:
            if [str(cell) for cell in cells[: len(words)]] == words:
                return cells[place]
        raise InputError(f"there is no row {row}")

    def only(self, places: Sequence[int], keep: Sequence[str]) -> Table:
        """The same with some of its columns, and with rows that have one of some values in a column."""
        shown = places or range(len(self.columns))
        rows = self.rows
        if keep:
            at = list(self.columns).index(keep[0])
            rows = [row for row in rows if row[at] in keep[1:]]
        return Table([self.columns[place] for place in shown], [[row[place] for place in shown] for row in rows])

    def with_median(self, name: str) -> Table:
        """The same with a last row of the medians of its columns."""
        columns = (
            [value for row in self.rows if (value := number(row[place])) is not None]
            for place in range(1, len(self.columns))
        )
        return Table(self.columns, [*self.rows, [name, *(median(each) for each in columns)]])

    @property
    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def number(cell: Cell) -> float | None:
    """The first number of a cell, such as the mean of ``mean / median / 90th percentile``."""
    if cell is None or isinstance(cell, float | int):
        return cell
    found = re.match(r"[-+]?\d[\d,]*\.?\d*", cell)
    return None if found is None else float(found[0].replace(",", ""))


def written(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if isinstance(cell, int) or abs(cell) >= 1000 else f"{cell:.3g}"
