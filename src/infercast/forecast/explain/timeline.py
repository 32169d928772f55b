"""A stretch of a run as a timeline: slices of the GPU (of each stage), the host, the queue and requests, in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from infercast.errors import InputError
from infercast.forecast.explain.step_log import EXACT, KINDS, EngineRun, Watched, kernels_of
from infercast.forecast.slo import Array
from infercast.forecast.system import BOTH
from infercast.serve import Workload
from infercast.serve.step import HostCost

LAST = ("lm_head", "sampling")
MOST_SLICES = 400_000  # A window is cut where it would hold more of them: some 45 MB of a trace


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
    """One step on the GPU, from its first kernel to its last; of a pipeline, on one stage."""

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
    engines, workload = run.engines, run.forecast.workload
    start = min(float(np.nanmin(engine.record.sent_at)) for engine in engines)
    most = MOST_SLICES // len(engines)
    last = min(_cut(engine, start, begin, end, most) for engine in engines)
    return Lanes(
        begin=begin,
        end=min(last, run.forecast.duration),
        is_cut=last < end,
        engines=tuple(
            _engine(engine, name, workload, start, begin, last)
            for engine, name in zip(engines, _names(engines), strict=True)
        ),
        transfers=_transfers(run, start, begin, last),
    )


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
        name=name,
        steps=_stages(engine, start, chosen) if log.spans else _steps(engine, start, chosen),
        host=_planned(engine, start, chosen) if log.spans else _host(engine, start, chosen),
        requests=requests,
        counts=found,
    )


def _steps(engine: EngineRun, start: float, chosen: Array) -> list[StepSlice]:
    steps, timer = engine.log.steps, engine.timer
    order = sorted(range(len(timer.kernels)), key=lambda column: timer.kernels[column][1] in LAST)
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
        Slice(f"{KINDS[int(steps.kind[index])]} step", *ends),
        stage,
        int(steps.tokens[index]),
        int(steps.prompt_tokens[index]),
        int(steps.sampled[index]),
        kernels,
        float(steps.held_blocks[index] / engine.replica.num_blocks),
    )


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
