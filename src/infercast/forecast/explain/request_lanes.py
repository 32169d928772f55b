"""Requests of a stretch of a run as slices, in lanes in which no two are at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from infercast.forecast.explain.step_log import EngineRun
from infercast.serve import Workload


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


def request_counts(requests: list[RequestSlice]) -> list[tuple[float, int, int]]:
    """(moment, requests running, requests waiting), whenever one changes."""
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
