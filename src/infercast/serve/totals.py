"""Sums over steps, made in the order of the steps: a stretch adds up to the same bits as its steps one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from infercast.engine.step import StepEstimate, StepShape


class PhaseTotals:
    """Sums over the steps of one phase."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.sequences = 0
        self.context = 0
        self.sampled = 0
        self.seconds = 0.0
        self.gpu_seconds = 0.0
        self.host_bound_seconds = 0.0
        self.kernel_seconds: npt.NDArray[Any] | None = None

    def add(self, shape: StepShape, estimate: StepEstimate, seconds: Sequence[float]) -> None:
        """One or more steps of the same batch, whose contexts grow by a token a step, and how long each took."""
        steps, sequences = len(seconds), len(shape.new_tokens)
        self.steps += steps
        self.tokens += steps * shape.num_tokens
        self.sequences += steps * sequences
        self.context += steps * sum(shape.computed) + sequences * steps * (steps - 1) // 2
        self.sampled += steps * shape.num_sampled
        for each, gpu in zip(seconds, estimate.gpu_seconds.tolist(), strict=True):
            self.seconds += each
            self.gpu_seconds += gpu
            self.host_bound_seconds += each - gpu
        total = self.kernel_seconds
        for row in estimate.kernel_seconds:
            total = row if total is None else total + row
        self.kernel_seconds = total


class Gauge:
    """A quantity over time: its time-weighted sum and its peak."""

    def __init__(self) -> None:
        self.area = 0.0
        self.peak = 0.0

    def add(self, values: Sequence[float], seconds: Sequence[float]) -> None:
        """The quantity stood at each value for that long."""
        for value, each in zip(values, seconds, strict=True):
            self.area += value * each
        self.peak = max(self.peak, *values)
