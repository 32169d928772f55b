"""Where data comes from, in a form that can be checked."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from infercast.fit.sweeps import read_families, sweep_folders
from infercast.fit.tables import FILES

PACKAGES = ("infercast", "numpy", "catboost", "pandas", "pyarrow")


def table_hashes(folder: Path, families: Sequence[str]) -> dict[str, str]:
    """A hash of each published table that was read."""
    paths = {FILES[family]: folder / FILES[family] for family in families}
    return {name: file_hash(path) for name, path in paths.items() if path.exists()}


def sweep_hashes(folder: Path, families: Sequence[str] | None = None) -> dict[str, str]:
    """A hash of each table of `infercast measure` that was read, by the folder of its GPU."""
    return {
        f"{gpu.name}/{family}.parquet": file_hash(gpu / f"{family}.parquet")
        for gpu in sweep_folders(folder)
        for family in read_families(gpu, families)
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def origin_of(tables: dict[str, str]) -> dict[str, Any]:
    """What a manifest says of a fit that is made now, on these tables."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "revision": revision(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "tables": dict(sorted(tables.items())),
    }


def revision() -> str:
    """The commit of this source, where it is a checkout."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return f"release {_version('infercast')}"
    return said.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
