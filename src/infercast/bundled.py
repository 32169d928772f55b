"""Where the data files of the package are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def read_data(name: str) -> dict[str, Any]:
    """A bundled TOML file by its place among the data."""
    return tomllib.loads(DATA.joinpath(name).read_text(encoding="utf-8"))
