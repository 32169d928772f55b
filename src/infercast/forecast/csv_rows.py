"""Tables that users bring along as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from infercast.errors import FileFormatError


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns; refused with a sentence where it is none."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not a CSV table") from None
    except csv.Error as problem:
        raise FileFormatError(path, f"is not a CSV table: {problem}") from None
    if not rows:
        raise FileFormatError(path, "has no rows below its header")
    for line, row in enumerate(rows, start=2):
        if None in row:  # where DictReader puts what is left over
            raise FileFormatError(path, "has more cells than its header has columns", line=line)
    return rows
