"""When steps run: a host thread and the stages of a pipeline, warm-up costs, and noise of clock and host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from infercast.serve.scheduler.base import Plan
from infercast.serve.step import HostCost, StepEstimate, StepShape

# Kernels that an engine has not used since its start.
#
# CUDA loads a kernel when it is first launched, and that blocks the host until the GPU is idle. Libraries choose among
# many kernels by the number of rows, so the first steps of a new size show it: the host cannot run ahead, and the
# tokens of the step before stay where they are until the GPU is done. An engine that has served for a while has met
# all sizes; one that was just started has met those of its own warm-up.


TOKENS_ALIKE = 64
"""Eager steps whose tokens need as many tiles of this size are taken to run the same kernels ..."""
ROWS_ALIKE = 8
"""... and so are heads over as many tiles of rows."""


class News(NamedTuple):
    """Where a step launches kernels for the first time."""

    in_layers: bool
    in_head: bool


NOTHING_NEW = News(in_layers=False, in_head=False)


class WarmupCosts:
    """What one engine has met since its start; ``largest_graph`` and below are recorded before it serves.

    ``known_rows``: heads over at most so many rows are in graphs that were recorded, as those that draft are.
    """

    def __init__(self, largest_graph: int, max_num_batched_tokens: int, max_num_seqs: int, known_rows: int = 0) -> None:
        self._largest_graph = largest_graph
        # An engine measures its memory with the largest step there can be.
        self._tokens = {-(-max_num_batched_tokens // TOKENS_ALIKE)}
        self._rows = {-(-max_num_seqs // ROWS_ALIKE), *range(known_rows // ROWS_ALIKE + 1)}

    def knows(self, shape: StepShape) -> bool:
        """Whether nothing is new about a step of decoding."""
        eager = shape.num_tokens > self._largest_graph
        return -(-shape.head_rows // ROWS_ALIKE) in self._rows and not (
            eager and -(-shape.num_tokens // TOKENS_ALIKE) not in self._tokens
        )

    def meet(self, shape: StepShape) -> News:
        """What is new about a step; it is not new any more afterwards."""
        rows = -(-shape.head_rows // ROWS_ALIKE)
        new_rows = rows not in self._rows
        self._rows.add(rows)
        if shape.num_tokens <= self._largest_graph:
            return News(in_layers=False, in_head=new_rows)
        tokens = -(-shape.num_tokens // TOKENS_ALIKE)
        new_tokens = tokens not in self._tokens
        self._tokens.add(tokens)
        return News(in_layers=new_tokens, in_head=new_rows)


# What makes steps that are alike take different times: the clock that the power limit has left, and a busy host.
#
# A step timer tells what a step takes on a GPU that was cool, with a host at its usual speed. A run adds its history.
# Large products lower the clock, and it takes a while to recover: heavy steps in a row take longer than the first one.
# And launching a step with prompts, which is thousands of calls in Python, takes a different time each time.


LAUNCH_SPREAD = 0.17
"""Standard deviation of the logarithm of how long launching a step with prompts takes, from step logs of engines on
H200 machines: 0.06 to 0.27 in single runs (docs/engine.md)."""
LEAST_SHARE = 1e-5
"""By which products have to lose for anybody to notice."""
NUM_DRAWN = 4096
"""Draws of a run before they are used again."""


class StepNoise:
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
        gpu_seconds, varying, host, rows, slowed, target, throttled = estimate
        if self._factors:
            self._number += 1
            factor = self._factors[self._number % NUM_DRAWN]
            host = HostCost(host.plan, host.prepare, factor * host.launch, host.process, host.wake)
        elif not throttled or not self._settle:
            return estimate
        if throttled and self._settle:
            seconds = gpu_seconds[0]
            ready = clock + host.plan + host.prepare
            longer, share = self._longer(seconds, ready if ready > gpu_free else gpu_free, throttled, target)
            if share >= LEAST_SHARE:
                factor = (1.0 + (slowed + share)) / (1.0 + slowed)
                gpu_seconds, slowed = [longer], slowed + share
                varying = [[factor * each for each in kernel] for kernel in varying]
        return StepEstimate(gpu_seconds, varying, host, rows, slowed, target, throttled)

    def _longer(self, seconds: float, start: float, throttled: float, target: float) -> tuple[float, float]:
        """What a step that begins then takes after those before it, and the share that its products lose more."""
        settle, gap = self._settle, self._at - start
        # Stages of a pipeline begin a step while others still work on the one before: nothing recovers in between.
        carried = self._lost * math.exp((gap if gap < 0.0 else 0.0) / settle) if self._lost else 0.0
        left = math.exp(-seconds / settle)
        share = carried * (settle / seconds) * (1.0 - left)
        longer = seconds + share * throttled
        self._lost, self._at = target * (1.0 - left) + carried * left, start + longer
        return longer, share


# The host plans a step, prepares its inputs, launches its kernels and, once as many steps are under way as may be,
# waits for the oldest result and takes it in. The GPU begins a step when its first kernel has been launched and the
# step before is done, and ends it no sooner than the last kernel was launched. Every moment is thus the latest of a
# few sums of earlier ones.


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

    def launch(self, host: HostCost, gpu_seconds: float, news: News = NOTHING_NEW, plan: Plan | None = None) -> Span:
        """Plan a step and launch it; the host is free when its last kernel is on its way.

        Who is in the step, as ``plan`` has it, matters to pipelines alone.
        """
        clock, gpu_free = self.clock, self.gpu_free
        idle_from = clock if clock > gpu_free else gpu_free
        ready = clock + host.plan + host.prepare
        start = ready if ready > gpu_free else gpu_free
        if news.in_layers:
            ready = start
        clock = ready + host.launch + (host.wake if self.slept else 0.0)
        late = clock - (start + gpu_seconds)
        late = late if late > 0.0 else 0.0
        self.gpu_free = end = start + gpu_seconds + late
        self.clock, self.slept = end if news.in_head and end > clock else clock, False
        return Span(start, end, (start - idle_from) + gpu_seconds + late)

    def take_in(self, end: float, process: float) -> float:
        """Wait for the step that ends then and take its result in; returns when its tokens leave the engine."""
        self.clock = (self.clock if self.clock > end else end) + process
        return self.clock

    def repeat(self, host: HostCost, gpu_seconds: list[float], process_before: float | None) -> Repetitions:
        """A step launched again and again; the result of the step before is taken in ``process_before`` seconds after
        it ends, once the first has been launched. None: it has been taken in.
        """
        plan, prepare, launch, process, _ = host
        clock, gpu_free = self.clock, self.gpu_free
        if process_before is not None:
            # Where the host is done with launching before the step under way ends, the GPU never waits.
            launched = plan + prepare + launch + MARGIN
            longer = process if process > process_before else process_before
            if clock + launched < gpu_free and min(gpu_seconds) > launched + longer:
                ends = [*accumulate(gpu_seconds, initial=gpu_free)]
                clocks = [end + process for end in ends]
                clocks[0] = gpu_free + process_before
                del ends[0], clocks[-1]
                return gpu_seconds, ends, clocks
        processing = process if process_before is None else process_before
        before, ends, seconds, clocks = gpu_free, [], [], []
        # `launch` and `take_in` in turn, spelled out: steps of small models pass here.
        for gpu in gpu_seconds:
            idle_from = clock if clock > gpu_free else gpu_free
            ready = clock + plan + prepare
            start = ready if ready > gpu_free else gpu_free
            clock = ready + launch
            late = clock - (start + gpu)
            late = late if late > 0.0 else 0.0
            gpu_free = start + gpu + late
            seconds.append((start - idle_from) + gpu + late)
            ends.append(gpu_free)
            end = gpu_free if process_before is None else before
            clock = (clock if clock > end else end) + processing
            clocks.append(clock)
            before, processing = gpu_free, process
        return seconds, ends, clocks


# A pipeline of GPUs: stages work on different batches at the same time, on one batch one after the other.


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
