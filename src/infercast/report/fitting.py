"""A table with as many columns as a terminal has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.report.layout import grid

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

INDENT = 2
UNBOUNDED = 10_000


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cell: Callable[[Any], str]
    rank: int = 0
    """Where a terminal is too narrow, columns of the highest rank are left out first; 0: never."""


class FittingTable:
    """Rows with as many columns as there is room for."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Any]) -> None:
        self._columns, self._rows = columns, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich when the width is known."""
        yield self._fitting(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Called by rich for what is put around it."""
        return console.measure(self._fitting(console, options), options=options)

    def _fitting(self, console: Console, options: ConsoleOptions) -> Table:
        """As many columns as there is room for."""
        from rich.console import Console as AnyConsole  # noqa: PLC0415 - loaded already

        # What is printed to a narrow terminal may be wider than it; this table is not.
        room = min(options.max_width, AnyConsole().width - INDENT) if console.is_terminal else options.max_width
        unbounded = options.update(max_width=UNBOUNDED)
        for most in range(max(column.rank for column in self._columns), 0, -1):
            table = self._table([column for column in self._columns if column.rank <= most])
            if console.measure(table, options=unbounded).maximum <= room:
                return table
        return self._table([column for column in self._columns if not column.rank])

    def _table(self, columns: Sequence[Column]) -> Table:
        rows = [[column.cell(row) for column in columns] for row in self._rows]
        return grid([column.title for column in columns], rows)
