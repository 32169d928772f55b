"""A window of a run as a trace in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infercast.forecast.explain.step_log import EngineLanes, Lanes, RequestSlice, Slice
from infercast.units import MICRO, json_text

ENGINE, REQUESTS, QUEUE = 1, 2, 3  # processes of the first engine; those of the others follow
GPU, HOST = 1, 2  # threads; further stages of a pipeline follow
PROCESSES = {ENGINE: "engine", REQUESTS: "requests", QUEUE: "queue"}

Event = dict[str, Any]


def trace_pieces(lanes: Lanes, about: dict[str, str]) -> Iterator[str]:
    other = {**about, "window_s": f"{lanes.begin:g} to {lanes.end:g}", "made_by": "infercast"}
    yield f'{{"displayTimeUnit":"ms","otherData":{json_text(other)},"traceEvents":[\n'
    separator = ""
    for event in _events(lanes):
        yield f"{separator}{json_text(event, separators=(',', ':'))}"
        separator = ",\n"
    yield "\n]}\n"


def _events(lanes: Lanes) -> Iterator[Event]:
    for number, engine in enumerate(lanes.engines):
        yield from _engine_events(engine, len(PROCESSES) * number)
    process, ends = len(PROCESSES) * len(lanes.engines) + 1, list[float]()
    if lanes.transfers:
        yield _label("process_name", "link", process)
    for each in lanes.transfers:
        lane = next((lane for lane, end in enumerate(ends) if end <= each.begin), len(ends))
        ends[lane : lane + 1] = [each.end]
        yield _slice(each, process, lane + 1)


def _engine_events(engine: EngineLanes, before: int) -> Iterator[Event]:
    """One engine; its processes are numbered from ``before`` on."""
    process = before + ENGINE
    yield from _names(engine, before)
    for step in engine.steps:
        about = {"tokens": step.tokens, "prompt tokens": step.prompt_tokens, "sampled": step.sampled}
        yield {**_slice(step.whole, process, _gpu_thread(step.stage)), "args": about}
        for kernel in step.kernels:
            yield _slice(kernel, process, GPU)
        if step.stage == 0:
            yield _counter("KV cache in use, %", step.whole.begin, process, round(100 * step.kv_usage, 3))
    for each in engine.host:
        yield _slice(each, process, HOST)
    for moment, running, waiting in engine.counts:
        yield _counter("requests running", moment, process, running)
        yield _counter("requests waiting", moment, process, waiting)
    for request in engine.requests:
        yield from _request(request, before)


def _names(engine: EngineLanes, before: int) -> Iterator[Event]:
    for process, name in PROCESSES.items():
        yield _label("process_name", engine.name.replace("engine", name), before + process)
        yield _label("process_sort_index", before + process, before + process)
    stages = 1 + max((step.stage for step in engine.steps), default=0)
    gpus = ["GPU: steps and their kernels"] if stages == 1 else [f"stage {each + 1}: steps" for each in range(stages)]
    threads = [*((_gpu_thread(stage), name) for stage, name in enumerate(gpus)), (HOST, "host thread")]
    for position, (thread, name) in enumerate(threads):
        yield _label("thread_name", name, before + ENGINE, tid=thread)
        yield _label("thread_sort_index", position + 1, before + ENGINE, tid=thread)
    for process in (REQUESTS, QUEUE):
        for lane in sorted({request.lane for request in engine.requests}):
            yield _label("thread_name", f"{PROCESSES[process]} {lane + 1}", before + process, tid=lane + 1)


def _label(kind: str, value: str | int, process: int, **thread: int) -> Event:
    return {"ph": "M", "name": kind, "pid": process, **thread, "args": {kind.partition("_")[2]: value}}


def _gpu_thread(stage: int) -> int:
    return GPU if stage == 0 else HOST + stage


def _request(request: RequestSlice, before: int) -> Iterator[Event]:
    """A slice from call to last token, what it is made of, and the moments that matter."""
    lane, name, process = request.lane + 1, f"request {request.number}", before + REQUESTS
    about = {"prompt tokens": request.num_input, "output tokens": request.num_output}
    yield {**_slice(Slice(name, request.sent, request.last_token), process, lane), "args": about}
    yield _instant("arrival", request.sent, process, lane)
    if request.started > request.sent:
        yield _slice(Slice("waiting", request.sent, request.started), process, lane)
        yield _slice(Slice(name, request.sent, request.started), before + QUEUE, lane)
    yield _slice(Slice("prompt", request.started, request.first_token), process, lane)
    yield _instant("first token", request.first_token, process, lane)
    if request.last_token > request.first_token:
        yield _slice(Slice("decoding", request.first_token, request.last_token), process, lane)
    yield _instant("end", request.last_token, process, lane)


def _microseconds(seconds: float) -> float:
    return round(seconds / MICRO, 3)


def _slice(each: Slice, process: int, thread: int) -> Event:
    """Both ends are rounded, so that what touches or lies within something still does."""
    begin, end = _microseconds(each.begin), _microseconds(each.end)
    return {"name": each.name, "ph": "X", "pid": process, "tid": thread, "ts": begin, "dur": round(end - begin, 3)}


def _instant(name: str, moment: float, process: int, lane: int) -> Event:
    return {"name": name, "ph": "i", "s": "t", "pid": process, "tid": lane, "ts": _microseconds(moment)}


def _counter(name: str, moment: float, process: int, value: float) -> Event:
    return {"name": name, "ph": "C", "pid": process, "ts": _microseconds(moment), "args": {"value": value}}
