"""A pipeline of GPUs: stages work on different batches at the same time, on one batch one after the other."""

from __future__ import annotations

from infercast.serve.first_use import NOTHING_NEW, News
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import HostCost
from infercast.serve.timeline import Span, Timeline


class StagedSpan(Span):
    """One step on all stages."""

    planned: float
    """When the host began to plan it."""
    stages: tuple[tuple[float, float], ...]
    """When each stage began and ended it."""


class StagedTimeline(Timeline):
    """Each stage takes its share of a step's time, in order, when the stage before has handed the batch on.

    Every stage has a process that prepares and launches its layers; it learns what to launch when the one before has
    launched its own. Batches keep their order, so a stage that has just let one go waits for the next: that wait is the
    bubble. A sequence's next token begins at the first stage when the last one has sampled the token before. With
    ``in_turn`` the stages exchange the tokens of every step before they begin the next one, so no two steps overlap.
    """

    __slots__ = ("_free_at", "_in_turn", "_known_at", "_launched_at", "_shares")

    def __init__(self, shares: tuple[float, ...], *, in_turn: bool = False) -> None:
        super().__init__()
        self._shares, self._in_turn = shares, in_turn
        self._free_at = [0.0] * len(shares)
        self._launched_at = [0.0] * len(shares)
        # By the index of a sequence: when its last token was sampled, and when that step had been launched.
        self._known_at: dict[int, tuple[float, float]] = {}

    def launch(self, host: HostCost, gpu_seconds: float, news: News = NOTHING_NEW, plan: Plan | None = None) -> Span:
        """Plan a step and send it down the pipe; the engine's own thread is free when it is planned."""
        planned, idle_from = self.clock, max(self.clock, self.gpu_free if self._in_turn else self._free_at[0])
        self.clock += host.plan
        wake = host.wake if self.slept else 0.0
        self.slept = False
        end, launched = self._tokens_known(plan)
        self._launched_at[0] = max(self._launched_at[0], launched)
        launched, stages = 0.0, []
        for stage, share in enumerate(self._shares):
            ready = max(self.clock, self._launched_at[stage]) + host.prepare
            first = max(ready, launched)
            launched = self._launched_at[stage] = first + host.launch * share + wake
            begin = max(end, first, self._free_at[stage])
            end = self._free_at[stage] = max(begin + share * gpu_seconds, launched)
            stages.append((begin, end))
        self.gpu_free = end
        for sequence in plan.sampled if plan is not None else ():
            self._known_at[sequence.index] = end, launched
        # The run advances by what the first stage takes; the rest of the way overlaps with other batches.
        free = end if self._in_turn else self._free_at[0]
        span = StagedSpan(stages[0][0], end, max(0.0, free - idle_from))
        span.planned, span.stages = planned, tuple(stages)
        return span

    def _tokens_known(self, plan: Plan | None) -> tuple[float, float]:
        """When the tokens that a step begins with are known to the GPUs, and when the hosts were done with them."""
        if self._in_turn:
            return self.gpu_free, self._launched_at[-1]
        known = [self._known_at.pop(each.index, (0.0, 0.0)) for each in plan.sequences] if plan is not None else []
        return max([end for end, _ in known], default=0.0), max([launched for _, launched in known], default=0.0)
