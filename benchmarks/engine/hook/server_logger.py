"""What vLLM's API server does with each request and each step, on the clock that clients use (`time.perf_counter`).

Of a request: when its first bytes came, when its handler began, when it was handed to the engine core. Of a step: when
its outputs began to be processed and were, and how many there were. And how late its event loop is, every 20 ms. A log
is written whenever a client resets the prefix cache.
"""

import asyncio
import gzip
import json
import os
from time import perf_counter, process_time

REQUESTS: list[tuple] = []  # (what, time, port or None, name or None)
STEPS: list[tuple] = []  # (begin, end, outputs)
LATE: list[tuple] = []  # (time, seconds late)
STATE = {"number": 0, "busy": 0.0, "ticking": False}
TICK = 0.02


def watch_engine_client(module) -> None:
    client, processor = module.AsyncLLM, module.OutputProcessor
    add, reset, process = client.add_request, client.reset_prefix_cache, processor.process_outputs

    async def add_request(self, request_id, *args, **kwargs):
        if not STATE["ticking"]:
            STATE["ticking"] = True
            asyncio.get_running_loop().create_task(_tick())
        begin = perf_counter()
        answer = await add(self, request_id, *args, **kwargs)
        REQUESTS.append(("added", begin, None, request_id))
        REQUESTS.append(("handed", perf_counter(), None, request_id))
        return answer

    async def reset_prefix_cache(self, *args, **kwargs):
        _write()
        return await reset(self, *args, **kwargs)

    def process_outputs(self, outputs, *args, **kwargs):
        begin = perf_counter()
        answer = process(self, outputs, *args, **kwargs)
        STEPS.append((begin, perf_counter(), len(outputs)))
        return answer

    client.add_request, client.reset_prefix_cache = add_request, reset_prefix_cache
    processor.process_outputs = process_outputs


async def _tick() -> None:
    while True:
        before = perf_counter()
        await asyncio.sleep(TICK)
        now = perf_counter()
        LATE.append((now, now - before - TICK))


def watch_completions(module) -> None:
    _watch_handler(module.OpenAIServingCompletion, "create_completion")


def watch_chats(module) -> None:
    _watch_handler(module.OpenAIServingChat, "create_chat_completion")


def _watch_handler(serving, handler) -> None:
    create = getattr(serving, handler)

    async def begin(self, request, raw_request=None):
        port = raw_request.client.port if raw_request is not None and raw_request.client else None
        name = raw_request.headers.get("X-Request-Id") if raw_request is not None else None
        REQUESTS.append(("began", perf_counter(), port, name))
        return await create(self, request, raw_request)

    setattr(serving, handler, begin)


def watch_protocol(module) -> None:
    protocol = module.HttpToolsProtocol
    begin = protocol.on_message_begin

    def on_message_begin(self):
        REQUESTS.append(("came", perf_counter(), self.client[1] if self.client else None, None))
        return begin(self)

    protocol.on_message_begin = on_message_begin


def _write() -> None:
    folder = os.environ["STEP_LOG"]
    os.makedirs(folder, exist_ok=True)
    if STEPS:
        rounded = {
            "requests": [(what, round(time, 6), port, name) for what, time, port, name in REQUESTS],
            "steps": [(round(begin, 6), round(end, 6), count) for begin, end, count in STEPS],
            "late": [(round(time, 4), round(late, 6)) for time, late in LATE],
            "busy": process_time() - STATE["busy"],
        }
        with gzip.open(os.path.join(folder, f"server_{STATE['number']:02d}.json.gz"), "wt", compresslevel=3) as file:
            json.dump(rounded, file)
        STATE["number"] += 1
    for each in (REQUESTS, STEPS, LATE):
        each.clear()
    STATE["busy"] = process_time()
