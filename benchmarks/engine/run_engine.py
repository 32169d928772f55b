"""Serve workloads on a real vLLM engine with dummy weights and write what clients saw for `infercast validate`.

    python run_engine.py --model FOLDER_WITH_CONFIG --name NAME --out FOLDER --runs 'poisson:10:200,prefix:40:200'

Needs vLLM 0.25 and a GPU. With hook/ on PYTHONPATH and STEP_LOG set, the engine core logs its steps beside.
"""

import argparse
import asyncio
import gzip
import json
import math
import os
import random
import statistics
import time
from itertools import pairwise

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--runs", default="idle:128:4,idle:2048:3,poisson:12:200")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--quantization")
    parser.add_argument("--mean-in", type=int, default=700)
    parser.add_argument("--mean-out", type=int, default=180)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def percentile(values, fraction):
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, int(len(ranked) * fraction))], 3)


class Bench:
    """One engine, its clients, and what they saw."""

    def __init__(self, options) -> None:
        self.options = options
        self.random = random.Random(1234 + options.seed)
        self.number = 0
        self.runs = []

    async def start(self) -> None:
        import torch  # noqa: PLC0415 - slow to load, and the options are read before
        import vllm  # noqa: PLC0415
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        options, began = self.options, time.time()
        self.engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=options.model,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=options.max_model_len,
                max_num_batched_tokens=options.max_num_batched_tokens,
                max_num_seqs=options.max_num_seqs,
                gpu_memory_utilization=0.9,
                dtype="bfloat16",
                quantization=options.quantization,
                num_gpu_blocks_override=options.blocks,
                disable_log_stats=True,
            )
        )
        settings = self.engine.vllm_config
        self.vocabulary = settings.model_config.get_vocab_size()
        self.config = {
            "name": options.name,
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(0),
            "quant": options.quantization,
            "kv_cache_dtype": "auto",
            "max_model_len": options.max_model_len,
            "gpu_memory_utilization": 0.9,
            "max_num_batched_tokens": settings.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": settings.scheduler_config.max_num_seqs,
            "block_size": settings.cache_config.block_size,
            "num_gpu_blocks": settings.cache_config.num_gpu_blocks,
            "num_gpu_blocks_override": options.blocks,
            "async_scheduling": settings.scheduler_config.async_scheduling,
            "cudagraph_mode": str(settings.compilation_config.cudagraph_mode),
            "cudagraph_sizes": list(settings.compilation_config.cudagraph_capture_sizes or []),
            "startup_s": round(time.time() - began, 1),
        }
        print(f"up after {time.time() - began:.0f} s:", json.dumps(self.config)[:500], flush=True)

    async def one(self, tokens, num_output, arrival, zero, keep):
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        self.number += 1
        name, wait = f"r{self.number}", zero + arrival - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        sampling = SamplingParams(
            max_tokens=num_output,
            min_tokens=num_output,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        sent, times, counts = time.perf_counter(), [], []
        async for output in self.engine.generate({"prompt_token_ids": tokens}, sampling, name):
            count = len(output.outputs[0].token_ids) if output.outputs else 0
            if count:
                times.append(time.perf_counter())
                counts.append(count)
        total = sum(counts)
        row = {
            "arrival": round(sent - zero, 6),
            "n_in": len(tokens),
            "n_out": total,
            "ttft_ms": round(1e3 * (times[0] - sent), 3),
            "e2e_ms": round(1e3 * (times[-1] - sent), 3),
            "tpot_ms": round(1e3 * (times[-1] - times[0]) / max(1, total - counts[0]), 4),
            "name": name,
            "sent": round(sent, 6),
        }
        if len(times) > 1:
            gaps = [1e3 * (after - before) for before, after in pairwise(times)]
            row["itl_p50_ms"], row["itl_p99_ms"] = percentile(gaps, 0.5), percentile(gaps, 0.99)
        if keep:
            row["token_ms"] = [round(1e3 * (each - sent), 3) for each in times]
        return row

    async def run(self, kind, requests, keep=False, **facts) -> None:
        await self.engine.reset_prefix_cache()
        zero = time.perf_counter() + 0.05
        rows = await asyncio.gather(*[self.one(*each, zero, keep) for each in requests])
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
        }
        self.runs.append({"kind": kind, **facts, "summary": summary, "requests": rows})
        print(self.options.name, kind, facts if kind != "prefix" else "", summary, flush=True)
        with gzip.open(os.path.join(self.options.out, self.options.name + ".json.gz"), "wt") as file:
            json.dump({"config": self.config, "runs": self.runs}, file)

    def tokens(self, count):
        return [self.random.randrange(1000, self.vocabulary - 1000) for _ in range(count)]

    def length(self, mean, sigma, low, high):
        drawn = int(self.random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))
        return max(low, min(high, drawn))

    def poisson(self, rate, count, most_out=1000):
        options, arrival, requests = self.options, 0.0, []
        longest = min(8000, options.max_model_len - 1200)
        for _ in range(count):
            arrival += self.random.expovariate(rate)
            num_input = self.length(options.mean_in, 0.9, 16, longest)
            requests.append((self.tokens(num_input), self.length(options.mean_out, 0.8, 4, most_out), arrival))
        return requests

    async def play(self, spec) -> None:
        kind, *numbers = spec.split(":")
        if kind == "idle":  # one request after the other
            size, count = map(int, numbers)
            for rep in range(count):
                facts = {"batch": 1, "n_in": size, "n_out": 16, "rep": rep}
                await self.run("static", [(self.tokens(size), 16, 0.0)], keep=True, **facts)
        elif kind == "static":
            batch, size, num_output = map(int, numbers)
            requests = [(self.tokens(size), num_output, 0.0) for _ in range(batch)]
            facts = {"batch": batch, "n_in": size, "n_out": num_output, "rep": 0}
            await self.run("static", requests, keep=batch <= 8, **facts)
        elif kind in ("poisson", "warm"):
            rate, count = float(numbers[0]), int(numbers[1])
            requests = self.poisson(rate, count, 200 if kind == "warm" else 1000)
            if kind == "warm":
                await self.run("warmup", requests)
            else:
                options = self.options
                facts = {"rate": rate, "mean_in": options.mean_in, "mean_out": options.mean_out}
                await self.run("poisson", requests, **facts)
        elif kind == "prefix":
            rate, count = float(numbers[0]), int(numbers[1])
            prefixes, groups, arrival, requests = [self.tokens(2048) for _ in range(5)], [], 0.0, []
            for _ in range(count):
                arrival += self.random.expovariate(rate)
                groups.append(self.random.randrange(5))
                tokens = prefixes[groups[-1]] + self.tokens(self.length(200, 0.5, 16, 1000))
                requests.append((tokens, self.length(100, 0.5, 8, 400), arrival))
            await self.run("prefix", requests, rate=rate, prefix_len=2048, groups=groups)
        else:
            raise SystemExit(f"unknown run {spec!r}: idle, static, warm, poisson or prefix")


async def main() -> None:
    options = arguments()
    bench = Bench(options)
    await bench.start()
    await bench.run("warmup", [(bench.tokens(512), 16, 0.0) for _ in range(4)])
    for spec in options.runs.split(","):
        await bench.play(spec)
    await bench.engine.reset_prefix_cache()
    bench.engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
