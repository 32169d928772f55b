"""What SGLang's scheduler and server do, step by step, on the clock that clients use (`time.perf_counter`).

Of a step of the scheduler: when requests were taken in, when it was planned, launched, waited for and its result
processed; what the GPU did meanwhile (CUDA events on the forward stream around the launch); how many sequences decode
and with what context, and each prompt's new and cached tokens. Of the server: when a request began and was handed to
the scheduler, and when each batch of outputs was spread to its clients. Logs are written whenever the cache is flushed.
"""

import gzip
import json
import os
from collections import deque
from time import perf_counter, process_time

TIMES = ("take_in", "plan", "launch", "wait", "process")
FACTS = ("mode", "decodes", "context", "prompts", "running", "waiting", "graph")
STEPS: list[dict] = []
ARRIVALS: list[tuple] = []  # (name, time, prompt tokens)
OUTPUTS: list[tuple] = []  # (begin, end, requests)
REQUESTS: list[tuple] = []  # (what, time, request or its name)
STATE = {"base": None, "number": 0, "busy": 0.0, "row": {}}


def _event(stream=None):
    import torch  # noqa: PLC0415 - loaded by the engine, which this must not do before it

    event = torch.cuda.Event(enable_timing=True)
    event.record(stream) if stream is not None else event.record()
    return event


def _batch_of(scheduler, batch) -> dict:
    row = {"mode": batch.forward_mode.name, "waiting": len(scheduler.waiting_queue), "prompts": [], "graph": None}
    row["running"] = len(scheduler.running_batch.reqs)
    if batch.forward_mode.is_extend():
        prompts = zip(batch.extend_lens, batch.prefix_lens, strict=True)
        row["prompts"] = [(int(new), int(cached)) for new, cached in prompts]
        return row | {"decodes": 0, "context": 0}
    return row | {"decodes": len(batch.reqs), "context": sum(each.seqlen for each in batch.reqs)}


def watch_scheduler(module) -> None:
    scheduler, waiting = module.Scheduler, deque()
    take_in, plan, launch = scheduler.ingest_requests, scheduler.get_next_batch_to_run, scheduler.run_batch
    process, flush, add = scheduler.process_batch_result, scheduler.flush_cache, scheduler.handle_generate_request

    def timed(name, function):
        def call(*args, **kwargs):
            start = perf_counter()
            answer = function(*args, **kwargs)
            STATE["row"][name] = (start, perf_counter())
            return answer

        return call

    def run_batch(self, batch, *args, **kwargs):
        if STATE["base"] is None:
            before = _event()
            before.synchronize()
            STATE["base"] = (before, perf_counter())
        row, STATE["row"] = STATE["row"] | _batch_of(self, batch), {}
        row["before"], start = _event(self.forward_stream), perf_counter()
        answer = launch(self, batch, *args, **kwargs)
        row["launch"], row["after"] = (start, perf_counter()), _event(self.forward_stream)
        row["graph"] = bool(getattr(answer, "can_run_cuda_graph", False))
        waiting.append(row)
        STEPS.append(row)
        return answer

    def process_batch_result(self, batch, result, *args, **kwargs):
        row, start = waiting.popleft(), perf_counter()
        if getattr(result, "copy_done", None) is not None:
            result.copy_done.synchronize()
        waited = perf_counter()
        answer = process(self, batch, result, *args, **kwargs)
        row["wait"], row["process"] = (start, waited), (waited, perf_counter())
        return answer

    def handle_generate_request(self, request, *args, **kwargs):
        ARRIVALS.append((request.rid, round(perf_counter(), 6), len(request.input_ids or ())))
        return add(self, request, *args, **kwargs)

    def flush_cache(self, *args, **kwargs):
        _write_steps()
        return flush(self, *args, **kwargs)

    scheduler.ingest_requests, scheduler.get_next_batch_to_run = timed("take_in", take_in), timed("plan", plan)
    scheduler.run_batch, scheduler.process_batch_result = run_batch, process_batch_result
    scheduler.handle_generate_request, scheduler.flush_cache = handle_generate_request, flush_cache


def watch_server(module) -> None:
    manager = module.TokenizerManager
    send, handle, flush = manager._send_one_request, manager._handle_batch_output, manager.flush_cache
    generate = manager.generate_request

    def generate_request(self, request, *args, **kwargs):
        REQUESTS.append(("began", round(perf_counter(), 6), request))  # it is given its name later
        return generate(self, request, *args, **kwargs)

    async def send_one_request(self, request, *args, **kwargs):
        answer = await send(self, request, *args, **kwargs)
        REQUESTS.append(("handed", round(perf_counter(), 6), request.rid))
        return answer

    async def handle_batch_output(self, outputs, *args, **kwargs):
        start = perf_counter()
        answer = await handle(self, outputs, *args, **kwargs)
        OUTPUTS.append((round(start, 6), round(perf_counter(), 6), len(outputs.rids)))
        return answer

    async def flush_cache(self, *args, **kwargs):
        if OUTPUTS:
            requests = [(what, time, getattr(each, "rid", each)) for what, time, each in REQUESTS]
            _write("server", {"requests": requests, "outputs": list(OUTPUTS)})
            REQUESTS.clear()
            OUTPUTS.clear()
        return await flush(self, *args, **kwargs)

    manager.generate_request, manager._send_one_request = generate_request, send_one_request
    manager._handle_batch_output, manager.flush_cache = handle_batch_output, flush_cache


def _write_steps() -> None:
    if not STEPS:
        return
    import torch  # noqa: PLC0415

    torch.cuda.synchronize()
    base, zero = STATE["base"]
    rows = []
    for row in STEPS:
        kept = {name: row.get(name) for name in FACTS}
        kept |= {name: [round(each - zero, 6) for each in row[name]] if name in row else None for name in TIMES}
        kept["gpu"] = [round(base.elapsed_time(row[name]) / 1e3, 6) for name in ("before", "after")]
        rows.append(kept)
    arrivals = [(name, round(time - zero, 6), tokens) for name, time, tokens in ARRIVALS]
    _write("steps", {"zero": zero, "arrivals": arrivals, "steps": rows})
    STEPS.clear()
    ARRIVALS.clear()


def _write(name: str, document: dict) -> None:
    folder = os.environ["STEP_LOG"]
    os.makedirs(folder, exist_ok=True)
    document["busy"], STATE["busy"] = process_time() - STATE["busy"], process_time()
    with gzip.open(os.path.join(folder, f"{name}_{STATE['number']:02d}.json.gz"), "wt", compresslevel=3) as file:
        json.dump(document, file)
    STATE["number"] += 1
