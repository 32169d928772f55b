"""A kernel and its operands on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


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
