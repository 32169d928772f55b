"""The contract between an engine and whoever drives it: a step's shape in, its time out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class StepShape:
    """The batch of one step: sequence i computes ``new_tokens[i]`` tokens after ``computed[i]`` earlier ones."""

    new_tokens: Sequence[int]
    computed: Sequence[int]
    num_sampled: int
    """Sequences that produce a token at the end of the step."""

    @cached_property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(self.new_tokens)

    @cached_property
    def is_decode(self) -> bool:
        """Every sequence computes a single token, so the step is as uniform as a CUDA graph needs it."""
        return max(self.new_tokens) == 1


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """How long one step takes, or each of several steps in a row, and where its GPU time goes."""

    seconds: npt.NDArray[Any]
    """From one step's end to the next one's, when steps follow each other without a pause."""
    gpu_seconds: npt.NDArray[Any]
    host_seconds: float
    kernel_seconds: npt.NDArray[Any]
    """Seconds of each kernel (last axis), in the order of the timer's ``kernels``."""


class StepTimer(Protocol):
    """Anything that can tell how long steps take."""

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """The times of ``steps`` steps in a row: of this batch, then of the same batch with all its contexts one
        token longer, and so on. More than one step can be asked of a decoding batch only.
        """


def constant_timer(seconds: float) -> StepTimer:
    """Every step takes the same time: for tests and for queueing theory."""

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        each = np.full(steps, seconds)
        return StepEstimate(each, each, 0.0, each[:, None])

    return timer
