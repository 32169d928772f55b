"""Sums over steps, made in the order of the steps: a stretch adds up to the same bits as its steps one by one."""

from __future__ import annotations

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

    def add(self, shape: StepShape, estimate: StepEstimate) -> None:
        """One or more steps of the same batch, whose contexts grow by a token a step."""
        steps, sequences = estimate.seconds.size, len(shape.new_tokens)
        self.steps += steps
        self.tokens += steps * shape.num_tokens
        self.sequences += steps * sequences
        self.context += steps * sum(shape.computed) + sequences * steps * (steps - 1) // 2
        self.sampled += steps * shape.num_sampled
        self.seconds = add_up(self.seconds, estimate.seconds)
        self.gpu_seconds = add_up(self.gpu_seconds, estimate.gpu_seconds)
        self.host_bound_seconds = add_up(self.host_bound_seconds, estimate.seconds - estimate.gpu_seconds)
        total = self.kernel_seconds
        for row in estimate.kernel_seconds:
            total = row if total is None else total + row
        self.kernel_seconds = total


class Gauge:
    """A quantity over time: its time-weighted sum and its peak."""

    def __init__(self) -> None:
        self.area = 0.0
        self.peak = 0.0

    def add(self, values: float | npt.NDArray[Any], seconds: npt.NDArray[Any]) -> None:
        """The quantity stood at each value for that long."""
        self.area = add_up(self.area, values * seconds)
        self.peak = max(self.peak, values if isinstance(values, float | int) else float(values.max()))


def add_up(total: float, values: npt.NDArray[Any]) -> float:
    """Add values to a total, one after the other."""
    for value in values.tolist():
        total += value
    return total
