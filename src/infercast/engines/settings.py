"""Settings of an engine: what a user asks for, and the same with every default filled in.

Each engine has a frozen dataclass of its own for either, under its own names. What is here is all that others know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from infercast.errors import InputError, UnknownNameError
from infercast.units import whole_number

TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "tuple[int, ...]": tuple}
"""Of settings that can be written as one word; several numbers have commas between them."""
TRUTHS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
WANTED = {
    bool: "on or off", int: "a whole number", float: "a number", tuple: "whole numbers with commas between them",
}  # fmt: skip


class Settings(Protocol):
    """What a user asks of an engine; None in a field is the engine's choice for the GPU and the model."""

    @property
    def engine(self) -> str:
        """The engine and its version, such as ``vllm@0.25``, whose rules and defaults hold."""


class Resolved(Settings, Protocol):
    """The same with nothing left open; only these are read outside the engine."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of the largest step."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences of the largest step."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""


Asked = TypeVar("Asked", bound=Settings)


def changed(settings: Asked, **values: Any) -> Asked:
    """The settings with other values."""
    return cast("Asked", replace(cast("Any", settings), **values)) if values else settings


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return TRUTHS[text.lower()]
    if kind is tuple:
        return tuple(whole_number(part.strip()) for part in text.split(","))
    return whole_number(text) if kind is int else kind(text)


def read_setting(known: Mapping[str, type], name: str, text: str, what: str = "setting") -> Any:
    """The value that a word stands for."""
    if name not in known:
        raise UnknownNameError(what, name, known)
    try:
        return _read(known[name], text)
    except (KeyError, ValueError):
        raise InputError(f"{what} {name}={text}: must be {WANTED[known[name]]}") from None
