"""Answers kept in a file as they come, so that a search that was stopped goes on where it was.

One line of JSON for each answer, under a hash of what was asked: the function with all that it was given (a question),
the item (a candidate), and this package's own files. A file may serve many questions. A last line that was torn by
whatever stopped the search is cut off, and its work is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from infercast.bundled import DATA
from infercast.errors import InputError
from infercast.forecast.plan.plain import from_plain, to_plain
from infercast.forecast.plan.workers import Executor

Item = TypeVar("Item")
Answer = TypeVar("Answer")

KINDS = (".py", ".toml", ".json", ".npz")
"""Files that answers hang on: code, GPUs, models, engines and what was fitted."""


class Resumed:
    """An executor that does not do again what a file has the answer of."""

    def __init__(self, executor: Executor, path: Path) -> None:
        self._executor, self._path = executor, path
        self._known = _read(path)
        self.num_known = len(self._known)
        """Answers that the file had."""

    @property
    def width(self) -> int:
        """Of those who do the work."""
        return self._executor.width

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items."""
        every = list(items)
        asked = _digest([_package(), to_plain(function)])
        keys = [_digest([asked, to_plain(item)]) for item in every]
        missing = {key: item for key, item in zip(keys, every, strict=True) if key not in self._known}
        made = self._executor.map(function, list(missing.values()))
        order = iter(missing)
        for key in keys:
            while key not in self._known:
                self._keep(next(order), next(made))
            yield from_plain(self._known[key])

    def _keep(self, key: str, answer: Any) -> None:
        """A whole line at a time, written through to the disk."""
        self._known[key] = plain = to_plain(answer)
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps({"key": key, "answer": plain}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise InputError(f"{self._path} cannot be written: {problem.strerror or problem}") from None


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, separators=(",", ":")).encode()).hexdigest()[:32]


@cache
def _package() -> str:
    """A hash of code and data: other ones may give other answers."""
    found, root = hashlib.sha256(), DATA.parent
    for path in sorted(each for each in root.rglob("*") if each.suffix in KINDS and each.is_file()):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Answers by key. A last line without an end is cut off, so that the next one begins a line of its own."""
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError(f"--resume {path} needs the folder {path.parent}, which does not exist")
        return {}
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        known = [_entry(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except OSError as problem:
        raise InputError(f"--resume {path} cannot be read: {problem.strerror or problem}") from None
    return dict(known)


def _entry(path: Path, number: int, line: bytes) -> tuple[str, Any]:
    try:
        entry = json.loads(line)
        return entry["key"], entry["answer"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"--resume {path}, line {number} is no answer of an earlier search; name another file, or one that does "
            "not exist yet"
        ) from None
