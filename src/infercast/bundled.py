"""The data files of the package."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@cache
def read_data(name: str) -> dict[str, Any]:
    """What a TOML file among them says, read once; lists are tuples, as in records that hold them."""
    values: dict[str, Any] = _frozen(tomllib.loads((DATA / name).read_text(encoding="utf-8")))
    return values


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(each) if isinstance(each, (dict, list)) else each for name, each in value.items()}
    return tuple(_frozen(each) if isinstance(each, (dict, list)) else each for each in value)
