"""One row per request, as a CSV table."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from infercast.forecast.result import Forecast


def request_rows(forecast: Forecast) -> Iterator[str]:
    """The lines of the table; a cell is empty where there is no such number."""
    columns = forecast.per_request()
    yield ",".join(columns) + "\n"
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield ",".join("" if isnan(cell) else repr(cell) for cell in row) + "\n"
