"""GPUs by name: bundled ones, and a user's own file."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from infercast.bundled import DATA
from infercast.errors import FileFormatError, UnknownNameError
from infercast.hardware.build import build_gpu, inherit
from infercast.hardware.gpu import Gpu
from infercast.hardware.schema import ARCHITECTURE_FIELDS, FACTS, GPU_FIELDS, check_table, read_table

FOLDER = DATA / "gpus"
OWN_FILE_HINT = " (or give the path of a TOML file that describes yours)"


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A bundled GPU by name or alias (``h200-sxm``, ``H200``, ``NVIDIA H200``), or one described in a TOML file."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return _load_file(Path(name_or_path))
    name = _canonical(text)
    if name is None:
        raise UnknownNameError("GPU", text, gpu_names(), OWN_FILE_HINT)
    return _load_bundled(name)


def gpu_from_driver_name(driver_name: str) -> Gpu:
    """The bundled GPU that a driver calls ``driver_name``, such as ``NVIDIA H100 80GB HBM3``."""
    name = _aliases().get(_normal(driver_name))
    if name is None:
        raise UnknownNameError("GPU driver name", driver_name, _aliases(), OWN_FILE_HINT)
    return _load_bundled(name)


@cache
def gpu_names() -> tuple[str, ...]:
    """The names of all bundled GPUs, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def _normal(name: str) -> str:
    """How names are compared: ``H100_SXM`` and ``h100 sxm`` are ``h100-sxm``."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _canonical(name: str) -> str | None:
    """The bundled name that ``name`` stands for. All files are read only where the plain name misses."""
    normal = _normal(name)
    return normal if normal in gpu_names() else _aliases().get(normal)


@cache
def _aliases() -> dict[str, str]:
    """Bundled name by alias."""
    return {_normal(alias): name for name in gpu_names() for alias in _bundled_table(name).get("aliases", ())}


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """On-chip facts, and what is known of kernels, by architecture."""
    tables = read_table(DATA / "architectures.toml", "architectures.toml")
    for name, table in tables.items():
        check_table(table, {**ARCHITECTURE_FIELDS, "facts": FACTS}, "architectures.toml", f"{name}.")
    return tables


def _bundled_table(name: str) -> dict[str, Any]:
    table = read_table(FOLDER / f"{name}.toml", f"{name}.toml")
    check_table(table, GPU_FIELDS, f"{name}.toml")
    return table


@cache
def _load_bundled(name: str) -> Gpu:
    # Safe to share: a Gpu is frozen, and the bundled files do not change while a program runs.
    return build_gpu(name, _bundled_table(name), architectures(), f"{name}.toml")


def _load_file(path: Path) -> Gpu:
    """A GPU from a user's file, which may start from a bundled one."""
    if os.path.isdir(path):
        # Windows reports a directory as a permission error, so it is looked at first.
        raise FileFormatError(path, "is a directory, not a TOML file that describes a GPU")
    table = read_table(path, path)
    check_table(table, GPU_FIELDS, path)
    if "base" in table:
        base = _canonical(table["base"])
        if base is None:
            known = UnknownNameError("bundled GPU", table["base"], gpu_names())
            raise FileFormatError(path, f"field 'base': {known}")
        table = inherit(_bundled_table(base), table)
    table.setdefault("sources", [f"described in {path.name}"])
    return build_gpu(table.get("name", path.stem), table, architectures(), path)
