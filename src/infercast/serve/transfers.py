"""KV block copies between GPU and host memory, as timed by the engine's loop."""

from __future__ import annotations

from collections import deque

import numpy as np

from infercast.errors import InputError
from infercast.serve.cache.radix_cache import HostPages
from infercast.serve.cache.tiers import CopyQueue, HostTier, Offload, TierTotals
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.offloading import HostOffload, KvTransfer
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepEstimate
from infercast.serve.timeline import Timeline


class Transfers:
    """The links of one engine; by default nothing waits for copies."""

    def __init__(
        self, offload: Offload, tier: HostTier | HostPages, lookups: HostOffload | HostPages, loaded: dict[int, int]
    ) -> None:
        """``lookups``: what was looked up in the ``tier``, and how much was found; ``loaded``: tokens by request."""
        self.offload, self._tier, self._lookups, self._loaded = offload, tier, lookups, loaded
        self.load, self.store = CopyQueue(offload.load), CopyQueue(offload.store)
        self.waited = 0.0  # Seconds that steps waited for copies
        self._began: dict[int, float] = {}  # When each request's first copy from the host was submitted

    @property
    def is_busy(self) -> bool:
        """True if the engine runs turns without a step for them."""
        return False

    @property
    def may_repeat(self) -> bool:
        """True if decode steps can be taken in runs."""
        return True

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[KvTransfer]]:
        """Issue copies with a step; returns the step's cost then, and the completed copies seen with it."""
        raise NotImplementedError

    def result_at(self, end: float) -> float:
        """When the host has the tokens of a step that the GPU finishes at ``end``."""
        return end

    def check_progress(self) -> None:
        """Called when requests wait, nothing is in flight and no request will arrive."""

    def end(self, moves: list[KvTransfer]) -> None:
        """Report completed copies to the scheduler."""

    def totals(self, num_requests: int) -> TierTotals:
        """The tier's totals over a run."""
        num_loaded = np.zeros(num_requests, dtype=np.int64)
        num_loaded[[*self._loaded.keys()]] = [*self._loaded.values()]
        load_began = np.full(num_requests, np.nan)
        load_began[[*self._began.keys()]] = [*self._began.values()]
        tier, found = self._tier, (self._lookups.num_queried, self._lookups.num_hit)
        sizes = tier.num_blocks, tier.peak, tier.num_refused
        return TierTotals(*sizes, *found, self.load, self.store, self.waited, num_loaded, load_began)


class BlockTransfers(Transfers):
    """Whole blocks, copied asynchronously to the steps as in vLLM. A copy from the host starts when its step is
    launched. A copy to the host is submitted at the start of the step after the one that computes the blocks, and
    starts when the computing step is done; tokens of a step that ends meanwhile reach the host after it, as they share
    the link. The engine polls for completed copies after launching a step, and processes them with that step's result.
    While copies are in flight and nothing can be scheduled, it runs turns without a step.
    """

    def __init__(self, offload: Offload, scheduler: Scheduler) -> None:
        planned = scheduler.offload
        assert planned is not None
        super().__init__(offload, planned.tier, planned, planned.loaded)
        self._scheduler, self._planned = scheduler, planned
        self._stored: deque[tuple[float, float]] = deque()  # Start and end of copies to the host
        self._handed_over: list[KvTransfer] = []
        self._unsubmitted: list[KvTransfer] = []

    @property
    def is_busy(self) -> bool:
        return self._planned.num_under_way > 0

    @property
    def may_repeat(self) -> bool:
        """Not while copies are in flight, or if every step may submit some."""
        return self.offload.prompts_only and not self._planned.num_under_way

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[KvTransfer]]:
        """Submit copies before the step's first kernel, and poll for completed ones after its last."""
        if not self._planned.num_under_way:
            return estimate, []
        host = estimate.host
        before = timeline.clock + host.plan + host.prepare
        after = self._hand_over(before, timeline.gpu_free)
        host = host._replace(prepare=host.prepare + (after - before))
        polled = after + host.launch + (host.wake if timeline.slept else 0.0)
        return estimate._replace(host=host), self._ended_by(polled)

    def empty_turn(self, timeline: Timeline) -> list[KvTransfer]:
        """Submit copies without a step; returns the completed copies seen with that."""
        timeline.clock = self._hand_over(timeline.clock, timeline.gpu_free)
        return self._ended_by(timeline.clock)

    def _hand_over(self, now: float, gpu_free: float) -> float:
        """Start copies, stores after the GPU's queued work; returns when the host is done submitting."""
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

    def _ended_by(self, time: float) -> list[KvTransfer]:
        ended = [move for move in self._handed_over if move.end <= time]
        if ended:
            self._handed_over = [move for move in self._handed_over if move.end > time]
        return ended

    def result_at(self, end: float) -> float:
        """Tokens queue behind stores that are in progress when their step ends."""
        stored = self._stored
        while stored and stored[0][1] <= end:
            stored.popleft()
        for begun, until in stored:
            if begun >= end:
                break
            end = max(end, until)
        return end

    def check_progress(self) -> None:
        """Raise an error instead of waiting forever."""
        raise InputError(
            f"the engine would wait for ever: {len(self._scheduler.waiting):,} requests wait, the first for KV "
            "blocks that others hold which wait behind it and were loaded from host memory; give the GPU's "
            "cache more blocks, or ask for a newer engine"
        )

    def end(self, moves: list[KvTransfer]) -> None:
        self._scheduler.end_moves(moves)


class LayerTransfers(Transfers):
    """Pages loaded from the host while the prompts that need them are computed, as in SGLang. Layers are loaded in
    order and computed as they arrive, so a step takes at least as long as its copy, plus the last layer. Copies to the
    host begin when results are processed; nothing waits for them.
    """

    def __init__(self, offload: Offload, scheduler: PrefillScheduler) -> None:
        host = scheduler.cache.host
        assert host is not None
        super().__init__(offload, host, host, host.found)
        self._host = host

    def launch(self, plan: Plan, estimate: StepEstimate, timeline: Timeline) -> tuple[StepEstimate, list[KvTransfer]]:
        """A step with loads lasts until its last layer has arrived and is computed."""
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
