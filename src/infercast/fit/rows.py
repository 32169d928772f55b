"""Measured rows as operators: what every reader of tables makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.ops import Op

Array = npt.NDArray[Any]

LEFT_OUT = ("trtllm",)
"""Engines whose kernels nobody here estimates, but for families of which nobody else has any."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows of one operator type that differ in array sizes only."""

    family: str
    gpu: str
    engine: str
    dtype: str
    kernel: str
    """Name of the kernel where the table has one, else empty."""
    group: Array
    """For each row, what must stay together in a split."""
    op: Op
    seconds: Array
    index: Array
    """Row numbers in the file."""
    beside: Array | None = None
    """Seconds of other kernels that were timed together with it, as they are estimated; None: of none."""

    @property
    def own(self) -> Array:
        """Seconds that are left for the kernel itself, never less than a small part of all."""
        return self.seconds if self.beside is None else np.maximum(self.seconds - self.beside, LEAST * self.seconds)

    def whole(self, own: Array) -> Array:
        """Seconds of everything that was timed, where the kernel itself takes ``own``."""
        return own if self.beside is None else own + self.beside


LEAST = 0.05
"""Of what was timed, that the kernel itself takes at least, whatever its neighbours are estimated to take."""
