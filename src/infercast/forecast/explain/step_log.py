"""The log of a run: one entry per step, one per request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from infercast.engines.timer import KernelTimer
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Array, Slo
from infercast.forecast.system import DECODE, ServingPool, System
from infercast.lazy_classes import dataclass
from infercast.serve import Record, Replica, Workload
from infercast.serve.loop import Progress
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.drafts import DraftSequence
from infercast.serve.step import DraftShape, HostCost, StepEstimate, StepShape
from infercast.serve.timeline import Span

CHUNK = 65_536
EXACT, ROUNDING = 1e-7, 1e-12  # Seconds below which two moments of a run, or two sums of a step's kernels, are equal
WAITING = ("waits for other replicas", "other replicas")
"""Name and family of the time in which replicas that share experts wait for each other."""
KINDS = ("prefill", "mixed", "decode")  # Steps with prompts only, with prompts and decoding, and with decoding only


class StepLog:
    """A watcher of one engine's run: notes its steps, and for each request what its prompt took."""

    def __init__(self, num_requests: int, *, takes_in: bool = False) -> None:
        self._takes_in = takes_in  # prompts arrive computed, as on a decode pool: a step computes a token of each
        self.own_seconds = np.zeros(num_requests)  # GPU seconds of each request to its first token, shared by tokens
        self.prompt_end = np.full(num_requests, np.nan)  # When the step ended that produced its first token
        self._ends: list[float] = []
        self._gpu_seconds: list[float] = []
        self._varying: list[list[float]] = []
        self._held: list[int] = []
        self._hosts: list[HostCost] = []
        # Of each stretch: its steps, tokens, tokens of prompts, sampled tokens, and rows of the timer's tables.
        self._stretches: list[tuple[int, ...]] = []
        self._slowed: dict[int, float] = {}
        self.spans: list[Span] = []  # Of each step of a pipeline, where steps overlap; empty without one

    def fit(self, num_requests: int) -> None:
        """Keep room for ``num_requests``."""
        kept = min(num_requests, self.own_seconds.size)
        own_seconds, prompt_end = np.zeros(num_requests), np.full(num_requests, np.nan)
        own_seconds[:kept], prompt_end[:kept] = self.own_seconds[:kept], self.prompt_end[:kept]
        self.own_seconds, self.prompt_end = own_seconds, prompt_end

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: Sequence[int]) -> None:
        if estimate.slowed:
            self._slowed[len(self._ends)] = estimate.slowed
        self.stretch(shape, estimate, [span.end], held)
        if span.stages:
            self.spans.append(span)
        share = estimate.gpu_seconds[0] / (shape.num_sequences if self._takes_in else shape.num_tokens)
        for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
            index = sequence.index
            if index >= self.prompt_end.size:  # the run goes on
                self.fit(2 * index)
            promised = not sequence.in_prompt if isinstance(sequence, DraftSequence) else sequence.num_promised
            if promised > 1 or self.prompt_end[index] == self.prompt_end[index]:
                continue
            self.own_seconds[index] += share if self._takes_in else share * new_tokens
            if promised:
                self.prompt_end[index] = span.end

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: Sequence[float], held: Sequence[int]) -> None:
        steps = len(ends)
        self._ends.extend(ends)
        self._held.extend(held)
        self._hosts.append(estimate.host)
        self._gpu_seconds.extend(estimate.gpu_seconds[:steps])
        if not self._varying:
            self._varying = [[] for _ in estimate.varying]
        for noted, values in zip(self._varying, estimate.varying, strict=True):
            noted.extend(values[:steps])
        tokens, of_decodes = shape.num_tokens, shape.num_sequences - len(shape.prompts)
        if isinstance(shape, DraftShape):
            of_decodes += shape.num_drafts
        if self._takes_in:
            tokens = of_decodes = shape.num_sequences
        self._stretches.append((steps, tokens, tokens - of_decodes, shape.num_sampled, *estimate.rows))

    @property
    def num_steps(self) -> int:
        return len(self._ends)

    @cached_property
    def steps(self) -> Steps:
        stretches = np.array(self._stretches, dtype=np.int64)
        columns = np.repeat(stretches[:, 1:], stretches[:, 0], axis=0).T
        tokens, prompt_tokens, sampled, *rows = columns
        slowed = np.zeros(tokens.size)
        slowed[[*self._slowed]] = [*self._slowed.values()]
        return Steps(
            ends=np.array(self._ends),
            gpu_seconds=np.array(self._gpu_seconds),
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            sampled=sampled,
            held_blocks=np.array(self._held),
            host=np.repeat(np.array(self._hosts), stretches[:, 0], axis=0),
            rows=tuple(rows),
            varying=np.array(self._varying).T,
            slowed=slowed,
            stages=np.array([span.stages for span in self.spans]),
        )


def kernels_of(timer: KernelTimer) -> list[tuple[str, str]]:
    """(name, family) of what a step's time consists of: the timer's kernels, and waiting for other replicas."""
    return [*timer.kernels, WAITING]


@dataclass(frozen=True, slots=True)
class EngineRun:
    record: Record  # Of the requests that it served; not a number elsewhere
    replica: Replica
    timer: KernelTimer
    log: StepLog
    pool: ServingPool


@dataclass(frozen=True)
class Steps:
    ends: Array
    gpu_seconds: Array  # Time of its kernels; the GPU is taken to work up to the end and to wait before
    tokens: Array
    prompt_tokens: Array  # Those of sequences that compute more than one
    sampled: Array
    held_blocks: Array
    host: Array  # (steps, 5): what each costs the host, as in `HostCost`
    rows: tuple[Array, ...]
    varying: Array
    slowed: Array
    stages: Array  # (steps, stages, 2): when each step began and ended on each stage of a pipeline; empty without one

    @cached_property
    def kind(self) -> Array:
        return np.where(self.prompt_tokens == 0, 2, np.where(self.prompt_tokens == self.tokens, 0, 1))

    @cached_property
    def prompt_seconds(self) -> Array:
        """The part of each step's GPU time that goes to prompts, by their share of its tokens."""
        return np.asarray(self.gpu_seconds * self.prompt_tokens / self.tokens)

    @property
    def by_stage(self) -> Array:
        """(steps, stages, 2): when each step began and ended on each stage; without a pipeline on one."""
        return (
            self.stages if self.stages.size else np.stack([self.ends - self.gpu_seconds, self.ends], axis=1)[:, None, :]
        )

    def kernels(self, timer: KernelTimer) -> Iterator[tuple[slice, Array]]:
        """Some steps after the other: which, and the seconds of each of `kernels_of` the timer (columns) in them."""
        for start in range(0, self.ends.size, CHUNK):
            part = slice(start, start + CHUNK)
            yield part, self.kernels_at(timer, np.arange(self.ends.size)[part])

    def kernels_at(self, timer: KernelTimer, chosen: Array) -> Array:
        """The same of some steps; replicas that share experts wait for each other inside a step."""
        rows = [of_table[chosen] for of_table in self.rows]
        table = timer.step_kernels(rows, self.varying[chosen], self.slowed[chosen])
        gpu, estimated = self.gpu_seconds[chosen], table.sum(axis=1)
        waits = np.where(gpu - estimated > ROUNDING, gpu - estimated, 0.0)
        # Where others bring fewer tokens than was estimated, all kernels are taken to be as much shorter.
        scale = np.where(estimated - gpu > ROUNDING, gpu / estimated, 1.0)
        return np.column_stack([table * scale[:, None], waits])

    def until(self, times: Array, seconds: Array) -> Array:
        """How much of ``seconds`` (of each step) the GPU had done by each of the times; stages at one time share it."""
        if self.stages.size:
            return self._until_staged(times, seconds)
        begins = self.ends - self.gpu_seconds
        position = np.searchsorted(self.ends, times)
        done = np.concatenate([[0.0], np.cumsum(seconds)])[position]
        under_way = np.minimum(position, self.ends.size - 1)
        share = (times - begins[under_way]) / np.maximum(self.gpu_seconds[under_way], 1e-12)
        running = np.where(position < self.ends.size, np.clip(share, 0.0, 1.0), 0.0)
        return np.asarray(done + running * seconds[under_way])

    def _until_staged(self, times: Array, seconds: Array) -> Array:
        edges, busy = self._moments
        each = seconds / np.maximum((self.stages[:, :, 1] - self.stages[:, :, 0]).sum(axis=1), 1e-12)
        rates = np.where(busy >= 0, each[np.maximum(busy, 0)], 0.0).sum(axis=0)
        shared = rates / np.maximum((busy >= 0).sum(axis=0), 1)
        done = np.concatenate([[0.0], np.cumsum(shared * np.diff(edges))])
        return np.asarray(np.interp(times, edges, done))

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Every moment at which a stage begins or ends a step, and (stages, stretches) which step it has in between."""
        edges = np.unique(self.stages)
        middles = (edges[1:] + edges[:-1]) / 2
        busy = []
        for begins, ends in zip(self.stages[:, :, 0].T, self.stages[:, :, 1].T, strict=True):
            step = np.searchsorted(begins, middles, side="right") - 1
            busy.append(np.where((step >= 0) & (ends[np.maximum(step, 0)] > middles), step, -1))
        return edges, np.array(busy)


@dataclass(frozen=True, slots=True)
class Watched:
    """A run, and what each of its replicas did when."""

    forecast: Forecast
    logs: tuple[tuple[StepLog, ...], ...]

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        return tuple(
            EngineRun(record, replica, run.pool.timer, log, run.pool)
            for run, logs in zip(self.forecast.pools, self.logs, strict=True)
            for record, replica, log in zip(run.records, run.pool.engines.replicas, logs, strict=True)
            if log.num_steps
        )


def watch_run(
    system: System,
    workload: Workload,
    *,
    progress: Progress | None = None,
    steady: bool = False,
    capacity: Callable[[], float] | None = None,
    slo: Slo | None = None,
) -> Watched:
    """Simulate a workload and note the steps; ``capacity`` and ``slo`` as in `simulate_system`."""
    logs: tuple[tuple[StepLog, ...], ...] = ()

    def watch(load: Workload) -> tuple[tuple[StepLog, ...], ...]:
        nonlocal logs
        count = len(load.requests)
        logs = tuple(
            tuple(StepLog(count, takes_in=pool.role == DECODE) for _ in pool.engines.replicas) for pool in system.pools
        )
        return logs

    forecast = simulate_system(
        system, workload, watch=watch, progress=progress, steady=steady, capacity=capacity, slo=slo
    )
    for log in (log for of_pool in logs for log in of_pool):
        log.fit(len(forecast.workload.requests))
    return Watched(forecast, logs)
