"""A window of a run as a trace in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from infercast.forecast.lanes import Lanes, RequestSlice, Slice
from infercast.units import MICRO

ENGINE, REQUESTS, QUEUE = 1, 2, 3
GPU, HOST = 1, 2
PROCESSES = {ENGINE: "engine", REQUESTS: "requests", QUEUE: "queue"}
THREADS = {GPU: "GPU: steps and their kernels", HOST: "host thread"}

Event = dict[str, Any]


def trace_pieces(lanes: Lanes, about: dict[str, str]) -> Iterator[str]:
    """The text of the trace, piece by piece."""
    other = {**about, "window_s": f"{lanes.begin:g} to {lanes.end:g}", "made_by": "infercast"}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n'
    separator = ""
    for event in _events(lanes):
        yield f"{separator}{json.dumps(event, separators=(',', ':'))}"
        separator = ",\n"
    yield "\n]}\n"


def _events(lanes: Lanes) -> Iterator[Event]:
    yield from _names(lanes)
    for step in lanes.steps:
        about = {"tokens": step.tokens, "prompt tokens": step.prompt_tokens, "sampled": step.sampled}
        yield {**_slice(step.whole, ENGINE, GPU), "args": about}
        for kernel in step.kernels:
            yield _slice(kernel, ENGINE, GPU)
        yield _counter("KV cache in use, %", step.whole.begin, round(100 * step.kv_usage, 3))
    for each in lanes.host:
        yield _slice(each, ENGINE, HOST)
    for moment, running, waiting in lanes.counts:
        yield _counter("requests running", moment, running)
        yield _counter("requests waiting", moment, waiting)
    for request in lanes.requests:
        yield from _request(request)


def _names(lanes: Lanes) -> Iterator[Event]:
    """What lanes are called, in the order in which they are shown."""
    for process, name in PROCESSES.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for thread, name in THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": ENGINE, "tid": thread, "args": {"sort_index": thread}}
    for process in (REQUESTS, QUEUE):
        for lane in sorted({request.lane for request in lanes.requests}):
            about = {"name": f"{PROCESSES[process]} {lane + 1}"}
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": lane + 1, "args": about}


def _request(request: RequestSlice) -> Iterator[Event]:
    """A slice from call to last token, what it is made of, and the moments that matter."""
    lane, name = request.lane + 1, f"request {request.number}"
    about = {"prompt tokens": request.num_input, "output tokens": request.num_output}
    yield {**_slice(Slice(name, request.sent, request.last_token), REQUESTS, lane), "args": about}
    yield _instant("arrival", request.sent, lane)
    if request.started > request.sent:
        yield _slice(Slice("waiting", request.sent, request.started), REQUESTS, lane)
        yield _slice(Slice(name, request.sent, request.started), QUEUE, lane)
    yield _slice(Slice("prompt", request.started, request.first_token), REQUESTS, lane)
    yield _instant("first token", request.first_token, lane)
    if request.last_token > request.first_token:
        yield _slice(Slice("decoding", request.first_token, request.last_token), REQUESTS, lane)
    yield _instant("end", request.last_token, lane)


def _microseconds(seconds: float) -> float:
    return round(seconds / MICRO, 3)


def _slice(each: Slice, process: int, thread: int) -> Event:
    """Both ends are rounded, so that what touches or lies within something still does."""
    begin, end = _microseconds(each.begin), _microseconds(each.end)
    return {"name": each.name, "ph": "X", "pid": process, "tid": thread, "ts": begin, "dur": round(end - begin, 3)}


def _instant(name: str, moment: float, lane: int) -> Event:
    return {"name": name, "ph": "i", "s": "t", "pid": REQUESTS, "tid": lane, "ts": _microseconds(moment)}


def _counter(name: str, moment: float, value: float) -> Event:
    return {"name": name, "ph": "C", "pid": ENGINE, "ts": _microseconds(moment), "args": {"value": value}}
