"""When steps run: the host thread, pipeline stages, warm-up costs, and noise of GPU clock and host."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add

import numpy as np

from infercast.lazy_classes import NamedTuple
from infercast.serve.scheduler.base import Plan
from infercast.serve.step import HostCost, StepEstimate, StepShape, estimated, host_cost_of

# Kernels the engine has not used since its start. CUDA loads a kernel at its first launch, which blocks the host until
# the GPU is idle. Libraries select among many kernels by the number of rows, so the first step of a new size shows it:
# the host cannot run ahead, and the previous step's tokens are held up until the GPU is done. An engine that has served
# for a while has seen all sizes; a fresh one only those of its own warm-up.

TOKENS_ALIKE = 64  # Eager steps with token counts up to the same multiple of this are taken to run the same kernels ...
ROWS_ALIKE = 8  # ... and so are LM heads whose row counts round up to the same multiple of this.


class WarmupHit(NamedTuple):
    """Where a step launches kernels for the first time."""

    in_layers: bool
    in_head: bool


NOTHING_NEW = WarmupHit(in_layers=False, in_head=False)


class WarmupCosts:
    """Kernels one engine has loaded; up to ``largest_graph`` tokens and ``known_rows`` rows they are in captured
    graphs.
    """

    def __init__(self, largest_graph: int, max_num_batched_tokens: int, max_num_seqs: int, known_rows: int = 0) -> None:
        self._largest_graph = largest_graph
        # An engine profiles its memory with the largest possible step.
        self._tokens = {-(-max_num_batched_tokens // TOKENS_ALIKE)}
        self._rows = {-(-max_num_seqs // ROWS_ALIKE), *range(known_rows // ROWS_ALIKE + 1)}

    def copy(self) -> WarmupCosts:
        """As much loaded, from now on by another engine."""
        same = WarmupCosts(self._largest_graph, 0, 0)
        same._tokens, same._rows = {*self._tokens}, {*self._rows}
        return same

    def knows(self, shape: StepShape) -> bool:
        """True if a decode step needs no new kernels."""
        eager = shape.num_tokens > self._largest_graph
        return -(-shape.head_rows // ROWS_ALIKE) in self._rows and not (
            eager and -(-shape.num_tokens // TOKENS_ALIKE) not in self._tokens
        )

    def meet(self, shape: StepShape) -> WarmupHit:
        """What is new about a step, which is then marked as known."""
        rows = -(-shape.head_rows // ROWS_ALIKE)
        new_rows = rows not in self._rows
        self._rows.add(rows)
        if shape.num_tokens <= self._largest_graph:
            return WarmupHit(in_layers=False, in_head=new_rows)
        tokens = -(-shape.num_tokens // TOKENS_ALIKE)
        new_tokens = tokens not in self._tokens
        self._tokens.add(tokens)
        return WarmupHit(in_layers=new_tokens, in_head=new_rows)


# Why identical steps take different times: the clock left by the power limit, and a busy host. A step timer assumes a
# cool GPU and a host at its usual speed; a run adds history. Large GEMMs lower the clock, which takes a while to
# recover, so consecutive heavy steps take longer than the first. And launching a step with prefill, thousands of calls
# in Python, takes a different time each time.

LAUNCH_SPREAD = 0.17
"""Standard deviation of the logarithm of how long launching a step with prompts takes, from step logs of engines on
H200 machines: 0.06 to 0.27 in single runs (docs/engine.md)."""
NUM_DRAWN = 4096  # Draws before they repeat


@lru_cache(maxsize=16)
def _drawn(spread: float, seed: int) -> list[float]:
    drawn = np.random.default_rng(seed).normal(0.0, spread, NUM_DRAWN)
    return [*np.exp(drawn - spread * spread / 2).tolist()]


class StepNoise:
    """State of one engine's GPU clock and host; sees every step with prefill in launch order."""

    def __init__(self, settle_seconds: float = 0.0, spread: float = 0.0, seed: int = 0) -> None:
        """``settle_seconds``: time constant of the clock's response to power, 0 for a GPU that is always cool;
        ``spread`` as `LAUNCH_SPREAD`, 0 for a host without variation.
        """
        self._settle = settle_seconds
        self._lost, self._at = 0.0, 0.0  # Fractional GEMM slowdown at the end of the last heavy step, and when that was
        self._factors, self._number = _drawn(spread, seed) if spread else [], 0

    def meet(self, estimate: StepEstimate, clock: float, gpu_free: float) -> StepEstimate:
        """The same step as it comes out now: planned at ``clock``, behind what keeps the GPU until ``gpu_free``."""
        gpu_seconds, varying, host, rows, slowed, target, throttled = estimate
        if self._factors:
            self._number += 1
            factor = self._factors[self._number % NUM_DRAWN]
            plan, prepare, launch, process, wake = host
            host = host_cost_of((plan, prepare, factor * launch, process, wake))
        elif not throttled or not self._settle:
            return estimate
        if throttled and self._settle:
            seconds, settle, ready = gpu_seconds[0], self._settle, clock + host[0] + host[1]
            start = ready if ready > gpu_free else gpu_free
            # Stages of a pipeline begin a step while others still work on the one before: nothing recovers in between.
            gap = self._at - start
            carried = self._lost * math.exp((gap if gap < 0.0 else 0.0) / settle) if self._lost else 0.0
            left = math.exp(-seconds / settle)
            share = carried * (settle / seconds) * (1.0 - left)  # That its products lose more
            longer = seconds + share * throttled
            self._lost, self._at = target * (1.0 - left) + carried * left, start + longer
            least_share = 1e-5  # Less makes no difference
            if share >= least_share:
                factor = (1.0 + (slowed + share)) / (1.0 + slowed)
                gpu_seconds, slowed = [longer], slowed + share
                varying = [[factor * each] for (each,) in varying]
        return estimated((gpu_seconds, varying, host, rows, slowed, target, throttled))


# The host schedules a step, prepares its inputs, launches its kernels and, once the in-flight limit is reached, waits
# for the oldest result and processes it. The GPU begins a step when its first kernel has been launched and the previous
# step is done, and ends it no sooner than the last kernel was launched. Every time is thus the maximum of a few sums of
# earlier ones.


class Span(NamedTuple):
    start: float
    end: float
    seconds: float  # Time the step adds to the run: its GPU time, and the time the GPU waited for the host
    planned: float = 0.0  # In a pipeline, when the host began to schedule it
    stages: tuple[tuple[float, float], ...] = ()  # In a pipeline, start and end on each stage


Repetitions = tuple[list[float], list[float], list[float]]
"""Consecutive steps: the time each adds to the run, when the GPU finishes it, and when the host is free after it,
having processed the oldest result."""


class Timeline:
    """Host and GPU times, in seconds."""

    __slots__ = ("clock", "gpu_free", "slept")

    def __init__(self, clock: float = 0.0, gpu_free: float = 0.0, *, slept: bool = False) -> None:
        """When the host thread is free, when the last launched step ends, and whether the host has been idle so far."""
        self.clock, self.gpu_free, self.slept = clock, gpu_free, slept

    def sleep_until(self, time: float) -> None:
        """Idle: nothing is in flight and no request arrives before then."""
        self.clock, self.slept = time, True

    def launch(
        self, host: HostCost, gpu_seconds: float, news: WarmupHit = NOTHING_NEW, plan: Plan | None = None
    ) -> Span:
        """Schedule and launch a step, until the host is free; the sequences in ``plan`` matter only to pipelines."""
        clock, gpu_free, (plan_seconds, prepare, launch, _, wake) = self.clock, self.gpu_free, host
        idle_from = clock if clock > gpu_free else gpu_free
        ready = clock + plan_seconds + prepare
        start = ready if ready > gpu_free else gpu_free
        if news.in_layers:
            ready = start
        clock = ready + launch + (wake if self.slept else 0.0)
        late = clock - (start + gpu_seconds)
        late = late if late > 0.0 else 0.0
        self.gpu_free = end = start + gpu_seconds + late
        self.clock, self.slept = end if news.in_head and end > clock else clock, False
        return tuple.__new__(Span, (start, end, (start - idle_from) + gpu_seconds + late, 0.0, ()))  # in half the time

    def take_in(self, end: float, process: float) -> float:
        """Wait for the step that ends then and process its result; returns when its tokens leave the engine."""
        self.clock = (self.clock if self.clock > end else end) + process
        return self.clock

    def repeat(self, host: HostCost, gpu_seconds: list[float], process_before: float | None) -> Repetitions:
        """A repeated step; the previous result takes ``process_before`` seconds after the first launch; None: it is
        processed.
        """
        plan, prepare, launch, process, _ = host
        margin = 1e-6  # Seconds the host must be ahead, far above rounding errors
        clock, gpu_free, launched = self.clock, self.gpu_free, plan + prepare + launch + margin
        processing = process if process_before is None else process_before
        longer = process if process > processing else processing
        may_lead = process_before is not None and min(gpu_seconds) > launched + longer
        before, seconds, ends, clocks = gpu_free, gpu_seconds[:0], gpu_seconds[:0], gpu_seconds[:0]
        # `launch` and `take_in` in turn, inlined for speed: small models end up here.
        for gpu in gpu_seconds:
            if may_lead and clock + launched < gpu_free:
                break
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
        if left := gpu_seconds[len(ends) :]:
            # Launching finishes before the step in flight ends, so the GPU never waits from here on.
            later = [*accumulate(left, initial=gpu_free)][1:]
            clocks += [before + processing, *map(add, later[:-1], repeat(process))]
            return seconds + left, ends + later, clocks
        return seconds, ends, clocks


# A pipeline of GPUs: stages overlap different batches, and run one batch in sequence.


class StagedTimeline(Timeline):
    """Each stage takes its share of a step's time, in order, once the previous stage has sent it the batch. Every stage
    has a process that prepares and launches its layers; it learns what to launch when the previous one has launched its
    own. Batches keep their order, so a stage that has just finished one waits for the next: that wait is the bubble. A
    sequence's next token starts on the first stage when the last stage has sampled the token before. With ``in_turn``
    the stages exchange every step's tokens before they begin the next one, so no two steps overlap.
    """

    __slots__ = ("_free_at", "_in_turn", "_known_at", "_launched_at", "_shares")

    def __init__(self, shares: tuple[float, ...], *, in_turn: bool = False) -> None:
        super().__init__()
        self._shares, self._in_turn = shares, in_turn
        self._free_at = [0.0] * len(shares)
        self._launched_at = [0.0] * len(shares)
        # By sequence index: when its last token was sampled, and when that step had been launched.
        self._known_at: dict[int, tuple[float, float]] = {}

    def launch(
        self, host: HostCost, gpu_seconds: float, news: WarmupHit = NOTHING_NEW, plan: Plan | None = None
    ) -> Span:
        """Schedule a step and send it down the pipeline; the engine's own thread is free once it is scheduled."""
        planned, idle_from = self.clock, max(self.clock, self.gpu_free if self._in_turn else self._free_at[0])
        self.clock = clock = planned + host.plan
        wake = host.wake if self.slept else 0.0
        self.slept = False
        end, known = self._tokens_known(plan)
        launched_at, free_at, prepare, launching = self._launched_at, self._free_at, host.prepare, host.launch
        launched_at[0] = known if known > launched_at[0] else launched_at[0]
        launched, stages = 0.0, list[tuple[float, float]]()
        for stage, share in enumerate(self._shares):
            before, free = launched_at[stage], free_at[stage]
            ready = (clock if clock > before else before) + prepare
            first = ready if ready > launched else launched
            launched = launched_at[stage] = first + launching * share + wake
            begin = end if end > first else first
            begin = begin if begin > free else free
            end = begin + share * gpu_seconds
            end = free_at[stage] = end if end > launched else launched
            stages.append((begin, end))
        self.gpu_free = end
        for sequence in plan.sampled if plan is not None else ():
            self._known_at[sequence.index] = end, launched
        # The run advances by the first stage's time; the rest overlaps with other batches.
        free = end if self._in_turn else self._free_at[0]
        return Span(stages[0][0], end, max(0.0, free - idle_from), planned, tuple(stages))

    def _tokens_known(self, plan: Plan | None) -> tuple[float, float]:
        """When the step's input tokens are known to the GPUs, and when the hosts were done with them."""
        if self._in_turn:
            return self.gpu_free, self._launched_at[-1]
        end = launched = 0.0
        for each in plan.sequences if plan is not None else ():
            ended, sent = self._known_at.pop(each.index, (0.0, 0.0))
            end, launched = ended if ended > end else end, sent if sent > launched else launched
        return end, launched
