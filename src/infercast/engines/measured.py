"""How an engine was set up that was measured: what the engine's own reader finds in the ``config`` of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from infercast.engines.settings import Settings
from infercast.errors import FileFormatError


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file, whose fields are read with errors that name them."""

    path: Path
    holder: Mapping[str, Any]
    place: str
    """Where in the file it stands: ``config``."""

    def __contains__(self, name: str) -> bool:
        """Whether the field says anything."""
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
        """A whole number that is no smaller."""
        value = int(self.get(name, int))
        if value < least:
            raise FileFormatError(self.path, f"{self.place}.{name} must be at least {least}, not {value}")
        return value

    def inner(self, name: str) -> Fields:
        """An object within, which may be missing."""
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
