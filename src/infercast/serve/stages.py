"""A pipeline of GPUs behind one host thread: stages work on different batches at the same time."""

from __future__ import annotations

from infercast.engine.step import HostCost
from infercast.serve.first_use import NOTHING_NEW, News
from infercast.serve.timeline import Span, Timeline


class StagedSpan(Span):
    """One step on all stages."""

    planned: float
    """When the host began to plan it."""
    stages: tuple[tuple[float, float], ...]
    """When each stage began and ended it."""


class StagedTimeline(Timeline):
    """Each stage takes its share of a step's time, in order, when the stage before has handed the batch on.

    Batches keep their order, so a stage that has just let one batch go waits for the next: that wait is the bubble.
    """

    __slots__ = ("_free_at", "_shares")

    def __init__(self, shares: tuple[float, ...]) -> None:
        super().__init__()
        self._shares = shares
        self._free_at = [0.0] * len(shares)

    def launch(self, host: HostCost, gpu_seconds: float, news: News = NOTHING_NEW) -> Span:
        """Plan a step and send it down the pipe; the host is free when the first stage's last kernel is on its way."""
        planned, idle_from = self.clock, max(self.clock, self._free_at[0])
        ready = self.clock + host.plan + host.prepare
        start = max(ready, self._free_at[0])
        # Every stage is launched by a process of its own, all at the same time.
        launching = host.launch * max(self._shares) + (host.wake if self.slept else 0.0)
        self.clock = ready + launching
        self.slept = False
        end, stages = start, []
        for stage, share in enumerate(self._shares):
            begin = max(end, self._free_at[stage])
            end = max(begin + share * gpu_seconds, ready + launching)
            self._free_at[stage] = end
            stages.append((begin, end))
        self.gpu_free = end
        # The run advances by what the fullest stage takes; the rest of the way overlaps with other batches.
        span = StagedSpan(start, end, max(0.0, self._free_at[0] - idle_from))
        span.planned, span.stages = planned, tuple(stages)
        return span
