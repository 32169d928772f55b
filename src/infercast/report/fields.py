"""One declaration for each value of a row: its key in JSON and CSV, and its column in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from infercast.report.files import csv_lines
from infercast.report.terminal import Column


def at(path: str) -> Callable[[Any], Any]:
    """Reads a path of attributes such as ``energy.mean_watts``; None where a part of it is None."""
    names = path.split(".")

    def read(owner: Any) -> Any:
        for name in names:
            if owner is None:
                return None
            owner = getattr(owner, name)
        return owner

    return read


def per(unit: float) -> Callable[[float | None], float | None]:
    """Converts to a unit, such as ``per(MILLI)``; None stays None."""
    return lambda value: None if value is None else value / unit


def any_has(path: str) -> Callable[[Sequence[Any]], bool]:
    """Whether any row has a value at the path."""
    read = at(path)
    return lambda rows: any(read(row) is not None for row in rows)


class Field(NamedTuple):
    """One value of a row."""

    key: str
    """In JSON; empty: in tables only."""
    of: Callable[[Any], Any]
    title: str | None = None
    """Of its column; None: in JSON only."""
    write: Callable[[Any], str] = str
    """A cell; a value of None is a dash."""
    rank: int = 0
    matters: Callable[[Sequence[Any]], bool] = lambda rows: True
    words: bool = False
    """As in `Column`."""
    data: Callable[[Any], Any] = lambda value: value
    """The value as JSON has it."""

    def cell(self, row: Any) -> str:
        value = self.of(row)
        return "-" if value is None else self.write(value)


def record(fields: Iterable[Field], row: Any) -> dict[str, Any]:
    return {each.key: each.data(each.of(row)) for each in fields if each.key}


def columns(fields: Iterable[Field]) -> list[Column]:
    """The columns of a table that fits the terminal."""
    shown = ((each, each.title) for each in fields)
    return [Column(title, each.cell, each.rank, each.matters, each.words) for each, title in shown if title is not None]


def cells(fields: Iterable[Field], rows: Iterable[Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of a table with all columns."""
    shown = columns(fields)
    return [each.title for each in shown], [[each.cell(row) for each in shown] for row in rows]


def csv_of_records(records: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[str]:
    """Records as lines of CSV, percentiles of latencies in columns of their own; ``names`` renames columns."""
    rows = [_one_level(each) for each in records]
    keys = max(rows, key=len)
    yield from csv_lines([names.get(key, key) for key in keys], ([row.get(key) for key in keys] for row in rows))


def _one_level(found: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, Mapping):
            row |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        elif not (value is None and name.endswith("_ms")):
            row[name] = value
    return row
