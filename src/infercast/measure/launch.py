"""A kernel and its operands on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Operands = tuple[Callable[[], Any], tuple[Any, ...]]
"""A launch, and the tensors it reads that the kernel before has just written."""


@dataclass
class SimpleLaunch:
    """A launch made of a function and of the tensors that it reads."""

    engine: str
    launch: Callable[[], Any]
    inputs: tuple[Any, ...] = ()
    """Tensors that the kernel before has just written."""

    def touch(self) -> None:
        """Read and write every input without changing it, whatever its format."""
        for tensor in self.inputs:
            tensor.view(-1).view(torch.int16).bitwise_or_(0)

    def __call__(self) -> None:
        """Launch the kernel once."""
        self.launch()


class MovingLaunch(SimpleLaunch):
    """A launch whose operands lie elsewhere in memory each time.

    Where weights lie decides which memory channels they share: the same product takes up to 10 % more or less, and
    each layer of a model has weights of its own.
    """

    def __init__(self, engine: str, place: Callable[[], Operands]) -> None:
        self._place = place
        super().__init__(engine, *place())

    def touch(self) -> None:
        """Move on, then as any launch."""
        self.launch, self.inputs = self._place()
        super().touch()
