"""The side of the browser: numpy learns to count in 64 bits on WebAssembly's 32, and Python answers the page."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from infercast.units import json_text

MAKERS = ("arange", "array", "asarray", "full")
"""Functions that turn Python's integers into those of the machine's width where no type is named."""
TYPES = {"html": "text/html", "csv": "text/csv", "json": "application/json"}


def count_in_64_bits() -> None:
    """Change numpy for this process, where its integers have 32 bits."""
    if np.dtype(np.intp).itemsize >= 8:
        return
    for name in MAKERS:
        setattr(np, name, _widened(getattr(np, name)))
    repeat, bincount = np.repeat, np.bincount

    def repeat_counted(values: Any, repeats: Any, axis: Any = None) -> Any:
        return repeat(values, np.asarray(repeats).astype(np.intp), axis=axis)

    def bincount_counted(values: Any, weights: Any = None, minlength: int = 0) -> Any:
        return bincount(np.asarray(values).astype(np.intp), weights, minlength)

    setattr(np, "repeat", repeat_counted)  # noqa: B010 - types do not allow it otherwise
    setattr(np, "bincount", bincount_counted)  # noqa: B010


def prepare(fetch: Callable[[str], Any]) -> None:
    """Once, before the first question: ``fetch`` gives the bytes of a file next to the page."""
    count_in_64_bits()
    from infercast.predict import fitted as artifact  # noqa: PLC0415 - after the line above

    def open_arrays(path: Path) -> Any:
        """Those of a large archive from pieces next to the page: a note stands for it."""
        content = path.read_bytes()
        is_whole = content.startswith(b"PK")
        file = io.BytesIO(content) if is_whole else PiecedFile(json.loads(content), lambda name: fetch(name).to_bytes())
        return NpzFile(file)

    setattr(artifact, "open_arrays", open_arrays)  # noqa: B010


def respond(call: str, name: str, question: str, tell: Callable[[str], None]) -> str:
    """What the page asks for, JSON in and JSON out: {"result": ...} or {"error": {"type", "message"}}."""
    from infercast.errors import InfercastError  # noqa: PLC0415 - after `count_in_64_bits`
    from infercast.web.answers import answer  # noqa: PLC0415

    document = json.loads(question or "{}")
    try:
        if call == "file":
            result = {**answer("export", {**document, "kind": name}), "type": TYPES[name]}
        else:
            result = answer(name, document, tell)
    except InfercastError as problem:
        return json_text({"error": {"type": type(problem).__name__, "message": str(problem)}})
    return json_text({"result": result})


class PiecedFile(io.BytesIO):
    """A file that is somewhere else; a ``note`` says its size, that of a piece, and what pieces are called."""

    def __init__(self, note: Mapping[str, Any], fetch: Callable[[str], bytes]) -> None:
        super().__init__(bytes(note["size"]))
        self._note, self._fetch, self._have = note, fetch, set[int]()

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, fetched if they are not here yet."""
        place, piece, whole = self.tell(), self._note["piece"], self._note["size"]
        end = whole if size is None or size < 0 else min(place + size, whole)
        for number in {*range(place // piece, -(-end // piece))} - self._have:
            self._have.add(number)
            self.seek(number * piece)
            self.write(self._fetch(f"{self._note['pieces']}-{number}.bin"))
        self.seek(place)
        return super().read(size)


def _widened(make: Callable[..., Any]) -> Callable[..., Any]:
    """The same with 64-bit integers instead of 32-bit ones, unless a type is named."""

    @wraps(make)
    def widened(*args: Any, **keywords: Any) -> Any:
        made = make(*args, **keywords)
        if made.dtype != np.int32 or keywords.get("dtype") is not None or isinstance(args[0], np.ndarray):
            return made  # arrays of this width were asked for by name, mostly as indices
        return made.astype(np.int64)

    return widened
