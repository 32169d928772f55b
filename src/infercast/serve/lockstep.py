"""Engines that share experts: their steps meet in every layer, so each lasts as long as the longest under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.engine.step import StepEstimate, StepShape, StepTimer
from infercast.serve.simulation import Replica


class _Rank:
    """The step timer of one engine, which knows the last step of every other.

    Engines are driven in the order of their clocks, so the others' last steps are the ones under way. An engine
    without work runs along with an empty batch and holds nobody up.
    """

    def __init__(self, timer: StepTimer, rank: int, last: list[float]) -> None:
        self._timer, self._rank, self._last = timer, rank, last
        self.kernels = getattr(timer, "kernels", ())

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        estimate = self._timer(shape, steps)
        self._last[self._rank] = 0.0
        own, longest = estimate.gpu_seconds[-1], max(self._last)
        self._last[self._rank] = own
        return estimate._replace(gpu_seconds=[max(seconds, longest) for seconds in estimate.gpu_seconds])


def in_lockstep(replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """The same engines, each step as long as the longest step under way."""
    last = [0.0] * len(replicas)
    return tuple(replace(replica, timer=_Rank(replica.timer, rank, last)) for rank, replica in enumerate(replicas))
