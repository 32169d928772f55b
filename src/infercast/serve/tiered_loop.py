"""The loop of an engine that brings KV pages back from the host's memory while it computes the prompts that need them.

Layers are loaded one after the other and computed as they arrive, so a step lasts at least as long as its copy, and the
last layer comes after. Copies to the host begin when results are taken in; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from infercast.serve.cache.offload import Offload
from infercast.serve.links import Link
from infercast.serve.loop import Loop, Step
from infercast.serve.scheduler.tiered_scheduler import TieredScheduler
from infercast.serve.tier_totals import LinkTotals, TierTotals


class TieredLoop(Loop):
    """One engine with a tier of its KV cache in the host's memory."""

    def __init__(self, scheduler: TieredScheduler, *args: Any, offload: Offload, **options: Any) -> None:
        super().__init__(scheduler, *args, **options)
        self.offload, self.planner = offload, scheduler
        self.load, self.store = Link(offload.load), Link(offload.store)
        self.waited = 0.0
        """Seconds in which steps waited for what they load."""
        self._began: dict[int, float] = {}

    def turns(self) -> Iterator[float]:
        """As of any engine; at the end, the record is told of the tier."""
        yield from super().turns()
        self.record.tier = self._totals()

    def _launch(self, step: Step) -> None:
        """A step that loads something lasts until its last layer is there and computed."""
        loaded, stored = self.planner.tiers.loaded, self.planner.tiers.stored
        if stored:
            for count in stored:
                self.store.copy(self.timeline.clock, count * self.offload.block_bytes)
            stored.clear()
        if loaded and step.plan.sequences:
            host, timeline = step.estimate.host, self.timeline
            planned = timeline.clock + host.plan
            _, end = self.load.copy(planned, sum(loaded) * self.offload.block_bytes)
            loaded.clear()
            start = max(planned + host.prepare, timeline.gpu_free)
            seconds = step.estimate.gpu_seconds[0]
            longer = max(seconds, end - start + seconds / self.offload.block_pieces) - seconds
            self.waited += longer
            self._began |= dict.fromkeys(self.planner.new_loads, planned)
            step.estimate = step.estimate._replace(
                gpu_seconds=[seconds + longer], host=host.waiting(max(0.0, longer - host.launch))
            )
        super()._launch(step)

    def _totals(self) -> TierTotals:
        planner, tiers, loaded = self.planner, self.planner.tiers, self.planner.loaded
        num_loaded = np.zeros(len(self.record.sent_at), dtype=np.int64)
        num_loaded[[*loaded.keys()]] = [*loaded.values()]
        load_began = np.full(len(num_loaded), np.nan)
        load_began[[*self._began.keys()]] = [*self._began.values()]
        return TierTotals(
            num_blocks=tiers.host_blocks,
            peak_blocks=tiers.host_peak,
            num_refused=tiers.num_refused,
            num_queried=planner.num_queried,
            num_hit=planner.num_hit,
            load=LinkTotals(self.load.num_copies, self.load.num_bytes, self.load.seconds),
            store=LinkTotals(self.store.num_copies, self.store.num_bytes, self.store.seconds),
            waited=self.waited,
            num_loaded=num_loaded,
            load_began=load_began,
        )
