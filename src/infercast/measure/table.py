"""Where a sweep keeps its rows: whole batches as they come, one parquet file a family in the end."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infercast.errors import FileFormatError, InputError

Row = dict[str, Any]
PARTS = "parts"


class Store:
    """The folder of one GPU's rows. A batch is there wholly or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = folder / PARTS
        if not self._parts.exists() and any(folder.glob("*.parquet")):
            raise InputError(f"{folder} holds finished tables that would be replaced; choose another --out")
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write to {folder}: {problem.strerror}") from None

    def append(self, rows: Sequence[Row]) -> None:
        """Keep a batch."""
        if not rows:
            return
        number = max((int(path.stem) for path in self._parts.glob("*.jsonl")), default=-1) + 1
        path = self._parts / f"{number:05d}.jsonl"
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(temporary, path)

    def rows(self) -> Iterator[Row]:
        """All rows of all batches so far."""
        for path in sorted(self._parts.glob("*.jsonl")):
            text = path.read_text(encoding="utf-8", errors="replace")
            yield from (_read(line, path, number) for number, line in enumerate(text.splitlines(), start=1))

    def done(self) -> set[str]:
        """Keys of the cases that have a row."""
        return {row["key"] for row in self.rows()}

    def write_tables(self) -> dict[str, int]:
        """One parquet file a family (or a row's own ``table``); returns how many rows each has."""
        pandas = require_pandas()
        tables: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows():
            name: str = row["table"] if "table" in row else row["family"]
            inner = {"key", "table"} if "table" in row else {"key", "family"}
            tables[name].append({column: value for column, value in row.items() if column not in inner})
        for name, rows in tables.items():
            temporary = self.folder / f"{name}.parquet.part"
            pandas.DataFrame(rows).to_parquet(temporary, compression="zstd", index=False)
            os.replace(temporary, self.folder / f"{name}.parquet")
        return {name: len(rows) for name, rows in tables.items()}


def _read(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not {"key", "family"} <= set(row):
        raise FileFormatError(path, "is not a row of a sweep; remove the file to measure its rows again", number)
    return row


def require_pandas() -> Any:
    """Pandas with its parquet, or one sentence that says what is missing."""
    try:
        import pandas  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise InputError("writing tables needs pandas and pyarrow: pip install 'infercast[measure]'") from None
    return pandas
