"""The loop of an engine that copies KV blocks to the host's memory and back beside its steps.

A copy from the host starts when the step is launched that was planned with it. A copy to the host is handed over at the
start of the step after the one that computes the blocks, and starts when that one is done; tokens of a step that ends
meanwhile reach the host after it, for they travel the same way. The engine looks for copies that have ended after it
has launched a step, and hears of them with that step's result. While nothing can be computed and copies are under way
it takes turns without a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from infercast.errors import InputError
from infercast.serve.cache.offload import Offload
from infercast.serve.links import Link
from infercast.serve.loop import Loop, Numbers, Step
from infercast.serve.scheduler.moves import Move
from infercast.serve.scheduler.offloading import OffloadingScheduler
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import StepEstimate, StepShape
from infercast.serve.tier_totals import LinkTotals, TierTotals


class StepWithMoves(Step):
    """A step, and the copies whose end is seen with it."""

    __slots__ = ("ended",)

    def __init__(
        self, plan: Plan, numbers: Numbers, estimate: StepEstimate, shape: StepShape | None, ended: list[Move]
    ) -> None:
        super().__init__(plan, numbers, estimate, shape)
        self.ended = ended


@dataclass(slots=True)
class EmptyTurn:
    """A turn in which nothing is computed."""

    end: float
    ended: list[Move]


class OffloadingLoop(Loop):
    """One engine with a tier of its KV cache in the host's memory."""

    def __init__(self, scheduler: OffloadingScheduler, *args: Any, offload: Offload, **options: Any) -> None:
        super().__init__(scheduler, *args, **options)
        self.offload, self.planner = offload, scheduler
        self.load, self.store = Link(offload.load), Link(offload.store)
        self.waited = 0.0
        """Seconds in which steps waited for copies to the host, because their blocks were wanted."""
        self._began: dict[int, float] = {}
        """When the first copy of each request that had one was handed over."""
        self._stored: deque[tuple[float, float]] = deque()
        """When copies to the host began and end."""
        self._handed_over: list[Move] = []
        self._unsubmitted: list[Move] = []

    def turns(self) -> Iterator[float]:
        """As of any engine; at the end, the record is told of the tier."""
        yield from super().turns()
        self.record.tier = self._totals()

    def _totals(self) -> TierTotals:
        moves, loaded = self.planner.moves, self.planner.loaded
        num_loaded = np.zeros(len(self.record.sent_at), dtype=np.int64)
        num_loaded[[*loaded.keys()]] = [*loaded.values()]
        load_began = np.full(len(num_loaded), np.nan)
        load_began[[*self._began.keys()]] = [*self._began.values()]
        return TierTotals(
            num_blocks=moves.tier.num_blocks,
            peak_blocks=moves.tier.peak,
            num_refused=moves.tier.num_refused,
            num_queried=moves.num_queried,
            num_hit=moves.num_hit,
            load=LinkTotals(self.load.num_copies, self.load.num_bytes, self.load.seconds),
            store=LinkTotals(self.store.num_copies, self.store.num_bytes, self.store.seconds),
            waited=self.waited,
            num_loaded=num_loaded,
            load_began=load_began,
        )

    def _most_steps(self, plan: Plan, arrival: float | None) -> int:
        """No jumps while copies are under way, or where every step may hand some over."""
        if (
            self.planner.has_moves
            or not self.offload.prompts_only
            or (self.under_way and isinstance(self.under_way[0], EmptyTurn))
        ):
            return 1
        return super()._most_steps(plan, arrival)

    def _launch(self, step: Step) -> None:
        """Hand copies over before the step's first kernel, and look for those that have ended after its last."""
        if not self.planner.has_moves:
            super()._launch(step)
            return
        host, timeline = step.estimate.host, self.timeline
        before = timeline.clock + host.plan + host.prepare
        after = self._hand_over(before, timeline.gpu_free)
        host = host._replace(prepare=host.prepare + (after - before))
        polled = after + host.launch + (host.wake if timeline.slept else 0.0)
        estimate = step.estimate._replace(host=host)
        super()._launch(StepWithMoves(step.plan, step.numbers, estimate, step.shape, self._ended_by(polled)))

    def _hand_over(self, now: float, gpu_free: float) -> float:
        """Copies begin, stores after what the GPU has to do; returns when the host is done with that."""
        moves = self.planner.moves
        for move in self._unsubmitted:
            begun = max(now, gpu_free, self.store.free_at)
            now, move.end = self.store.copy(now, move.num_bytes, move.num_pieces, after=gpu_free)
            self._stored.append((begun, move.end))
        self._handed_over += self._unsubmitted
        if moves.flushed:
            waited = max([now, *(move.end for move in moves.flushed if move.end)])
            self.waited += waited - now
            now, moves.flushed = waited, []
        for move in moves.loads:
            if not move.sequence.num_preemptions:
                self._began[move.sequence.index] = now
            now, move.end = self.load.copy(now, move.num_bytes, move.num_pieces)
        self._handed_over += moves.loads
        self._unsubmitted, moves.stores, moves.loads = moves.stores, [], []
        return now

    def _ended_by(self, time: float) -> list[Move]:
        """Copies that have ended, and were not seen before."""
        ended = [move for move in self._handed_over if move.end <= time]
        if ended:
            self._handed_over = [move for move in self._handed_over if move.end > time]
        return ended

    def _is_idle(self, arrival: float | None) -> bool:
        """Turns without a step as long as copies are under way."""
        if not self.planner.has_moves:
            if arrival is None and self.planner.waiting and not (self.under_way or self.planner.running):
                raise InputError(
                    f"the engine would wait for ever: {len(self.planner.waiting):,} requests wait, the first for KV "
                    "blocks that others hold which wait behind it and were loaded from host memory; give the GPU's "
                    "cache more blocks, or ask for a newer engine"
                )
            return super()._is_idle(arrival)
        timeline = self.timeline
        timeline.clock = self._hand_over(timeline.clock, timeline.gpu_free)
        turn = EmptyTurn(timeline.clock, self._ended_by(timeline.clock))
        self.under_way.append(cast(Step, turn))
        if len(self.under_way) == self.steps_under_way:
            self._finish()
        timeline.clock += self.offload.empty_step_seconds
        return False

    def _finish(self) -> None:
        """Wait for the oldest step under way, and take in its result and what has ended."""
        step = self.under_way[0]
        if isinstance(step, EmptyTurn):
            self.under_way.popleft()
            self.planner.end_moves(step.ended)
            return
        if step is not None and self._stored:
            step.end = self._result_at(step.end)
        super()._finish()

    def _result_at(self, end: float) -> float:
        """When the host has the tokens of a step: they travel behind what is being stored when it ends."""
        stored = self._stored
        while stored and stored[0][1] <= end:
            stored.popleft()
        for begun, until in stored:
            if begun >= end:
                break
            end = max(end, until)
        return end

    def _take_in(self, step: Step, time: float) -> None:
        super()._take_in(step, time)
        if isinstance(step, StepWithMoves) and step.ended:
            self.planner.end_moves(step.ended)
