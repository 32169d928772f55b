"""What every operator has in common.

An operator says what a kernel is asked to do and knows nothing of any GPU. Sizes may be plain integers (one
kernel) or numpy arrays (many kernels of one family at once); every quantity is then an array of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

Size = int | npt.NDArray[Any]
"""A dimension of one kernel, or of an array of kernels."""

Quantity = float | npt.NDArray[Any]
"""FLOPs, bytes or seconds of one kernel, or of an array of kernels."""


class Op(Protocol):
    """A frozen dataclass of one kernel family."""

    @property
    def family(self) -> str:
        """Kernel family: ``gemm``, ``attention``, ``moe``, ``norm``, ..."""

    @property
    def compute_dtype(self) -> str:
        """The format the arithmetic runs in."""

    @property
    def flops(self) -> Quantity:
        """Floating-point operations, a multiply-add counted as two."""

    @property
    def bytes_read(self) -> Quantity:
        """Distinct bytes the kernel must read."""

    @property
    def bytes_written(self) -> Quantity:
        """Distinct bytes the kernel must write."""


@dataclass(frozen=True, slots=True)
class Call:
    """A named operator that a step launches ``count`` times, once for each layer that holds it."""

    name: str
    op: Op
    count: int = 1
    beside: bool = False
    """Runs on a stream of its own beside the kernels around it."""
    slower: Quantity = 1.0
    """How many times as long it takes as such a kernel does, because of how the engine launches it, ..."""
    saved: float = 0.0
    """... and the seconds that it takes less."""
