"""What the CPU costs: a real engine with random models of different depths, so small that the GPU hardly matters."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.errors import InputError
from infercast.lab.measure.device import log_to_stderr

LAYERS = (2, 8, 32)
PROMPTS = (16, 64, 128, 256, 384, 500, 520, 768, 1024, 2048, 4096, 8000)
BATCHES = (1, 4, 16, 32, 64, 128, 256)
BURSTS = (2, 8, 32, 128)
REPEATS = 7
DECODED, WARM_UP = 48, 8  # tokens of a decoding request, and how many of them are not counted
ENGINE = read_data("lab/host.toml")
CONFIG = {"architectures": ["LlamaForCausalLM"], **ENGINE["config"]}
Say = Callable[[str], None]


def measure_host(say: Say = print) -> dict[str, Any]:
    """Times of an engine with each number of layers, in milliseconds."""
    log_to_stderr()
    # PyTorch may have looked at the GPU already, and a process that has must not be forked.
    os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
    try:
        import vllm  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise InputError("measuring the host needs vLLM: pip install vllm") from None
    models = []
    for number in LAYERS:
        models.append(asyncio.run(_measure_model(number, say)))
        say(f"{number} layers: {json.dumps(models[-1])[:300]}")
    return {"engine": "vllm", "config": CONFIG, "engine_version": vllm.__version__, "cpu": _cpu(), "models": models}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


async def _measure_model(layers: int, say: Say) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        config = {**CONFIG, "num_hidden_layers": layers}
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=folder, **ENGINE["arguments"]))
        say(f"engine with {layers} layers is up")
        try:
            return await _Client(engine).measure(layers)
        finally:
            engine.shutdown()


class _Client:
    def __init__(self, engine: Any) -> None:
        self._engine, self._sent = engine, 0

    async def measure(self, layers: int) -> dict[str, Any]:
        await self._together(4, 512, 16)
        first: dict[str, float] = {}
        step: dict[str, float] = {}
        bursts: dict[str, list[float]] = {}
        for length in PROMPTS:
            times = [(await self._together(1, length, 2))[0][0] for _ in range(REPEATS)]
            first[str(length)] = round(statistics.median(times), 3)
        for batch in BATCHES:
            runs = await self._together(batch, 16, DECODED)
            gaps = [late - early for run in runs for early, late in pairwise(run[WARM_UP:])]
            step[str(batch)] = round(statistics.median(gaps), 4)
        for burst in BURSTS:
            firsts = [sorted(answer[0] for answer in await self._together(burst, 64, 2)) for _ in range(3)]
            medians = [round(statistics.median(times), 3) for times in zip(*firsts, strict=True)]
            bursts[str(burst)] = medians[:: max(1, burst // 8)]
        return {"layers": layers, "first_token_ms": first, "decode_step_ms": step, "burst_first_token_ms": bursts}

    async def _together(self, count: int, length: int, outputs: int) -> list[list[float]]:
        """Milliseconds at which each request's tokens came, all requests sent at once."""
        await self._engine.reset_prefix_cache()
        await asyncio.sleep(0.05)
        return list(await asyncio.gather(*(self._one(length, outputs) for _ in range(count))))

    async def _one(self, length: int, outputs: int) -> list[float]:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        self._sent += 1
        tokens = [(7919 * (self._sent + place)) % (CONFIG["vocab_size"] - 2000) + 1000 for place in range(length)]
        parameters = SamplingParams(
            max_tokens=outputs,
            min_tokens=outputs,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        start = time.perf_counter()
        answers = self._engine.generate({"prompt_token_ids": tokens}, parameters, f"r{self._sent}")
        return [
            1e3 * (time.perf_counter() - start)
            async for answer in answers
            if answer.outputs and answer.outputs[0].token_ids
        ]
