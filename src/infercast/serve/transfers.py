"""Copies of KV blocks between a GPU and host memory, as the loop of an engine times them."""

from __future__ import annotations

from collections import deque

import numpy as np

from infercast.errors import InputError
from infercast.serve.cache.tiers import Link, LinkTotals, Offload, TierTotals
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.offloading import Move
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepEstimate
from infercast.serve.timeline import Timeline


class Transfers:
    """The links of one engine; nothing waits for what they copy."""

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self.load, self.store = Link(offload.load), Link(offload.store)
        self.waited = 0.0
        """Seconds in which steps waited for copies."""
        self._began: dict[int, float] = {}
        """When the first copy from the host of each request that had one was handed over."""

    @property
    def is_busy(self) -> bool:
        """Whether the engine takes turns without a step for them."""
        return False

    @property
    def may_repeat(self) -> bool:
        """Whether steps of decoding can be taken in stretches."""
        return True

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[Move]]:
        """Copies begin with a step; returns what the step takes then, and copies whose end is seen with it."""
        raise NotImplementedError

    def result_at(self, end: float) -> float:
        """When the host has the tokens of a step that the GPU has done by then."""
        return end

    def check_progress(self) -> None:
        """Requests wait, nothing is under way and no request is to come."""

    def end(self, moves: list[Move]) -> None:
        """The scheduler hears of copies that have ended."""

    def totals(self, num_requests: int) -> TierTotals:
        """What a run of so many requests did with the tier."""
        raise NotImplementedError

    def _totals(
        self, num_requests: int, loaded: dict[int, int], *, blocks: int, peak: int, refused: int, queried: int, hit: int
    ) -> TierTotals:
        num_loaded = np.zeros(num_requests, dtype=np.int64)
        num_loaded[[*loaded.keys()]] = [*loaded.values()]
        load_began = np.full(num_requests, np.nan)
        load_began[[*self._began.keys()]] = [*self._began.values()]
        load, store = (LinkTotals(each.num_copies, each.num_bytes, each.seconds) for each in (self.load, self.store))
        return TierTotals(blocks, peak, refused, queried, hit, load, store, self.waited, num_loaded, load_began)


class BlockTransfers(Transfers):
    """Whole blocks beside the steps, as vLLM copies them.

    A copy from the host starts when the step is launched that was planned with it. A copy to the host is handed over at
    the start of the step after the one that computes the blocks, and starts when that one is done; tokens of a step
    that ends meanwhile reach the host after it, for they travel the same way. The engine looks for copies that have
    ended after it has launched a step, and hears of them with that step's result. While nothing can be computed and
    copies are under way it takes turns without a step.
    """

    def __init__(self, offload: Offload, scheduler: Scheduler) -> None:
        super().__init__(offload)
        assert scheduler.offload is not None
        self._scheduler, self._planned = scheduler, scheduler.offload
        self._stored: deque[tuple[float, float]] = deque()
        """When copies to the host began and end."""
        self._handed_over: list[Move] = []
        self._unsubmitted: list[Move] = []

    @property
    def is_busy(self) -> bool:
        """Whether copies are under way."""
        return self._planned.has_moves

    @property
    def may_repeat(self) -> bool:
        """Not while copies are under way, or where every step may hand some over."""
        return self.offload.prompts_only and not self._planned.has_moves

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[Move]]:
        """Hand copies over before the step's first kernel, and look for those that have ended after its last."""
        if not self._planned.has_moves:
            return estimate, []
        host = estimate.host
        before = timeline.clock + host.plan + host.prepare
        after = self._hand_over(before, timeline.gpu_free)
        host = host._replace(prepare=host.prepare + (after - before))
        polled = after + host.launch + (host.wake if timeline.slept else 0.0)
        return estimate._replace(host=host), self._ended_by(polled)

    def empty_turn(self, timeline: Timeline) -> list[Move]:
        """Hand copies over without a step; returns those whose end is seen with that."""
        timeline.clock = self._hand_over(timeline.clock, timeline.gpu_free)
        return self._ended_by(timeline.clock)

    def _hand_over(self, now: float, gpu_free: float) -> float:
        """Copies begin, stores after what the GPU has to do; returns when the host is done with that."""
        planned = self._planned
        for move in self._unsubmitted:
            begun = max(now, gpu_free, self.store.free_at)
            now, move.end = self.store.copy(now, move.num_bytes, move.num_pieces, after=gpu_free)
            self._stored.append((begun, move.end))
        self._handed_over += self._unsubmitted
        if planned.flushed:
            waited = max([now, *(move.end for move in planned.flushed if move.end)])
            self.waited += waited - now
            now, planned.flushed = waited, []
        for move in planned.loads:
            if not move.sequence.num_preemptions:
                self._began[move.sequence.index] = now
            now, move.end = self.load.copy(now, move.num_bytes, move.num_pieces)
        self._handed_over += planned.loads
        self._unsubmitted, planned.stores, planned.loads = planned.stores, [], []
        return now

    def _ended_by(self, time: float) -> list[Move]:
        """Copies that have ended, and were not seen before."""
        ended = [move for move in self._handed_over if move.end <= time]
        if ended:
            self._handed_over = [move for move in self._handed_over if move.end > time]
        return ended

    def result_at(self, end: float) -> float:
        """Tokens travel behind what is being stored when their step ends."""
        stored = self._stored
        while stored and stored[0][1] <= end:
            stored.popleft()
        for begun, until in stored:
            if begun >= end:
                break
            end = max(end, until)
        return end

    def check_progress(self) -> None:
        """Refuse to wait for ever."""
        raise InputError(
            f"the engine would wait for ever: {len(self._scheduler.waiting):,} requests wait, the first for KV "
            "blocks that others hold which wait behind it and were loaded from host memory; give the GPU's "
            "cache more blocks, or ask for a newer engine"
        )

    def end(self, moves: list[Move]) -> None:
        """The scheduler hears of copies that have ended."""
        self._scheduler.end_moves(moves)

    def totals(self, num_requests: int) -> TierTotals:
        """What a run of so many requests did with the tier."""
        planned, tier = self._planned, self._planned.tier
        return self._totals(
            num_requests, planned.loaded, blocks=tier.num_blocks, peak=tier.peak, refused=tier.num_refused,
            queried=planned.num_queried, hit=planned.num_hit,
        )  # fmt: skip


class LayerTransfers(Transfers):
    """Pages that come back from the host while the prompts that need them are computed, as in SGLang.

    Layers are loaded one after the other and computed as they arrive, so a step lasts at least as long as its copy, and
    the last layer comes after. Copies to the host begin when results are processed; nothing waits for them.
    """

    def __init__(self, offload: Offload, scheduler: PrefillScheduler) -> None:
        super().__init__(offload)
        assert scheduler.cache.host is not None
        self._host = scheduler.cache.host

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[Move]]:
        """A step that loads something lasts until its last layer is there and computed."""
        loaded, stored, offload = self._host.loaded, self._host.stored, self.offload
        for count in stored:
            self.store.copy(timeline.clock, count * offload.block_bytes)
        stored.clear()
        if not (loaded and plan.sequences):
            return estimate, []
        host, planned = estimate.host, timeline.clock + estimate.host.plan
        _, end = self.load.copy(planned, sum(loaded) * offload.block_bytes)
        loaded.clear()
        start = max(planned + host.prepare, timeline.gpu_free)
        seconds = estimate.gpu_seconds[0]
        longer = max(seconds, end - start + seconds / offload.block_pieces) - seconds
        self.waited += longer
        self._began |= dict.fromkeys(self._host.new_loads, planned)
        host = host.waiting(max(0.0, longer - host.launch))
        return estimate._replace(gpu_seconds=[seconds + longer], host=host), []

    def totals(self, num_requests: int) -> TierTotals:
        """What a run of so many requests did with the tier."""
        host = self._host
        return self._totals(
            num_requests, host.found, blocks=host.num_blocks, peak=host.peak, refused=host.num_refused,
            queried=host.num_queried, hit=host.num_hit,
        )  # fmt: skip


def transfers_of(offload: Offload, scheduler: Scheduler | PrefillScheduler) -> Transfers:
    """The copies of a scheduler's engine, block by block or layer by layer."""
    return (
        BlockTransfers(offload, scheduler) if isinstance(scheduler, Scheduler) else LayerTransfers(offload, scheduler)
    )
