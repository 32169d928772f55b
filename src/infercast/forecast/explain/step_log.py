"""The log of a run: one entry per step, one per request; and a stretch of it as a timeline of slices, in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from infercast.engines.timer import KernelTimer
from infercast.errors import InputError
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Array, Slo
from infercast.forecast.system import BOTH, DECODE, ServingPool, System
from infercast.lazy_classes import dataclass
from infercast.serve import Record, Replica, Workload
from infercast.serve.loop import Progress
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.drafts import DraftSequence
from infercast.serve.step import DraftShape, HostCost, StepEstimate, StepShape
from infercast.serve.timeline import Span

MOST_SLICES = 400_000  # A window is cut where it would hold more of them: some 45 MB of a trace
EXACT, ROUNDING = 1e-7, 1e-12  # Seconds below which two moments of a run, or two sums of a step's kernels, are equal
WAITING = ("waits for other replicas", "other replicas")
"""Name and family of the time in which replicas that share experts wait for each other."""
KINDS = ("prefill", "mixed", "decode")  # Steps with prompts only, with prompts and decoding, and with decoding only


class StepLog:
    """A watcher of one engine's run: notes its steps, and for each request what its prompt took."""

    def __init__(self, num_requests: int, *, receives: bool = False) -> None:
        self._receives = receives  # prompts arrive computed, as on a decode pool: a step computes a token of each
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
        share = estimate.gpu_seconds[0] / (shape.num_sequences if self._receives else shape.num_tokens)
        for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
            index = sequence.index
            if index >= self.prompt_end.size:  # the run goes on
                self.fit(2 * index)
            promised = not sequence.in_prompt if isinstance(sequence, DraftSequence) else sequence.num_promised
            if promised > 1 or self.prompt_end[index] == self.prompt_end[index]:
                continue
            self.own_seconds[index] += share if self._receives else share * new_tokens
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
        if self._receives:
            tokens = of_decodes = shape.num_sequences
        self._stretches.append((steps, tokens, tokens - of_decodes, shape.num_sampled, *estimate.rows))

    @property
    def num_steps(self) -> int:
        return len(self._ends)

    @cached_property
    def steps(self) -> Steps:
        stretches = np.array(self._stretches, dtype=np.int64)
        tokens, prompt_tokens, sampled, *rows = np.repeat(stretches[:, 1:], stretches[:, 0], axis=0).T
        slowed = np.zeros(tokens.size)
        slowed[[*self._slowed]] = [*self._slowed.values()]
        return Steps(
            ends=np.array(self._ends), gpu_seconds=np.array(self._gpu_seconds), tokens=tokens,
            prompt_tokens=prompt_tokens, sampled=sampled, held_blocks=np.array(self._held),
            host=np.repeat(np.array(self._hosts), stretches[:, 0], axis=0), rows=tuple(rows),
            varying=np.array(self._varying).T, slowed=slowed, stages=np.array([span.stages for span in self.spans]),
        )  # fmt: skip


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
        chunk = 65_536
        for start in range(0, self.ends.size, chunk):
            part = slice(start, start + chunk)
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
    forecast: Forecast
    logs: tuple[tuple[StepLog, ...], ...]

    @property
    def start(self) -> float:
        """When the first request was sent."""
        return min(float(np.nanmin(engine.record.sent_at)) for engine in self.engines)

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        return tuple(
            EngineRun(record, replica, run.pool.timer, log, run.pool)
            for run, logs in zip(self.forecast.pools, self.logs, strict=True)
            for record, replica, log in zip(run.records, run.pool.engines.replicas, logs, strict=True)
            if log.num_steps
        )


def watch_run(
    system: System, workload: Workload, *, progress: Progress | None = None, steady: bool = False,
    capacity: Callable[[], float] | None = None, slo: Slo | None = None,
) -> Watched:  # fmt: skip
    """Simulate a workload and note the steps; ``capacity`` and ``slo`` as in `simulate_system`."""
    logs: tuple[tuple[StepLog, ...], ...] = ()

    def watch(load: Workload) -> tuple[tuple[StepLog, ...], ...]:
        nonlocal logs
        count = len(load.requests)
        logs = tuple(
            tuple(StepLog(count, receives=pool.role == DECODE) for _ in pool.engines.replicas) for pool in system.pools
        )
        return logs

    forecast = simulate_system(
        system, workload, watch=watch, progress=progress, steady=steady, capacity=capacity, slo=slo
    )
    for log in (log for of_pool in logs for log in of_pool):
        log.fit(len(forecast.workload.requests))
    return Watched(forecast, logs)


@dataclass(frozen=True, slots=True)
class RequestSlice:
    """One request from the client's call to its last token, in the first lane that was free."""

    number: int
    lane: int
    num_input: int
    num_output: int
    sent: float
    started: float
    first_token: float
    last_token: float


def request_slices(engine: EngineRun, workload: Workload, start: float, begin: float, end: float) -> list[RequestSlice]:
    """Those in the system at any time of the window, each in the first lane that is free."""
    record = engine.record
    sent, done = record.sent_at - start, record.last_token - start
    started = np.fmin(np.maximum(record.started_at - start, sent), record.first_token - start)
    found: list[RequestSlice] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = 0
    for index in np.argsort(sent, kind="stable").tolist():
        if not (sent[index] < end and done[index] > begin):  # another engine's are not a number
            continue
        while busy and busy[0][0] <= sent[index]:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heappush(busy, (float(done[index]), lane))
        request = workload.requests[index]
        times = (sent[index], started[index], record.first_token[index] - start, done[index])
        found.append(RequestSlice(index, lane, request.num_input, request.num_output, *map(float, times)))
    return found


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took a while; seconds after the first request was sent."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class StepSlice:
    whole: Slice
    stage: int
    tokens: int
    prompt_tokens: int
    sampled: int
    kernels: list[Slice]  # One after the other; all launches of a kernel are one slice. Empty for stages of a pipeline.
    kv_usage: float


@dataclass(frozen=True, slots=True)
class EngineLanes:
    name: str  # ``engine``, or ``engine 2``, or ``decode engine 2``
    steps: list[StepSlice]
    host: list[Slice]
    requests: list[RequestSlice]
    counts: list[tuple[float, int, int]]  # (moment, requests running, requests waiting), whenever one changes


@dataclass(frozen=True, slots=True)
class Lanes:
    begin: float
    end: float
    is_cut: bool
    engines: tuple[EngineLanes, ...]
    transfers: tuple[Slice, ...]


def lanes_of(run: Watched, begin: float, end: float) -> Lanes:
    """The part of a run between two moments, in seconds after the first request was sent."""
    if not 0 <= begin < end:
        raise InputError(f"a trace needs a window that begins at 0 or later and ends after that, not {begin:g}:{end:g}")
    engines, workload, start = run.engines, run.forecast.workload, run.start
    most = MOST_SLICES // len(engines)
    last = min(_cut(engine, start, begin, end, most) for engine in engines)
    return Lanes(
        begin=begin, end=min(last, run.forecast.duration), is_cut=last < end,
        engines=tuple(
            _engine(engine, name, workload, start, begin, last)
            for engine, name in zip(engines, _names(engines), strict=True)
        ),
        transfers=_transfers(run, start, begin, last),
    )  # fmt: skip


def _names(engines: Sequence[EngineRun]) -> list[str]:
    if len(engines) == 1:
        return ["engine"]
    roles = [engine.pool.role for engine in engines]
    before = ["" if role == BOTH else f"{role} " for role in roles]
    return [f"{word}engine {1 + roles[:place].count(roles[place])}" for place, word in enumerate(before)]


def _transfers(run: Watched, start: float, begin: float, end: float) -> tuple[Slice, ...]:
    """Keys and values on the link in a window, in the order in which they left."""
    if run.forecast.link is None:
        return ()
    done = run.forecast.link.handover
    began, received = (done.began - start).tolist(), (done.received - start).tolist()
    chosen = [index for index in range(len(began)) if began[index] < end and received[index] > begin]
    chosen.sort(key=began.__getitem__)
    return tuple(Slice(f"request {index}", began[index], received[index]) for index in chosen)


def _chosen(engine: EngineRun, start: float, begin: float, end: float) -> Array:
    ends, begins = _moments(engine, start)
    return np.flatnonzero((ends > begin) & (begins < end))


def _moments(engine: EngineRun, start: float) -> tuple[Array, Array]:
    steps, log = engine.log.steps, engine.log
    if log.spans:
        return steps.ends - start, np.array([span.start for span in log.spans]) - start
    return steps.ends - start, steps.ends - start - steps.gpu_seconds


def _cut(engine: EngineRun, start: float, begin: float, end: float, most: int) -> float:
    """Where a window must end to hold no more slices than that."""
    chosen, log = _chosen(engine, start, begin, end), engine.log
    slices = (len(log.spans[0].stages) if log.spans else len(engine.timer.kernels)) + 6
    if chosen.size <= most // slices:
        return end
    return float(_moments(engine, start)[1][chosen[most // slices]])


def _engine(engine: EngineRun, name: str, workload: Workload, start: float, begin: float, end: float) -> EngineLanes:
    chosen, log = _chosen(engine, start, begin, end), engine.log
    requests = request_slices(engine, workload, start, begin, end)
    # (moment, requests running, requests waiting), whenever one changes
    changes = [
        change
        for request in requests
        for change in ((request.sent, 0, 1), (request.started, 1, -1), (request.last_token, -1, 0))
    ]
    found: list[tuple[float, int, int]] = []
    running = waiting = 0
    for moment, more_running, more_waiting in sorted(changes):
        running, waiting = running + more_running, waiting + more_waiting
        if found and found[-1][0] == moment:
            found.pop()
        found.append((moment, running, waiting))
    return EngineLanes(
        name=name, steps=_stages(engine, start, chosen) if log.spans else _steps(engine, start, chosen),
        host=_planned(engine, start, chosen) if log.spans else _host(engine, start, chosen), requests=requests,
        counts=found,
    )  # fmt: skip


def _steps(engine: EngineRun, start: float, chosen: Array) -> list[StepSlice]:
    steps, timer = engine.log.steps, engine.timer
    last = ("lm_head", "sampling")
    order = sorted(range(len(timer.kernels)), key=lambda column: timer.kernels[column][1] in last)
    order.append(len(timer.kernels))  # waiting for other replicas comes last
    names = [kernels_of(timer)[column][0] for column in order]
    table = steps.kernels_at(timer, chosen)[:, order]
    begins = (steps.ends - steps.gpu_seconds)[chosen] - start
    stops = begins[:, None] + np.cumsum(table, axis=1)
    found = []
    for position, index in enumerate(chosen.tolist()):
        first, kernels = float(begins[position]), []
        for name, stop in zip(names, stops[position].tolist(), strict=True):
            if stop > first:
                kernels.append(Slice(name, first, stop))
            first = stop
        found.append(_step(engine, index, 0, (float(begins[position]), first), kernels))
    return found


def _step(engine: EngineRun, index: int, stage: int, ends: tuple[float, float], kernels: list[Slice]) -> StepSlice:
    steps = engine.log.steps
    return StepSlice(
        Slice(f"{KINDS[int(steps.kind[index])]} step", *ends), stage, int(steps.tokens[index]),
        int(steps.prompt_tokens[index]), int(steps.sampled[index]), kernels,
        float(steps.held_blocks[index] / engine.replica.num_blocks),
    )  # fmt: skip


def _stages(engine: EngineRun, start: float, chosen: Array) -> list[StepSlice]:
    return [
        _step(engine, index, stage, (begin - start, end - start), [])
        for index in chosen.tolist()
        for stage, (begin, end) in enumerate(engine.log.spans[index].stages)
    ]


def _planned(engine: EngineRun, start: float, chosen: Array) -> list[Slice]:
    """What the host of a pipeline did before each step reached its first stage."""
    found: list[Slice] = []
    for index in chosen.tolist():
        cost, moment = HostCost(*engine.log.steps.host[index].tolist()), engine.log.spans[index].planned - start
        for name, seconds in (("plan", cost.plan), ("prepare", cost.prepare)):
            found.append(Slice(name, moment, moment + seconds))
            moment += seconds
    return found


def _host(engine: EngineRun, start: float, chosen: Array) -> list[Slice]:
    """A step is planned after the result before the running one, or after all, or as late as possible."""
    steps, under_way = engine.log.steps, engine.replica.steps_under_way
    ends, gpu = (steps.ends - start).tolist(), steps.gpu_seconds.tolist()
    found: list[Slice] = []
    free = -np.inf
    taken = int(chosen[0]) if chosen.size else 0
    for index in chosen.tolist():
        cost = HostCost(*steps.host[index].tolist())
        before = ends[index - 1] if index else -np.inf
        while int(chosen[0]) <= taken <= index - under_way:
            free = _fill_gap(found, free, ends[taken], float(steps.host[taken, 3]))
            taken += 1
        launching = cost.launch
        off = abs(_end(free, cost, before, gpu[index]) - ends[index])
        if off > EXACT and ends[index] - gpu[index] > before + EXACT:
            while taken < index:
                free = _fill_gap(found, free, ends[taken], float(steps.host[taken, 3]))
                taken += 1
            if abs(_end(free, cost, before, gpu[index]) - ends[index]) > EXACT:
                launching += cost.wake
                free = max(free, ends[index] - max(gpu[index], launching) - cost.plan - cost.prepare)
        if not np.isfinite(free):  # the first step of the window
            free = ends[index] - gpu[index] - cost.plan - cost.prepare - launching
        for name, seconds in (("plan", cost.plan), ("prepare", cost.prepare), ("launch", launching)):
            found.append(Slice(name, free, free + seconds))
            free += seconds
    return found


def _end(free: float, cost: HostCost, before: float, gpu_seconds: float) -> float:
    """When a step ends that is planned at ``free`` and follows one that ended at ``before``."""
    ready = free + cost.plan + cost.prepare
    return max(max(ready, before) + gpu_seconds, ready + cost.launch)


def _fill_gap(found: list[Slice], free: float, end: float, seconds: float) -> float:
    begin = max(free, end)
    found.append(Slice("take in", begin, begin + seconds))
    return begin + seconds
