"""Answers of earlier commands, kept on disk: a question that is asked again is not computed again.

An answer is found by all that it depends on: the words of the command, the files that they name, the terminal, and the
files of this package. A damaged entry is written anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TextIO

from infercast.units import json_text

VARIABLE, FLAG = "INFERCAST_CACHE", "--no-cache"  # A folder, or ``off``; and the option that leaves it out once
COMMANDS = (
    *("simulate", "sweep", "layouts", "explain-command", "speculate", "energy", "capacity", "disaggregate", "plan"),
)  # Those that take longer than to look for them
WRITING = (
    *("--report", "--trace-out", "--requests-out", "--save-result", "--plot", "--csv", "--export-autoscaler", "--out"),
    *("--resume", "--ray"),
)  # Options that do more than print
MOST_FILES, MOST_BYTES = 500, 32 * 2**20
SHOWING = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LANG", "LC_ALL", "PYTHONIOENCODING", "INFERCAST_TIME_LIMIT")


class Kept(NamedTuple):
    notes: list[str]  # On standard error
    text: str  # On standard output


def folder_of_answers() -> Path | None:
    """Where answers are kept on this machine; None where they are not to be."""
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        return None if asked.lower() in ("", "0", "off", "no") else Path(asked)
    usual = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return (Path(usual) if usual else Path.home() / ".cache") / "infercast"
    except RuntimeError:  # no home
        return None


def place_of(arguments: Sequence[str]) -> Path | None:
    """The file of an answer; None for commands of which none is kept."""
    if not arguments or arguments[0] not in COMMANDS or {"-", "-h", "--help", FLAG} & {*arguments}:
        return None
    folder = folder_of_answers()
    if folder is None or any(word.partition("=")[0] in WRITING for word in arguments):
        return None
    with suppress(OSError):
        return folder / f"{_digest([list(arguments), [*_named(arguments)], _terminal(), _package()])}.json"
    return None


def _digest(plain: object) -> str:
    return sha256(json_text(plain).encode()).hexdigest()


def _named(arguments: Sequence[str]) -> Iterator[list[object]]:
    parts = (part for word in arguments for part in dict.fromkeys([word, *re.split(r"[\s,=]+", word)]) if part)
    for part in parts:
        if len(part) < 4096 and "\0" not in part and os.path.lexists(part):
            path = Path(part).absolute()
            for each in [path, *(sorted(path.iterdir()) if path.is_dir() else ())]:
                yield _state(str(each), each.stat())


def _state(name: str, found: os.stat_result) -> list[object]:
    return [name, found.st_size, found.st_mtime_ns]


def _terminal() -> list[object]:
    size = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return [size, sys.stdout.encoding, sys.stderr.isatty(), *(os.environ.get(name) for name in SHOWING)]


@cache
def _package() -> list[list[object]]:
    """All files of this package, and what it computes and prints with: any other one may give another answer."""
    return [[sys.version], *_files()]


def _files() -> Iterator[list[object]]:
    for name in ("numpy", "rich"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            yield _state(spec.origin, os.stat(spec.origin))
    folders = [str(Path(__file__).parent.parent)]
    while folders:
        with os.scandir(folders.pop()) as inside:
            for each in sorted(inside, key=lambda entry: entry.name):
                if each.is_dir():
                    folders += [] if each.name == "__pycache__" else [each.path]
                else:
                    yield _state(each.path, each.stat())


def find(place: Path) -> Kept | None:
    try:
        entry = json.loads(place.read_text(encoding="utf-8"))
        notes, text = entry["notes"], entry["text"]
        if entry["digest"] != _digest([notes, text]):
            return None
        os.utime(place)  # the last used one goes last
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Kept(notes, text)


def keep(place: Path, notes: Sequence[str], text: str) -> None:
    """Write an answer at once, whole or not at all, and drop those that were used longest ago."""
    entry = {"notes": list(notes), "text": text, "digest": _digest([list(notes), text])}
    _write(place, json_text(entry).encode())


def _write(place: Path, content: bytes) -> None:
    if len(content) > MOST_BYTES // 4:
        return
    new = place.with_name(f"{place.stem}.{os.getpid()}.new")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            new.write_bytes(content)
            new.replace(place)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        _tidy(place.parent)


def keeping_tables(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Kernels that were timed for one question are not timed again for the next, with another rate or SLO."""
    folder = folder_of_answers()
    if folder is None or not arguments or arguments[0] not in COMMANDS or FLAG in arguments:
        return nullcontext()
    from infercast.engines.tables import kept_by  # noqa: PLC0415 - other commands need no engine

    def read(name: str) -> bytes:
        with suppress(OSError):
            os.utime(folder / f"{name}.tables")
            return (folder / f"{name}.tables").read_bytes()
        return b""

    return kept_by(_package(), read, lambda name, content: _write(folder / f"{name}.tables", content))


def _tidy(folder: Path) -> None:
    with os.scandir(folder) as inside:
        found = [(each.stat(), each.path) for each in inside if each.name.endswith((".json", ".new", ".tables"))]
    found.sort(key=lambda each: each[0].st_mtime)
    size = sum(each.st_size for each, _ in found)
    for number, (each, path) in enumerate(found):
        if len(found) - number <= MOST_FILES and size <= MOST_BYTES:
            return
        with suppress(OSError):
            os.unlink(path)
        size -= each.st_size


class _Copied:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self.parts = stream, list[str]()

    def write(self, text: str) -> int:
        self.parts.append(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def copied() -> Iterator[list[str]]:
    before = sys.stdout
    sys.stdout = copy = _Copied(before)
    try:
        yield copy.parts
    finally:
        sys.stdout = before
