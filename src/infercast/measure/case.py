"""One thing to measure: a kernel family and a shape, and what a kernel must be able to do to be measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

Shape = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A point of a sweep."""

    family: str
    """Which table it belongs to."""
    shape: Shape
    """Columns of that table."""
    flops: float = 0.0
    """How hard it is on the chip; 0 where memory is all that matters."""

    @property
    def key(self) -> str:
        """What makes a point the same one when a sweep is taken up again."""
        return f"{self.family} {json.dumps(self.shape, sort_keys=True)}"


class Launch(Protocol):
    """A kernel ready to run."""

    engine: str
    """Whose kernel it is: ``vllm`` or ``torch``."""

    def touch(self) -> None:
        """Write what the kernel before would have written, so that it is as warm as in a model."""

    def __call__(self) -> None:
        """Launch the kernel once."""
