"""One host thread and one GPU, each working through its steps in order.

The host plans a step, prepares its inputs, launches its kernels and, once as many steps are under way as may be,
waits for the oldest result and takes it in. The GPU begins a step when its first kernel has been launched and the
step before is done, and ends it no sooner than the last kernel was launched. Every moment is thus the latest of a
few sums of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.engine.step import HostCost
from infercast.serve.first_use import NOTHING_NEW, News


@dataclass(frozen=True, slots=True)
class Span:
    """One step on the GPU."""

    start: float
    end: float
    seconds: float
    """What the step adds to the run: its GPU time, and the time in which the GPU waited for its host."""


@dataclass(slots=True)
class Timeline:
    """Where host and GPU stand, in seconds."""

    clock: float = 0.0
    """When the host's thread is free."""
    gpu_free: float = 0.0
    """When the last launched step ends."""
    slept: bool = False
    """Whether the host had nothing to do before this moment."""

    def sleep_until(self, time: float) -> None:
        """Nothing is under way and nobody waits before then."""
        self.clock, self.slept = time, True

    def copy(self) -> Timeline:
        """A timeline that can be run ahead of this one."""
        return replace(self)

    def launch(self, host: HostCost, gpu_seconds: float, news: News = NOTHING_NEW) -> Span:
        """Plan a step and launch it; the host is free when its last kernel is on its way."""
        idle_from = max(self.clock, self.gpu_free)
        ready = self.clock + host.plan + host.prepare
        if news.in_layers:
            ready = max(ready, self.gpu_free)
        start = max(ready, self.gpu_free)
        self.clock = ready + host.launch + (host.wake if self.slept else 0.0)
        self.slept = False
        late = max(0.0, self.clock - (start + gpu_seconds))
        self.gpu_free = start + gpu_seconds + late
        if news.in_head:
            self.clock = max(self.clock, self.gpu_free)
        return Span(start, self.gpu_free, (start - idle_from) + gpu_seconds + late)

    def take_in(self, end: float, host: HostCost) -> float:
        """Wait for the step that ends then and take its result in; returns when its tokens leave the engine."""
        self.clock = max(self.clock, end) + host.process
        return self.clock
