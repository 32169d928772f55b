"""One thing to measure: a kernel family, a shape, and how hard it is on the chip."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    tensor_dtype: str = "bf16"

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


@dataclass
class SimpleLaunch:
    """A launch made of two functions."""

    engine: str
    launch: Callable[[], Any]
    inputs: tuple[Any, ...] = ()
    """Tensors that the kernel before has just written."""

    def touch(self) -> None:
        """Read and write every input without changing it."""
        for tensor in self.inputs:
            tensor.view(-1).view(_INTEGER()).bitwise_or_(0)

    def __call__(self) -> None:
        """Launch the kernel once."""
        self.launch()


def _INTEGER() -> Any:  # noqa: N802 - torch is imported as late as possible
    import torch  # noqa: PLC0415

    return torch.int16
