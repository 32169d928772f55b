"""A stretch of a run as lanes of slices: the steps and kernels of the GPU, the host's thread, the queue, requests."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from infercast.engine.step import HostCost
from infercast.errors import InputError
from infercast.forecast.breakdown import WatchedRun
from infercast.forecast.step_log import KINDS, Array
from infercast.records import dataclass

LAST = ("lm_head", "sampling")
"""Families that end a step."""
MOST_SLICES = 400_000
"""A window is cut where it would hold more of them: some 45 MB of a trace."""
EXACT = 1e-7


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took a while; seconds after the first request was sent."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class StepSlice:
    """One step on the GPU, from its first kernel to its last."""

    whole: Slice
    tokens: int
    prompt_tokens: int
    sampled: int
    kernels: list[Slice]
    """One after the other; all launches of a kernel are one slice."""
    kv_usage: float
    """Share of the KV blocks that are held."""


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


@dataclass(frozen=True, slots=True)
class Lanes:
    """What a window of a run holds."""

    begin: float
    end: float
    is_cut: bool
    """Whether the window that was asked for would have been too large."""
    steps: list[StepSlice]
    host: list[Slice]
    requests: list[RequestSlice]
    counts: list[tuple[float, int, int]]
    """(moment, requests running, requests waiting), whenever one changes."""


def lanes_of(run: WatchedRun, begin: float, end: float) -> Lanes:
    """The part of a run between two moments, in seconds after the first request was sent."""
    if not 0 <= begin < end:
        raise InputError(f"a trace needs a window that begins at 0 or later and ends after that, not {begin:g}:{end:g}")
    start, steps = float(run.forecast.record.sent_at.min()), run.log.steps
    ends = steps.ends - start
    chosen = np.flatnonzero((ends > begin) & (ends - steps.gpu_seconds < end))
    kernels = len(run.timer.kernels) + 6
    most = MOST_SLICES // kernels
    is_cut = chosen.size > most
    if is_cut:
        end = float(ends[chosen[most]] - steps.gpu_seconds[chosen[most]])
        chosen = chosen[:most]
    requests = _requests(run, start, begin, end)
    return Lanes(
        begin=begin,
        end=min(end, run.forecast.duration),
        is_cut=is_cut,
        steps=_steps(run, start, chosen),
        host=_host(run, start, chosen),
        requests=requests,
        counts=_counts(requests),
    )


def _steps(run: WatchedRun, start: float, chosen: Array) -> list[StepSlice]:
    """Steps with their kernels, those of the head last."""
    steps, timer = run.log.steps, run.timer
    order = sorted(range(len(timer.kernels)), key=lambda column: timer.kernels[column][1] in LAST)
    names = [timer.kernels[column][0] for column in order]
    rows = [of_table[chosen] for of_table in steps.rows]
    table = timer.step_kernels(rows, steps.varying[chosen], steps.slowed[chosen])[:, order]
    begins = (steps.ends - steps.gpu_seconds)[chosen] - start
    stops = begins[:, None] + np.cumsum(table, axis=1)
    found = []
    usage = (steps.held_blocks[chosen] / run.forecast.replica.num_blocks).tolist()
    for position, index in enumerate(chosen.tolist()):
        first, kernels = float(begins[position]), []
        for name, stop in zip(names, stops[position].tolist(), strict=True):
            if stop > first:
                kernels.append(Slice(name, first, stop))
            first = stop
        found.append(
            StepSlice(
                Slice(f"{KINDS[int(steps.kind[index])]} step", float(begins[position]), first),
                int(steps.tokens[index]),
                int(steps.prompt_tokens[index]),
                int(steps.sampled[index]),
                kernels,
                usage[position],
            )
        )
    return found


def _host(run: WatchedRun, start: float, chosen: Array) -> list[Slice]:
    """What the host's thread did: plan, prepare, launch and, when a result is there, take it in.

    The log tells when steps end. A step is planned when the result before the one that runs has been taken in; where
    that does not explain when it ended, the engine had slept, and the plan is as late as it can have been.
    """
    steps, under_way = run.log.steps, run.forecast.replica.steps_under_way
    ends, gpu = (steps.ends - start).tolist(), steps.gpu_seconds.tolist()
    found: list[Slice] = []
    free = -np.inf
    taken = int(chosen[0]) if chosen.size else 0
    for index in chosen.tolist():
        cost = HostCost(*steps.host[index].tolist())
        before = ends[index - 1] if index else -np.inf
        while int(chosen[0]) <= taken <= index - under_way:
            free = _take_in(found, free, ends[taken], float(steps.host[taken, 3]))
            taken += 1
        launching = cost.launch
        ready = free + cost.plan + cost.prepare
        expected = max(max(ready, before) + gpu[index], ready + launching)
        if abs(expected - ends[index]) > EXACT and ends[index] - gpu[index] > before + EXACT:
            while taken < index:
                free = _take_in(found, free, ends[taken], float(steps.host[taken, 3]))
                taken += 1
            launching += cost.wake
            free = max(free, ends[index] - max(gpu[index], launching) - cost.plan - cost.prepare)
        if not np.isfinite(free):  # the first step of the window
            free = ends[index] - gpu[index] - cost.plan - cost.prepare - launching
        for name, seconds in (("plan", cost.plan), ("prepare", cost.prepare), ("launch", launching)):
            found.append(Slice(name, free, free + seconds))
            free += seconds
    return found


def _take_in(found: list[Slice], free: float, end: float, seconds: float) -> float:
    """The host waits for a step's end and takes its result in; returns when it is free again."""
    begin = max(free, end)
    found.append(Slice("take in", begin, begin + seconds))
    return begin + seconds


def _requests(run: WatchedRun, start: float, begin: float, end: float) -> list[RequestSlice]:
    """Those in the system at any time of the window, each in the first lane that is free."""
    record = run.forecast.record
    sent, done = record.sent_at - start, record.last_token - start
    started = np.fmin(np.maximum(record.started_at - start, sent), record.first_token - start)
    found: list[RequestSlice] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = 0
    for index in np.argsort(sent, kind="stable").tolist():
        if sent[index] >= end or done[index] <= begin:
            continue
        while busy and busy[0][0] <= sent[index]:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heappush(busy, (float(done[index]), lane))
        request = run.forecast.workload.requests[index]
        times = (sent[index], started[index], record.first_token[index] - start, done[index])
        found.append(RequestSlice(index, lane, request.num_input, request.num_output, *map(float, times)))
    return found


def _counts(requests: list[RequestSlice]) -> list[tuple[float, int, int]]:
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
    return found
