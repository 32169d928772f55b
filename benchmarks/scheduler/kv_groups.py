"""KV groups, blocks and capacities of every bundled model, asked of vLLM's own functions and compared with ours.

Needs the Python files of vLLM 0.25 (its wheel unpacked; nothing compiled, no GPU) and what they import, PyTorch for a
CPU among it:

    python benchmarks/scheduler/kv_groups.py --vllm path/to/vllm-0.25.0 [--write tests/engines/vllm/kv_groups.csv]

``VLLM_TREE`` may name the folder instead. Exits with 1 if any row differs.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from infercast.engines.vllm.kv_cache import SMALLEST_BLOCK, kv_layout
from infercast.models.layout import ParallelLayout
from infercast.models.library import model_names
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention, NoMixer
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig, Stack, divides, stage_range

AVAILABLE = 40 * 2**30
TOKENS, CHUNK, BLOCK_SIZE = 32_768, 8_192, 16
TENSORS, PIPELINES = (1, 2, 4, 8), (1, 4)
PLAIN = {GroupedAttention, LatentAttention, NoMixer}
COLUMNS = ("model", "tensor", "pipeline", "windows", "block_sizes", "blocks", "sequences")
"""``blocks``: of 40 GiB a GPU; ``sequences``: of 32,768 tokens that fit, computed 8,192 a step."""


def main() -> int:
    """Compare all, print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("VLLM_TREE"), help="folder that holds vllm/")
    parser.add_argument("--write", type=Path, help="record what vLLM says as a table")
    options = parser.parse_args()
    if not options.vllm:
        parser.error("--vllm (or VLLM_TREE) must name the folder that holds vLLM's Python files")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.path.insert(0, options.vllm)
    rows, different = [], 0
    for name, config, layout in deployments():
        theirs = [name, layout.tensor, layout.pipeline, *_theirs(config, layout)]
        ours = [name, layout.tensor, layout.pipeline, *_ours(config, layout)]
        rows.append(theirs)
        if theirs != ours:
            different += 1
            print(f"vLLM {theirs}\nours {ours}")
    print(f"{len(rows)} deployments of {len({row[0] for row in rows})} models, {different} different")
    if options.write:
        with options.write.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return 1 if different else 0


def deployments() -> Iterator[tuple[str, ModelConfig, ParallelLayout]]:
    """Every bundled model in every layout that divides it; pipelines where a model has several kinds of layers.

    Models with states of recurrent layers or keys of indexers have other blocks beside these, and are left out; so are
    encoders, which cache nothing.
    """
    for name in model_names():
        config = read_model(name)
        if not {type(stack.mixer) for stack in config.stacks} <= PLAIN or sees_all(config):
            continue
        windows = kv_layout(config, ParallelLayout(), BLOCK_SIZE).shape.windows
        pipelines = PIPELINES if len(set(windows)) > 1 and not any(map(borrows, config.stacks)) else PIPELINES[:1]
        for tensor in TENSORS:
            if divides(config, tensor, split_experts=False):
                layouts = [ParallelLayout(tensor, pipeline) for pipeline in pipelines]
                yield from ((name, config, each) for each in layouts if _ours(config, each)[-1])  # one sequence fits


def sees_all(config: ModelConfig) -> bool:
    """Whether every token of a prompt sees all of it, so that nothing is cached."""
    return all(getattr(stack.mixer, "bidirectional", False) for stack in config.stacks)


def borrows(stack: Stack) -> bool:
    """Whether its layers read what earlier ones cached; such a model is not modelled in stages."""
    return bool(getattr(stack.mixer, "borrows", False))


def _ours(config: ModelConfig, layout: ParallelLayout) -> list[Any]:
    stages = [kv_layout(config, layout, BLOCK_SIZE, stage) for stage in range(layout.pipeline)]
    shape = stages[0].shape
    blocks = min(AVAILABLE // kv.block_bytes for kv in stages)
    return [_words(shape.windows), _words(shape.sizes), blocks, (blocks - 1) // shape.most_blocks(TOKENS, CHUNK)]


def _theirs(config: ModelConfig, layout: ParallelLayout) -> list[Any]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs  # noqa: PLC0415 - found at run time

    settings = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=TOKENS, original_max_model_len=TOKENS),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=CHUNK),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        kv_transfer_config=None,
        speculative_config=None,
    )
    stacks = [config.stacks[number] for number in config.layer_stacks]
    caching = [(at, stack) for at, stack in enumerate(stacks) if not (stack.mixer.is_empty or borrows(stack))]
    specs = {at: _spec(config, stack, layout) for at, stack in caching}
    ranges = [stage_range(len(stacks), layout, stage) for stage in range(layout.pipeline)]
    workers = [{f"layers.{position}": specs[position] for position in held if position in specs} for held in ranges]
    plans = get_kv_cache_configs(settings, workers, [AVAILABLE] * layout.pipeline)
    groups = [group.kv_cache_spec for group in plans[0].kv_cache_groups]
    windows = [_window(group) for group in groups]
    needed = sum(_most_blocks(group) for group in groups)
    sizes = [group.block_size for group in groups]
    return [_words(windows), _words(sizes), plans[0].num_blocks, (plans[0].num_blocks - 1) // needed]


def _window(spec: Any) -> int:
    return getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) or 0


def _most_blocks(spec: Any) -> int:
    """Blocks that the longest sequence holds at most in a group, as vLLM admits it."""
    whole = -(-TOKENS // spec.block_size)
    if not _window(spec):
        return whole
    return min(whole, int(spec.max_admission_blocks_per_request(CHUNK, TOKENS)))


def _spec(config: ModelConfig, stack: Stack, layout: ParallelLayout) -> Any:
    """A layer as vLLM's attention modules describe it."""
    import torch  # noqa: PLC0415 - needs what vLLM needs
    from vllm.v1.kv_cache_interface import (  # noqa: PLC0415 - found at run time
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}[config.cache_dtype]
    attention = stack.mixer
    if isinstance(attention, LatentAttention):
        return MLAAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=attention.latent_dim, dtype=dtype)
    heads = {"num_kv_heads": max(1, attention.kv_heads // layout.tensor), "head_size": attention.head_dim}
    if attention.chunked:
        chunk = attention.window
        return ChunkedLocalAttentionSpec(block_size=BLOCK_SIZE, dtype=dtype, attention_chunk_size=chunk, **heads)
    heads["head_size_v"] = attention.value_dim
    if attention.window:
        # Windowed layers take the smallest blocks that their kernels know.
        window = attention.window
        return SlidingWindowSpec(block_size=SMALLEST_BLOCK, dtype=dtype, sliding_window=window, **heads)
    return FullAttentionSpec(block_size=BLOCK_SIZE, dtype=dtype, **heads)


def _words(numbers: Any) -> str:
    return " ".join(map(str, numbers))


if __name__ == "__main__":
    sys.exit(main())
