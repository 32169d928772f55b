"""Serve loads on a real vLLM engine in process, with dummy weights: what clients saw, for `infercast validate`.

    python run_engine.py --model FOLDER_WITH_CONFIG --name NAME --out FOLDER --runs 'poisson:10:200,prefix:40:200'

Needs vLLM and a GPU. With hook/ on PYTHONPATH and STEP_LOG set, the engine core logs its steps beside. Loads are
described in loads.py; serve_engine.py does the same behind a real server.
"""

import argparse
import asyncio
import os
import time
from pathlib import Path

from loads import Loads, config_of, energy_counter, in_process

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", required=True, type=Path)
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


async def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - slow to load, and the options are read before
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    options, began = arguments(), time.time()
    engine = AsyncLLM.from_engine_args(
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
    loads = Loads(
        options.out / f"{options.name}.json.gz",
        config_of(options.name, engine.vllm_config, began),
        in_process(engine),
        engine.reset_prefix_cache,
        energy_counter(),
        options.mean_in,
        options.mean_out,
        options.seed,
    )
    await loads.run("warmup", [(loads.tokens(512), 16, 0.0) for _ in range(4)])
    for load in options.runs.split(","):
        await loads.play(load)
    await engine.reset_prefix_cache()
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
