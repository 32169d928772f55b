"""What makes steps that are alike take different times: the clock that the power limit has left, and a busy host.

A step timer tells what a step takes on a GPU that was cool, with a host at its usual speed. A run adds its history.
Large products lower the clock, and it takes a while to recover: heavy steps in a row take longer than the first one.
And launching a step with prompts, which is thousands of calls in Python, takes a different time each time.
"""

from __future__ import annotations

import math

import numpy as np

from infercast.serve.step import HostCost, StepEstimate

LAUNCH_SPREAD = 0.17
"""Standard deviation of the logarithm of how long launching a step with prompts takes, from step logs of engines on
H200 machines: 0.06 to 0.27 in single runs (docs/engine.md)."""
NUM_DRAWN = 4096
"""Draws of a run before they are used again."""


class Conditions:
    """The state of one engine's GPU clock and host; told of every step with prompts in the order they are launched."""

    def __init__(self, settle_seconds: float = 0.0, spread: float = 0.0, seed: int = 0) -> None:
        """``settle_seconds``: how fast the clock follows what is drawn, 0 for a GPU that is always cool; ``spread`` as
        `LAUNCH_SPREAD`, 0 for a host that always takes the same time.
        """
        self._settle = settle_seconds
        self._lost, self._at = 0.0, 0.0
        """The share by which products took longer when the last heavy step ended, and when that was."""
        self._factors: list[float] = []
        self._number = 0
        if spread:
            drawn = np.random.default_rng(seed).normal(0.0, spread, NUM_DRAWN)
            self._factors = np.exp(drawn - spread * spread / 2).tolist()

    def meet(self, estimate: StepEstimate, clock: float, gpu_free: float) -> StepEstimate:
        """The same step as it comes out now: planned at ``clock``, behind what keeps the GPU until ``gpu_free``."""
        if self._factors:
            host = estimate.host
            self._number += 1
            factor = self._factors[self._number % NUM_DRAWN]
            slower = HostCost(host.plan, host.prepare, factor * host.launch, host.process, host.wake)
            estimate = StepEstimate(
                estimate.gpu_seconds, estimate.varying, slower, estimate.rows, estimate.slowed, estimate.target,
                estimate.throttled,
            )  # fmt: skip
        if not estimate.throttled or not self._settle:
            return estimate
        host, seconds = estimate.host, estimate.gpu_seconds[0]
        ready = clock + host.plan + host.prepare
        start = ready if ready > gpu_free else gpu_free
        # Stages of a pipeline begin a step while others still work on the one before: nothing recovers in between.
        carried = self._lost * math.exp(min(0.0, self._at - start) / self._settle) if self._lost else 0.0
        left = math.exp(-seconds / self._settle)
        share = carried * (self._settle / seconds) * (1.0 - left)
        longer = seconds + share * estimate.throttled
        self._lost, self._at = estimate.target * (1.0 - left) + carried * left, start + longer
        if share < 1e-5:
            return estimate
        slowed = estimate.slowed + share
        factor = (1.0 + slowed) / (1.0 + estimate.slowed)
        varying = [[factor * each for each in kernel] for kernel in estimate.varying]
        return estimate._replace(gpu_seconds=[longer], varying=varying, slowed=slowed)
