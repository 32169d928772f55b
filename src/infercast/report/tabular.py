"""A JSON document as rows of a table, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infercast.report.files import csv_lines

ENDS = ("low", "high")
"""Of an interval, which JSON has as a pair."""


def rows_of(document: Any, key: str | tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """A list as its members, what a document has under ``key`` as those, and any other document as one row.

    Of several keys each is a row, and so is each member of a mapping; the first column is then its name.
    """
    if key is None:
        found = [document] if isinstance(document, Mapping) else document
    elif isinstance(key, str):
        found = document[key]
    else:
        found = {name: document[name] for name in key}
    if isinstance(found, Mapping):
        found = [{"name": name, **value} for name, value in found.items()]
    return [flat(row) for row in found]


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """One level of names, such as ``ttft_ms.p50``. Lists of records have no place in a row and are left out."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells |= flat(value, f"{before}{name}.")
        elif _is_interval(f"{before}{name}", value):
            cells |= {f"{before}{name}.{end}": each for end, each in zip(ENDS, value, strict=True)}
        elif isinstance(value, (list, tuple)):
            if not any(isinstance(each, (Mapping, list, tuple)) for each in value):
                cells[f"{before}{name}"] = "; ".join(map(str, value))
        else:
            cells[f"{before}{name}"] = value
    return cells


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every name that any row has, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV, names first; a cell is empty where a row has no value."""
    columns = columns_of(rows)
    return "".join(csv_lines(columns, ([_cell(row.get(name)) for name in columns] for row in rows)))


def _is_interval(name: str, value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == len(ENDS)
    return is_pair and "interval" in name and all(isinstance(each, (int, float)) for each in value)


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
