"""The contract between an engine and whoever drives it: a step's shape in, what it costs GPU and host out."""

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
class HostCost:
    """Seconds that the engine's one host thread spends on a step, in the order in which it does."""

    plan: float = 0.0
    """Choosing what the step computes."""
    prepare: float = 0.0
    """From there to the first kernel on its way."""
    launch: float = 0.0
    """From the first kernel to the last, sampling among them; the GPU may work on the first ones meanwhile."""
    process: float = 0.0
    """Taking in the result, once the GPU has it."""
    wake: float = 0.0
    """What launching takes longer in the first step after the engine had nothing to do: a CPU that slept is slow."""

    @property
    def total(self) -> float:
        """What the thread is busy for: no step can follow the one before it faster."""
        return self.plan + self.prepare + self.launch + self.process


NO_HOST = HostCost()
"""A host that takes no time."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What one step costs, or each of several steps in a row: its GPU, and its host."""

    gpu_seconds: npt.NDArray[Any]
    kernel_seconds: npt.NDArray[Any]
    """Seconds of each kernel (last axis), in the order of the timer's ``kernels``."""
    host: HostCost = NO_HOST
    """The same for all of the steps: it does not depend on how long contexts are."""


class StepTimer(Protocol):
    """Anything that can tell what steps cost."""

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """The costs of ``steps`` steps in a row: of this batch, then of the same batch with all its contexts one
        token longer, and so on. More than one step can be asked of a decoding batch only.
        """


def constant_timer(seconds: float) -> StepTimer:
    """Every step takes the same time: for tests and for queueing theory."""

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        each = np.full(steps, seconds)
        return StepEstimate(each, each[:, None])

    return timer
