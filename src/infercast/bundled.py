"""The data files of the package."""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@cache
def read_data(name: str | Path) -> dict[str, Any]:
    """A TOML file, with tuples for lists; reading takes a tenth of a short run, so the result is kept next to it."""
    path = DATA / name
    about = path.stat()
    made_of = [about.st_mtime_ns, about.st_size]
    compiled = cache_from_source(str(path))
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        with open(compiled, "rb") as file:
            *was, values = marshal.loads(file.read())
        if was == made_of:
            return dict(values)
    import tomllib  # noqa: PLC0415 - mostly, nothing has changed

    values = _frozen(tomllib.loads(path.read_text(encoding="utf-8")))
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, ValueError):  # a folder of someone else's; a date, which it cannot hold
            content = marshal.dumps([*made_of, values])
            os.makedirs(os.path.dirname(compiled), exist_ok=True)
            Path(compiled).write_bytes(content)
    return dict(values)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(each) if isinstance(each, (dict, list)) else each for name, each in value.items()}
    return tuple(_frozen(each) if isinstance(each, (dict, list)) else each for each in value)
