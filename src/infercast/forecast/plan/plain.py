"""Records of ours as plain data and back, so that a file of them can be read by anyone and runs nobody's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

TYPE = "type"
"""The key under which a record says what it is."""
OURS = "infercast."


def to_plain(value: Any) -> Any:
    """Dataclasses, named tuples, enumerations, tuples and dictionaries; functions and other things by name.

    Equal values give equal data, whatever process they are in.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return {TYPE: _name(type(value)), "name": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    names = _field_names(value)
    if names is not None:
        return {TYPE: _name(type(value)), **{name: to_plain(getattr(value, name)) for name in names}}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    return _others(value)


def _others(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {TYPE: "dict", "items": [[to_plain(key), to_plain(each)] for key, each in value.items()]}
    if isinstance(value, partial):
        return {TYPE: "partial", "of": _name(value.func), "given": to_plain([value.args, value.keywords])}
    if isinstance(value, set | frozenset):
        return {TYPE: "set", "items": sorted(map(repr, value))}
    return {TYPE: "named", "name": _name(value if callable(value) else type(value))}


def _field_names(value: Any) -> tuple[str, ...] | None:
    """Of a dataclass or a named tuple."""
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(each.name for each in fields(value))
    return getattr(value, "_fields", None) if isinstance(value, tuple) else None


def from_plain(value: Any) -> Any:
    """The record again; only types of this package are made, and lists are tuples."""
    if isinstance(value, list):
        return tuple(from_plain(each) for each in value)
    if not isinstance(value, dict):
        return value
    kind = value[TYPE]
    if kind == "dict":
        return {from_plain(key): from_plain(each) for key, each in value["items"]}
    found = _type(kind)
    if issubclass(found, Enum):
        return found[value["name"]]
    return found(**{name: from_plain(each) for name, each in value.items() if name != TYPE})


def _type(name: str) -> type:
    module, _, qualified = name.partition(":")
    found = getattr(import_module(module), qualified, None) if module.startswith(OURS) else None
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Enum) or hasattr(found, "_fields")):
        raise ValueError(f"{name!r} is no record of infercast")
    return found


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"
