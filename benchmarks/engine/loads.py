"""Loads for a running engine, by whatever way its clients reach it, and what those clients saw.

A load is written `kind:numbers`: `idle:128:4` (prompt tokens, times), `static:32:1024:64` (requests at once, input,
output), `poisson:12:200` (requests/s, requests), `closed:64:384` (clients, requests), `prefix:40:200` (requests/s,
requests; one of five prefixes of 2,048 tokens each), `warm:20:60` (as poisson, and not judged), `shown:4:1024x768:3`
(images in one prompt, their size, times), `images:2:60:1:1024x768` (requests/s, requests, images in each, their size).
"""

import asyncio
import gzip
import io
import json
import math
import random
import statistics
import time
from base64 import b64encode
from itertools import accumulate, pairwise
from pathlib import Path


def percentile(values, fraction):
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, int(len(ranked) * fraction))], 3)


class Picture:
    """A JPEG of smooth colours and noise, about as large as that of a photo, that no other one equals."""

    def __init__(self, width, height, source) -> None:
        from PIL import Image  # noqa: PLC0415 - beside the engine alone

        self.size = (width, height)
        smooth = Image.frombytes("RGB", (16, 16), source.randbytes(768)).resize(self.size, Image.Resampling.BICUBIC)
        grain = Image.frombytes("RGB", (128, 128), source.randbytes(49152)).resize(self.size)
        kept = io.BytesIO()
        Image.blend(smooth, grain, 0.15).save(kept, "JPEG", quality=85)
        self.jpeg = kept.getvalue()
        self.url = "data:image/jpeg;base64," + b64encode(self.jpeg).decode()

    def opened(self):
        from PIL import Image  # noqa: PLC0415

        return Image.open(io.BytesIO(self.jpeg)).convert("RGB")


class Loads:
    """One engine's clients.

    ``send(name, tokens, num_output, images)`` yields the number of tokens in each part of an answer, and may
    yield the tokens of the whole prompt as a negative number; ``between()`` is awaited before each run; ``joules()``
    reads the GPU's energy counter, or returns None.
    """

    def __init__(self, path, config, send, between, joules=lambda: None, mean_in=700, mean_out=180, seed=0) -> None:
        self.path, self.config, self.send, self.between, self.joules = Path(path), config, send, between, joules
        self.mean_in, self.mean_out = mean_in, mean_out
        self.random = random.Random(1234 + seed)
        self.number, self.runs = 0, []

    async def one(self, tokens, num_output, arrival, images=(), *, zero, keep):
        self.number += 1
        name, wait = f"r{self.number}", zero + arrival - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        sent, times, counts, prompt = time.perf_counter(), [], [], len(tokens)
        async for count in self.send(name, tokens, num_output, images):
            if count < 0:
                prompt = -count
            elif count:
                times.append(time.perf_counter())
                counts.append(count)
        row = {
            "arrival": round(sent - zero, 6),
            "n_in": prompt,
            "n_out": num_output,
            "ttft_ms": round(1e3 * (times[0] - sent), 3),
            "e2e_ms": round(1e3 * (times[-1] - sent), 3),
            "tpot_ms": round(1e3 * (times[-1] - times[0]) / max(1, num_output - counts[0]), 4),
            "name": name,
            "sent": round(sent, 6),
            "parts": len(times),
        }
        if images:
            row["images"] = [list(each.size) for each in images]
        if len(times) > 1:
            gaps = [1e3 * (after - before) for before, after in pairwise(times)]
            row["itl_p50_ms"], row["itl_p99_ms"] = percentile(gaps, 0.5), percentile(gaps, 0.99)
        if keep:
            row["token_ms"] = [round(1e3 * (each - sent), 3) for each in times]
        return row

    async def run(self, kind, requests, clients=None, keep=False, **facts) -> None:
        """Play requests at their times, or by so many clients one after the other."""
        await self.between()
        busy, joules, zero = time.process_time(), self.joules(), time.perf_counter() + 0.05
        if clients is None:
            rows = await asyncio.gather(*[self.one(*each, zero=zero, keep=keep) for each in requests])
        else:
            rows, coming = [], iter(requests)

            async def client():
                for tokens, num_output, _, *images in coming:
                    rows.append(await self.one(tokens, num_output, 0.0, *images, zero=zero, keep=keep))

            await asyncio.gather(*[client() for _ in range(clients)])
        used = self.joules()
        begin = min(row["arrival"] for row in rows)
        end = max(row["arrival"] + row["e2e_ms"] / 1e3 for row in rows)
        ttft, tpot = [row["ttft_ms"] for row in rows], [row["tpot_ms"] for row in rows]
        summary = {
            "ttft_p50": percentile(ttft, 0.5),
            "ttft_p99": percentile(ttft, 0.99),
            "tpot_p50": percentile(tpot, 0.5),
            "tpot_mean": round(statistics.mean(tpot), 3),
            "out_tok_s": round(sum(row["n_out"] for row in rows) / (end - begin), 1),
            "dur_s": round(end - begin, 3),
            "client_busy": round((time.process_time() - busy) / (end - begin), 3),
        }
        if used is not None:
            summary["joule"], summary["mean_w"] = round(used - joules, 1), round((used - joules) / (end - begin), 1)
        self.runs.append({"kind": kind, **facts, "summary": summary, "requests": rows})
        print(self.path.name, kind, facts if kind != "prefix" else "", summary, flush=True)
        with gzip.open(self.path, "wt", compresslevel=3) as file:
            json.dump({"config": self.config, "runs": self.runs}, file)

    def tokens(self, count):
        return [self.random.randrange(1000, self.config["vocabulary"] - 1000) for _ in range(count)]

    def length(self, mean, sigma, low, high):
        drawn = int(self.random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))
        return max(low, min(high, drawn))

    def requests(self, count, rate=math.inf, most_out=1000):
        """Log-normal lengths; at a rate, or at once."""
        arrival, requests = 0.0, []
        for _ in range(count):
            arrival += self.random.expovariate(rate) if rate < math.inf else 0.0
            num_input = self.length(self.mean_in, 0.9, 16, min(8000, self.config["max_model_len"] - 1200))
            requests.append((self.tokens(num_input), self.length(self.mean_out, 0.8, 4, most_out), arrival))
        return requests

    async def play(self, load) -> None:
        kind, *numbers = load.split(":")
        means = {"mean_in": self.mean_in, "mean_out": self.mean_out}
        if kind == "idle":
            size, count = map(int, numbers)
            for rep in range(count):
                facts = {"batch": 1, "n_in": size, "n_out": 16, "rep": rep}
                await self.run("static", [(self.tokens(size), 16, 0.0)], keep=True, **facts)
        elif kind == "static":
            batch, size, num_output = map(int, numbers)
            requests = [(self.tokens(size), num_output, 0.0) for _ in range(batch)]
            await self.run("static", requests, keep=batch <= 8, batch=batch, n_in=size, n_out=num_output, rep=0)
        elif kind in ("poisson", "warm"):
            rate, count = float(numbers[0]), int(numbers[1])
            requests = self.requests(count, rate, 200 if kind == "warm" else 1000)
            facts = {"rate": rate, **means} if kind == "poisson" else {}
            await self.run(kind if kind == "poisson" else "warmup", requests, **facts)
        elif kind == "closed":
            clients, count = map(int, numbers)
            await self.run("closed", self.requests(count), clients, concurrency=clients, **means)
        elif kind == "prefix":
            rate, count = float(numbers[0]), int(numbers[1])
            prefixes, groups, arrival, requests = [self.tokens(2048) for _ in range(5)], [], 0.0, []
            for _ in range(count):
                arrival += self.random.expovariate(rate)
                groups.append(self.random.randrange(5))
                tokens = prefixes[groups[-1]] + self.tokens(self.length(200, 0.5, 16, 1000))
                requests.append((tokens, self.length(100, 0.5, 8, 400), arrival))
            await self.run("prefix", requests, rate=rate, prefix_len=2048, groups=groups)
        elif kind == "shown":
            count, size, times = int(numbers[0]), numbers[1], int(numbers[2])
            for rep in range(times):
                facts = {"images": f"{count}:{size}", "batch": 1, "n_out": 16, "rep": rep}
                await self.run("static", [(self.tokens(100), 16, 0.0, self.images(count, size))], keep=True, **facts)
        elif kind == "images":
            rate, requests, count, size = float(numbers[0]), int(numbers[1]), int(numbers[2]), numbers[3]
            arrivals = accumulate(self.random.expovariate(rate) for _ in range(requests))
            drawn = [(self.tokens(100), 100, arrival, self.images(count, size)) for arrival in arrivals]
            await self.run("poisson", drawn, rate=rate, images=f"{count}:{size}")
        else:
            raise SystemExit(f"unknown load {load!r}: idle, static, warm, poisson, closed, prefix, shown or images")

    def images(self, count, size):
        return [Picture(*map(int, size.split("x")), self.random) for _ in range(count)]


def energy_counter():
    """A function that reads the joules of GPU 0 since its driver started, or returns None."""
    try:
        import pynvml  # noqa: PLC0415 - not every machine has it

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(card)
    except Exception:
        return lambda: None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3


def config_of(name, engine_config, started):
    """What a result says of its engine."""
    import torch  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    scheduler, cache = engine_config.scheduler_config, engine_config.cache_config
    graphs = engine_config.compilation_config
    return {
        "name": name,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "quant": engine_config.model_config.quantization,
        "kv_cache_dtype": "auto",
        "vocabulary": engine_config.model_config.get_vocab_size(),
        "max_model_len": engine_config.model_config.max_model_len,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "kv_cache_memory_bytes": getattr(cache, "kv_cache_memory_bytes", None),
        "async_scheduling": scheduler.async_scheduling,
        "cudagraph_mode": str(graphs.cudagraph_mode),
        "cudagraph_sizes": list(graphs.cudagraph_capture_sizes or []),
        "startup_s": round(time.time() - started, 1),
    }


def in_process(engine, picture=()):
    """Requests by token ids to an engine's client in this process; an image replaces the tokens of ``picture``."""
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    async def send(name, tokens, num_output, images=()):
        prompt = {"prompt_token_ids": [*picture * len(images), *tokens]}
        if images:
            prompt["multi_modal_data"] = {"image": [each.opened() for each in images]}
        sampling = SamplingParams(
            max_tokens=num_output,
            min_tokens=num_output,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in engine.generate(prompt, sampling, name):
            if images and output.prompt_token_ids:
                yield -len(output.prompt_token_ids)
            yield len(output.outputs[0].token_ids) if output.outputs else 0

    return send
