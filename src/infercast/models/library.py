"""The models that come with the package: one small file each, in the key names of a published config.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, cast

from infercast.bundled import DATA
from infercast.models.unknown_names import unknown_model

FOLDER = DATA / "models"


@cache
def model_names() -> tuple[str, ...]:
    """Names of all bundled models, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def bundled_name(name: str) -> str | None:
    """The bundled model that ``name`` means (its own name or an alias, in any case), or None."""
    plain = name.strip().lower()
    return plain if plain in model_names() else _aliases().get(plain)


def bundled_config(name: str) -> dict[str, Any]:
    """The file of a bundled model: the keys of its config.json, and ``infercast`` with its sources."""
    found = bundled_name(name)
    if found is None:
        raise unknown_model(name, configs())
    return _load(found)


def _load(name: str) -> dict[str, Any]:
    text = FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def configs() -> dict[str, dict[str, Any]]:
    """The files of all bundled models, for whoever compares one with them."""
    return {name: _load(name) for name in model_names()}


@cache
def _aliases() -> dict[str, str]:
    """Every alias, in lower case, with the model it means; reads all files, so only when a plain name misses."""
    return {alias.lower(): name for name in model_names() for alias in _load(name)["infercast"]["aliases"]}
