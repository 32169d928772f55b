"""A table with as many columns as a terminal has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.report.layout import Grid, grid, styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

UNBOUNDED = 10_000


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cell: Callable[[Any], str]
    rank: int = 0
    """Where a terminal is too narrow, columns of the highest rank are left out first; 0: never."""
    matters: Callable[[Sequence[Any]], bool] = lambda rows: True
    """Whether any of the rows has something to say here."""
    words: bool = False
    """Aligned to the left."""


class FittingTable:
    """Rows with as many columns as there is room for."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Any]) -> None:
        self._columns, self._rows = [each for each in columns if each.matters(rows)], rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        shown = self._fitting(console, options)
        yield self._table(shown)
        if left_out := [self._name(each) for each in self._columns if each not in shown]:
            yield styled(f"not shown at this width: {', '.join(left_out)}; --format csv has all", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Called by rich for what is put around it."""
        return console.measure(self._table(self._fitting(console, options)), options=options)

    def _name(self, column: Column) -> str:
        """Its title; where several have it, of which column before it: ``80 % of TTFT``."""
        titles = [each.title for each in self._columns]
        if titles.count(column.title) == 1:
            return column.title
        before = titles[: self._columns.index(column)]
        return f"{column.title} of {next(title for title in reversed(before) if titles.count(title) == 1)}"

    @property
    def whole(self) -> Grid:
        """The table with all its columns."""
        return self._table(self._columns)

    def _fitting(self, console: Console, options: ConsoleOptions) -> Sequence[Column]:
        """As many columns as there is room for."""
        unbounded = options.update(max_width=UNBOUNDED)
        for most in range(max(column.rank for column in self._columns), 0, -1):
            columns = [column for column in self._columns if column.rank <= most]
            if console.measure(self._table(columns), options=unbounded).maximum <= options.max_width:
                return columns
        return [column for column in self._columns if not column.rank]

    def _table(self, columns: Sequence[Column]) -> Grid:
        rows = [[column.cell(row) for column in columns] for row in self._rows]
        words = [place for place, column in enumerate(columns) if column.words]
        return grid([column.title for column in columns], rows, notes_at=words)
