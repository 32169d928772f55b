"""Settings of an engine: as a user gives them, with defaults filled in, and as recorded with a measured run.

Each engine has a frozen dataclass of its own for either, under its own names. What is here is all that others know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from infercast.errors import FileFormatError, InputError, UnknownNameError
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


def check_counts(settings: Settings, names: Iterable[str]) -> None:
    """Refuse settings below 1; None is the engine's choice."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")


def check_sizes(name: str, sizes: Sequence[int] | None) -> None:
    """Refuse an empty list of sizes of CUDA graphs, or sizes below 1."""
    if sizes is not None and not (sizes and all(size >= 1 for size in sizes)):
        raise InputError(f"{name} must be one or more numbers of at least 1, not {list(sizes)}")


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file, whose fields are read with errors that name them."""

    path: Path
    holder: Mapping[str, Any]
    place: str
    """Where in the file it stands: ``config``."""

    def __contains__(self, name: str) -> bool:
        return self.holder.get(name) is not None

    def get(self, name: str, kind: type) -> Any:
        """A field of the right type; whole numbers serve as floats."""
        value = self.holder.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FileFormatError(
                self.path, f"{self.place} needs the field {name!r} of type {kind.__name__}, not {value!r}"
            )
        return value

    def word(self, name: str, default: str = "auto") -> str:
        """The name of something, which may be missing."""
        return str(self.get(name, str)) if self.holder.get(name) else default

    def at_least(self, name: str, least: int) -> int:
        value = int(self.get(name, int))
        if value < least:
            raise FileFormatError(self.path, f"{self.place}.{name} must be at least {least}, not {value}")
        return value

    def inner(self, name: str) -> Fields:
        return Fields(self.path, self.get(name, dict) if name in self else {}, f"{self.place}.{name}")


class ProfiledStep(NamedTuple):
    """What one step of a profiled engine held."""

    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int = 0
    """Of the sequences that decode, drafts with them; 0: one of each."""


@dataclass(frozen=True, slots=True)
class MeasuredSetup:
    """An engine as it was started."""

    settings: Settings
    num_gpu_blocks: int
    """KV blocks that it had."""
    with_those_blocks: Settings
    """The same settings for an engine that is told to have just these."""
    blocks_were_set: bool
    """Whether it was."""
    tensor_parallel_size: int = 1
    model: Mapping[str, Any] = field(default_factory=dict)
    """How it read the checkpoint, by the names of `infercast.forecast.deploy.ModelOptions`."""
