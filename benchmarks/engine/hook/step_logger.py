"""What a vLLM engine core does, step by step, on the clock that its clients use (`time.perf_counter`).

For each step: when planning began and ended, when the model was launched, when sampling was, when the host began to
wait for its result and had it, when the result was processed; what the GPU did meanwhile (CUDA events before the
step, after the model and after sampling); and what the step computed: the sequences that decode as a number and their
context, every other one by name. A log is written whenever a client resets the prefix cache, which it does between two
runs. The first also has how the worker divided the GPU's memory.
"""

import gzip
import json
import os
from time import perf_counter, process_time

FACTS = ("decodes", "context", "beside", "preempted", "running", "waiting", "free")
EVENTS = ("before", "model", "after")
MEMORY = (
    "requested_memory",
    "total_consumed",
    "peak_activation_memory",
    "cudagraph_memory_estimate",
    "available_kv_cache_memory_bytes",
    "non_torch_memory",
)
ROWS: list[dict] = []
ARRIVALS: list[tuple] = []
ENCODED: list[dict] = []  # calls of an image encoder: on the host's clock, on the GPU's, tokens of each image
STATE = {"row": None, "base": None, "number": 0, "busy": 0.0, "memory": None}


def watch(core_module) -> None:
    """Wrap the engine core's methods once its module is loaded."""
    core = core_module.EngineCore
    _wrap_init(core)
    add, reset = core.add_request, core.reset_prefix_cache

    def add_request(self, request, *args, **kwargs):
        ARRIVALS.append((request.request_id, round(perf_counter(), 6), request.num_prompt_tokens))
        return add(self, request, *args, **kwargs)

    def reset_prefix_cache(self, *args, **kwargs):
        _write()
        return reset(self, *args, **kwargs)

    core.add_request, core.reset_prefix_cache = add_request, reset_prefix_cache


def watch_encoder(module) -> None:
    """Wrap the image encoder of either model runner once its module is loaded."""
    for owner, name in (("EncoderRunner", "execute_mm_encoder"), ("GPUModelRunner", "_execute_mm_encoder")):
        if hasattr(getattr(module, owner, None), name):
            _wrap_encoder(getattr(module, owner), name)


def _wrap_encoder(runner, name) -> None:
    encode = getattr(runner, name)

    def timed_encode(self, *args, **kwargs):
        before, start = _event(), perf_counter()
        outputs = encode(self, *args, **kwargs)
        tokens = [len(each) for each in outputs]
        if tokens:
            ENCODED.append({"host": (start, perf_counter()), "gpu": (before, _event()), "tokens": tokens})
        return outputs

    setattr(runner, name, timed_encode)


def _wrap_init(core) -> None:
    init = core.__init__

    def start(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _install(self)

    core.__init__ = start


def _event():
    import torch  # noqa: PLC0415 - loaded by the engine, which this must not do before it

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _memory_of(core) -> dict:
    """How the worker divided its memory, in bytes, as far as this release keeps it."""
    worker = getattr(core.model_executor.driver_worker, "worker", core.model_executor.driver_worker)
    found = {name: getattr(worker, name, None) for name in MEMORY}
    found["weights"] = getattr(getattr(worker, "model_runner", None), "model_memory_usage", None)
    found["num_gpu_blocks"] = core.vllm_config.cache_config.num_gpu_blocks
    return {name: int(value) for name, value in found.items() if value is not None}


def _batch_of(output) -> dict:
    """Sequences that decode as a number and their context, every other one by name."""
    cached, counts = output.scheduled_cached_reqs, output.num_scheduled_tokens
    new = [(each.req_id, counts[each.req_id], each.num_computed_tokens) for each in output.scheduled_new_reqs]
    if output.total_num_scheduled_tokens - sum(each[1] for each in new) == len(cached.req_ids):
        return {"beside": new, "decodes": len(cached.req_ids), "context": sum(cached.num_computed_tokens)}
    names = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    pairs = [(name, counts[name], done) for name, done in names]
    singles = [each[2] for each in pairs if each[1] == 1]
    beside = [*new, *(each for each in pairs if each[1] > 1)]
    return {"beside": beside, "decodes": len(singles), "context": sum(singles)}


def _install(core) -> None:
    """Wrap what one step calls, in the order in which it does."""
    import torch  # noqa: PLC0415
    from vllm.v1.executor.uniproc_executor import AsyncOutputFuture  # noqa: PLC0415

    torch.cuda.synchronize()
    STATE["base"], STATE["memory"] = (_event(), perf_counter()), _memory_of(core)
    torch.cuda.synchronize()
    scheduler, executor = core.scheduler, core.model_executor
    schedule, update = scheduler.schedule, scheduler.update_from_output
    execute, sample, result = executor.execute_model, executor.sample_tokens, AsyncOutputFuture.result
    by_output: dict[int, dict] = {}
    by_future: dict[int, dict] = {}

    def timed_schedule(*args, **kwargs):
        start = perf_counter()
        output = schedule(*args, **kwargs)
        row = STATE["row"] = {"plan": (start, perf_counter())}
        row |= _batch_of(output)
        row["preempted"] = len(output.preempted_req_ids or ())
        row["running"], row["waiting"] = len(scheduler.running), len(scheduler.waiting)
        row["free"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        by_output[id(output)] = row
        ROWS.append(row)
        return output

    def timed_execute(output, *args, **kwargs):
        row = by_output[id(output)]
        row["before"], start = _event(), perf_counter()
        answer = execute(output, *args, **kwargs)
        row["execute"], row["model"] = (start, perf_counter()), _event()
        return answer

    def timed_sample(*args, **kwargs):
        row, start = STATE["row"], perf_counter()
        future = sample(*args, **kwargs)
        row["sample"], row["after"] = (start, perf_counter()), _event()
        by_future[id(future)] = row
        return future

    def timed_result(self, *args, **kwargs):
        start = perf_counter()
        answer = result(self, *args, **kwargs)
        row = by_future.pop(id(self), None)
        if row is not None:
            row["wait"] = (start, perf_counter())
        return answer

    def timed_update(output, *args, **kwargs):
        start = perf_counter()
        answer = update(output, *args, **kwargs)
        row = by_output.pop(id(output), None)
        if row is not None:
            row["process"] = (start, perf_counter())
        return answer

    scheduler.schedule, scheduler.update_from_output = timed_schedule, timed_update
    executor.execute_model, executor.sample_tokens = timed_execute, timed_sample
    AsyncOutputFuture.result = timed_result


def _encoded(call, base, zero) -> dict:
    host = [round(each - zero, 6) for each in call["host"]]
    return {
        "host": host,
        "gpu": [round(base.elapsed_time(each) / 1e3, 6) for each in call["gpu"]],
        "tokens": call["tokens"],
    }


def _write() -> None:
    """One file a run, and start anew."""
    import torch  # noqa: PLC0415

    if not ROWS:
        ARRIVALS.clear()
        STATE["busy"] = process_time()
        return
    torch.cuda.synchronize()
    base, zero = STATE["base"]
    rows = []
    for row in ROWS:
        kept = {name: row[name] for name in FACTS}
        for name in ("plan", "execute", "sample", "wait", "process"):
            kept[name] = [round(each - zero, 6) for each in row[name]] if name in row else None
        kept["gpu"] = [round(base.elapsed_time(row[name]) / 1e3, 6) if name in row else None for name in EVENTS]
        rows.append(kept)
    encoded = [_encoded(each, base, zero) for each in ENCODED if STATE["number"] or each["host"][0] > zero]
    folder = os.environ["STEP_LOG"]
    os.makedirs(folder, exist_ok=True)
    arrivals = [(name, round(time - zero, 6), tokens) for name, time, tokens in ARRIVALS]
    log = {"zero": zero, "busy": process_time() - STATE["busy"], "memory": STATE["memory"], "arrivals": arrivals}
    log |= {"encoder": encoded} if encoded else {}
    with gzip.open(os.path.join(folder, f"steps_{STATE['number']:02d}.json.gz"), "wt", compresslevel=3) as file:
        json.dump({**log, "steps": rows}, file)
    STATE["number"] += 1
    ROWS.clear()
    ARRIVALS.clear()
    ENCODED.clear()
    STATE["busy"] = process_time()
