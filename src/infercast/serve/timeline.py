"""One host thread and one GPU, each working through its steps in order.

The host plans a step, prepares its inputs, launches its kernels and, once as many steps are under way as may be,
waits for the oldest result and takes it in. The GPU begins a step when its first kernel has been launched and the
step before is done, and ends it no sooner than the last kernel was launched. Every moment is thus the latest of a
few sums of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from infercast.serve.first_use import NOTHING_NEW, News
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.step import HostCost

MARGIN = 1e-6
"""Seconds by which the host must be ahead, far more than rounding makes of a sum."""


class Span(NamedTuple):
    """One step on the GPU."""

    start: float
    end: float
    seconds: float
    """What the step adds to the run: its GPU time, and the time in which the GPU waited for its host."""


Repetitions = tuple[list[float], list[float], list[float]]
"""Steps that follow each other: what each adds to the run, when the GPU is done with it, and when the host is free
after it, which is when it has taken in the oldest result."""


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

    def jump(self, clock: float, gpu_free: float) -> None:
        """Go to where a run ahead got."""
        self.clock, self.gpu_free, self.slept = clock, gpu_free, False

    def launch(self, host: HostCost, gpu_seconds: float, news: News = NOTHING_NEW, plan: Plan | None = None) -> Span:
        """Plan a step and launch it; the host is free when its last kernel is on its way.

        Who is in the step, as ``plan`` has it, matters to pipelines alone.
        """
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

    def take_in(self, end: float, process: float) -> float:
        """Wait for the step that ends then and take its result in; returns when its tokens leave the engine."""
        self.clock = (self.clock if self.clock > end else end) + process
        return self.clock

    def repeat(self, host: HostCost, gpu_seconds: list[float], *, ahead: bool) -> Repetitions:
        """The step launched last, launched again and again; ``ahead``: it is under way when the next is planned."""
        plan, prepare, launch, process, _ = host
        clock, gpu_free = self.clock, self.gpu_free
        # Where the host is done with launching before the step under way ends, the GPU never waits.
        launched = plan + prepare + launch + MARGIN
        if ahead and clock + launched < gpu_free and min(gpu_seconds) > launched + process:
            ends = [*accumulate(gpu_seconds, initial=gpu_free)]
            clocks = [end + process for end in ends]
            del ends[0], clocks[-1]
            return gpu_seconds, ends, clocks
        ends, seconds, clocks = [gpu_free] if ahead else [], [], []
        # `launch` and `take_in` in turn, spelled out: steps of small models pass here.
        for taken, gpu in enumerate(gpu_seconds):
            idle_from = clock if clock > gpu_free else gpu_free
            ready = clock + plan + prepare
            start = ready if ready > gpu_free else gpu_free
            clock = ready + launch
            late = clock - (start + gpu)
            late = late if late > 0.0 else 0.0
            gpu_free = start + gpu + late
            seconds.append((start - idle_from) + gpu + late)
            ends.append(gpu_free)
            end = ends[taken]
            clock = (clock if clock > end else end) + process
            clocks.append(clock)
        return seconds, ends[ahead:], clocks
