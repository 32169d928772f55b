"""Files that appear whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from infercast.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder to write to; the file gets its own name when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(pieces)


def csv_lines(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """The lines of a table; a cell is empty where there is no value."""
    line = StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in chain([columns], rows):
        writer.writerow(["" if cell is None else cell for cell in row])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def one_level(found: dict[str, Any]) -> dict[str, Any]:
    """A document with percentiles of latencies under names of their own, such as ``ttft_p50_ms``."""
    row: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict) and name.endswith("_ms"):
            row |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        elif not (value is None and name.endswith("_ms")):
            row[name] = value
    return row


def write_in_folder(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot write to {path}: {problem.strerror}") from None
    write_whole(path, [text])


def check_writable(path: Path, option: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a file that could not be written or would not be recognised, before a long run and not after it."""
    if path.suffix not in suffixes:
        raise InputError(f"{option} {path} must end in {' or '.join(suffixes)}")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"needs the folder {path.parent}, which does not exist"
        raise InputError(f"{option} {path} {what}")


def today() -> date:
    """The day that pages say they were made on, in UTC; SOURCE_DATE_EPOCH sets it, so that pages can be made again."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        moment = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError(f"SOURCE_DATE_EPOCH must be seconds since 1970, not {given!r}") from None
    return moment.date()
