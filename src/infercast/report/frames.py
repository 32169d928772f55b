"""Tables of pandas or polars, neither of which is one of our dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from infercast.errors import InputError
from infercast.report.tabular import columns_of

LIBRARIES = ("pandas", "polars")


def frame_of_rows(rows: Sequence[Mapping[str, Any]], library: str | None = None) -> Any:
    """A data frame with a row for each of these; a name that a row does not have is missing there."""
    return frame_of_columns({name: [row.get(name) for row in rows] for name in columns_of(rows)}, library)


def frame_of_columns(columns: Mapping[str, Any], library: str | None = None) -> Any:
    """A data frame of lists or arrays by their names."""
    return _library(library).DataFrame(dict(columns))


def _library(name: str | None) -> Any:
    """The library that is asked for, or the first that is there."""
    if name is not None and name not in LIBRARIES:
        raise InputError(f"library must be {' or '.join(LIBRARIES)}, not {name!r}")
    for each in LIBRARIES if name is None else (name,):
        try:
            return import_module(each)
        except ImportError:
            continue
    wanted = "pandas or polars" if name is None else name
    raise InputError(f"to_frame needs {wanted}: pip install {name or LIBRARIES[0]}; to_dict() gives plain data without")
