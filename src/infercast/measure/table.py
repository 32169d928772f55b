"""Where a sweep keeps its rows: whole batches as they come, one parquet file a family in the end."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write to {folder}: {problem.strerror}") from None

    def append(self, rows: Sequence[Row]) -> None:
        """Keep a batch."""
        if not rows:
            return
        number = len(list(self._parts.glob("*.jsonl")))
        path = self._parts / f"{number:05d}.jsonl"
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(temporary, path)

    def rows(self) -> Iterable[Row]:
        """All rows of all batches so far."""
        for path in sorted(self._parts.glob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    raise FileFormatError(path, f"line {number + 1} is not JSON; remove the file to go on") from None

    def done(self) -> set[str]:
        """Keys of the cases that have a row."""
        return {row["key"] for row in self.rows()}

    def write_tables(self) -> dict[str, int]:
        """One parquet file a family; returns how many rows each has."""
        try:
            import pandas  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            raise InputError("writing tables needs pandas and pyarrow: pip install 'infercast[measure]'") from None
        by_family: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows():
            by_family[row["family"]].append({k: v for k, v in row.items() if k not in ("family", "key")})
        for family, rows in by_family.items():
            table = pandas.DataFrame(rows)
            temporary = self.folder / f"{family}.parquet.part"
            table.to_parquet(temporary, compression="zstd", index=False)
            os.replace(temporary, self.folder / f"{family}.parquet")
        return {family: len(rows) for family, rows in by_family.items()}


def write_meta(folder: Path, facts: dict[str, Any]) -> None:
    """``meta.toml``: what was measured, on what, how and when."""
    lines = []
    for name, value in facts.items():
        text = json.dumps(value) if isinstance(value, str | bool | int | float) else json.dumps(str(value))
        lines.append(f"{name} = {text}\n")
    temporary = folder / "meta.toml.part"
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, folder / "meta.toml")
