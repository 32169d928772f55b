"""Blocks of models with states, indexers or compressed caches, asked of vLLM's own functions and compared with ours.

    python benchmarks/scheduler/kv_states.py --vllm path/to/vllm-0.25.0 [--write tests/engines/vllm/kv_states.csv]

Needs what kv_groups.py needs. vLLM's functions raise the block size beside states, group the layers and count blocks;
what a layer keeps is taken from the shapes that vLLM computes for such a layer. Exits with 1 if any row differs.
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

from kv_groups import AVAILABLE, CHUNK, TOKENS

from infercast.engines.base import engine_named
from infercast.engines.vllm.kv_cache import ALIGN, ALL, NONE, StateBlocks, States, hybrid_block_size, kv_layout
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.library import model_names
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig, divides

TENSORS = (1, 2, 4, 8)
STATE = -1
COLUMNS = ("model", "tensor", "mode", "asked", "windows", "block_sizes", "blocks", "sequences")
"""``asked``: tokens in a block before it is raised; windows of -1 are groups of states. The rest as in kv_groups.py."""
SPECIAL = {"SparseLatentAttention": 64, "BlockSparseAttention": 128, "CompressedAttention": 256}
"""Kinds of layers with caches of several widths, and the block size that vLLM chooses for them on Hopper."""
RECURRENT = ("GatedDeltaNet", "KimiDeltaAttention", "Mamba2", "Mamba1", "GatedConvolution")


def main() -> int:
    """Compare all, print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("VLLM_TREE"), help="folder that holds vllm/")
    parser.add_argument("--models", type=Path, help="folder with config.json files by other names, in place of ours")
    parser.add_argument("--write", type=Path, help="record what vLLM says as a table")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.path.insert(0, options.vllm)
    rows, different = [], 0
    for name, config, layout, mode, asked in deployments(options.models):
        theirs, ours = (ask(config, layout, mode, asked) for ask in (_theirs, _ours))
        head = [name, layout.tensor, mode, asked]
        rows.append([*head, *theirs])
        if theirs != ours:
            different += 1
            print(f"{head}\n vLLM {theirs}\n ours {ours}")
    print(f"{len(rows)} deployments of {len({row[0] for row in rows})} models, {different} different")
    if options.write:
        with options.write.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return 1 if different else 0


def deployments(folder: Path | None) -> Iterator[tuple[str, ModelConfig, ParallelLayout, str, int]]:
    """Every model with such layers, in every layout that divides it and every way to cache states."""
    gpu = load_gpu("h200-sxm")
    sources = {path.stem: path for path in sorted(folder.glob("*.json"))} if folder else {n: n for n in model_names()}
    for name, source in sources.items():
        try:
            config = engine_named().choose_kernels(read_model(source), gpu)
        except ValueError:
            continue
        kinds = {type(stack.mixer).__name__ for stack in config.stacks}
        asked = max((size for kind, size in SPECIAL.items() if kind in kinds), default=16)
        states = States.of(config)
        if not states.kept and asked == 16:
            continue
        modes = (NONE, ALIGN, *([ALL] if states.every_block else [])) if states.kept else (NONE,)
        for tensor in TENSORS:
            if divides(config, tensor, split_experts=False):
                yield from ((name, config, ParallelLayout(tensor), mode, asked) for mode in modes)


def _ours(config: ModelConfig, layout: ParallelLayout, mode: str, asked: int) -> list[Any]:
    states = StateBlocks(mode)
    kv = kv_layout(config, layout, asked, states=states)
    shape, size = kv.shape, hybrid_block_size(config, layout, asked, states)
    windows = [STATE if number in shape.states else window for number, window in enumerate(shape.windows)]
    sizes = [*shape.sizes]
    if shape.state_blocks:
        windows, sizes = [*windows, *[STATE] * shape.state_blocks], [*sizes, *[size] * shape.state_blocks]
    blocks = AVAILABLE // kv.block_bytes
    needed = shape.most_blocks(TOKENS, CHUNK)
    pairs = sorted(zip(windows, sizes, strict=True))
    return [_words(pair[0] for pair in pairs), _words(pair[1] for pair in pairs), blocks, (blocks - 1) // needed]


def _theirs(config: ModelConfig, layout: ParallelLayout, mode: str, asked: int) -> list[Any]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs  # noqa: PLC0415 - found at run time
    from vllm.v1.kv_cache_interface import MambaSpec  # noqa: PLC0415 - as above

    narrow = config.cache_dtype != config.weights.base
    cache = SimpleNamespace(
        cache_dtype="fp8" if narrow else "auto", num_gpu_blocks_override=None, block_size=asked,
        mamba_cache_mode=mode, mamba_block_size=None, user_specified_mamba_block_size=False,
        mamba_page_size_padded=None,
    )  # fmt: skip
    settings = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=TOKENS, original_max_model_len=TOKENS, use_mla=False),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=CHUNK),
        cache_config=cache,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=layout.tensor
        ),
        kv_transfer_config=None,
        speculative_config=None,
    )
    _align(settings, config, layout)
    worker = {}
    for position, number in enumerate(config.layer_stacks):
        parts = _parts(config.stacks[number].mixer)
        specs = [spec for mixer in parts for spec in _specs(mixer, config, layout, cache)]
        worker |= {f"layers.{position}.{part}": spec for part, spec in enumerate(specs)}
    plan = get_kv_cache_configs(settings, [worker], [AVAILABLE])[0]
    groups = [_first(group.kv_cache_spec) for group in plan.kv_cache_groups]
    needed = sum(_most_blocks(spec, mode) for spec in groups)
    sizes = [cache.block_size if isinstance(spec, MambaSpec) else spec.block_size for spec in groups]
    windows = [STATE if isinstance(spec, MambaSpec) else getattr(spec, "sliding_window", None) or 0 for spec in groups]
    pairs = sorted(zip(windows, sizes, strict=True))
    words = [_words(pair[0] for pair in pairs), _words(pair[1] for pair in pairs)]
    return [*words, plan.num_blocks, (plan.num_blocks - 1) // needed]


def _align(settings: Any, config: ModelConfig, layout: ParallelLayout) -> None:
    """Let vLLM raise the block size and pad states, as it does when an engine starts."""
    import torch  # noqa: PLC0415 - needs what vLLM needs
    from vllm.model_executor import models  # noqa: PLC0415 - found at run time
    from vllm.platforms.interface import Platform  # noqa: PLC0415 - as above
    from vllm.v1.attention.backend import MultipleOf  # noqa: PLC0415 - as above

    mixers = [each for stack in config.stacks for each in _parts(stack.mixer)]
    recurrent = [mixer for mixer in mixers if type(mixer).__name__ in RECURRENT]
    if not recurrent:
        return
    attention = next(mixer for mixer in mixers if mixer not in recurrent and mixer.caches(config.shard(layout)))
    latent = hasattr(attention, "latent_dim")
    heads = 1 if latent else max(1, attention.kv_heads // layout.tensor)
    model = settings.model_config
    model.use_mla, model.dtype, model.architecture = latent, torch.bfloat16, config.architecture
    model.get_num_kv_heads = lambda _: heads
    model.get_head_size = lambda: attention.latent_dim if latent else attention.head_dim
    model.get_mamba_chunk_size = lambda: max(mixer.chunk for mixer in recurrent)
    shapes = max((_state(mixer, layout) for mixer in recurrent), key=_state_bytes)
    kept = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: [shape for shape, _ in shapes],
        get_mamba_state_dtype_from_config=lambda _: [dtype for _, dtype in shapes],
    )
    models.ModelRegistry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (kept, None))
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: [MultipleOf(16)])
    Platform._align_hybrid_block_size(settings, backend)


def _parts(mixer: Any) -> list[Any]:
    """A layer's mixer, or the two that it has side by side."""
    return [mixer.first, mixer.second] if type(mixer).__name__ == "SideBySide" else [mixer]


def _state(mixer: Any, layout: ParallelLayout) -> list[tuple[Any, Any]]:
    """Shapes and formats of a layer's state, by vLLM's own calculator."""
    import torch  # noqa: PLC0415 - needs what vLLM needs
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator  # noqa: PLC0415 - as above

    make, kind, tensor = MambaStateShapeCalculator, type(mixer).__name__, layout.tensor
    if kind == "GatedDeltaNet":
        heads = mixer.key_heads, mixer.heads, mixer.key_dim, mixer.value_dim
        shapes = make.gated_delta_net_state_shape(tensor, *heads, mixer.taps)
    elif kind == "KimiDeltaAttention":
        shapes = make.kda_state_shape(tensor, mixer.heads, mixer.head_dim, conv_kernel_size=mixer.taps)
    elif kind == "Mamba2":
        width = mixer.heads * mixer.head_dim
        heads = mixer.groups, mixer.heads, mixer.head_dim, mixer.state_size
        shapes = make.mamba2_state_shape(tensor, width, *heads, mixer.taps)
    elif kind == "Mamba1":
        shapes = make.mamba1_state_shape(tensor, mixer.channels, mixer.state_size, mixer.taps)
    else:
        shapes = make.short_conv_state_shape(tensor, mixer.channels, mixer.taps)
    wide = kind == "KimiDeltaAttention" or getattr(mixer, "state_dtype", "") == "fp32"
    return [*zip(shapes, (torch.bfloat16, torch.float32 if wide else torch.bfloat16), strict=False)]


def _state_bytes(shapes: list[tuple[Any, Any]]) -> int:
    total = 0
    for shape, dtype in shapes:
        values = 1
        for size in shape:
            values *= size
        total += values * dtype.itemsize
    return total


def _specs(mixer: Any, config: ModelConfig, layout: ParallelLayout, cache: Any) -> list[Any]:
    """A layer's caches as vLLM's modules describe them."""
    import torch  # noqa: PLC0415 - needs what vLLM needs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec  # noqa: PLC0415 - as above

    kind, size = type(mixer).__name__, cache.block_size
    narrow = config.cache_dtype != config.weights.base
    dtype = torch.uint8 if narrow else torch.bfloat16
    if not mixer.caches(config.shard(layout)):
        return []
    if kind in RECURRENT:
        shapes = _state(mixer, layout)
        tokens = TOKENS if cache.mamba_cache_mode == NONE else cache.mamba_block_size or size
        names, formats = zip(*shapes, strict=True)
        padded = cache.mamba_page_size_padded
        return [MambaSpec(tokens, names, formats, padded, mamba_cache_mode=cache.mamba_cache_mode)]
    if kind == "CompressedAttention":
        return _compressed(mixer, size)
    if hasattr(mixer, "latent_dim"):
        name = "fp8_ds_mla" if narrow and kind in SPECIAL else cache.cache_dtype
        latent = {"num_kv_heads": 1, "head_size": mixer.latent_dim, "dtype": dtype, "cache_dtype_str": name}
        specs = [MLAAttentionSpec(block_size=size, **latent)]
        if getattr(mixer, "indexer", None):
            width = mixer.indexer.head_dim + 4
            specs.append(MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=width, dtype=torch.uint8))
        return specs
    heads = {"num_kv_heads": max(1, mixer.kv_heads // layout.tensor), "head_size": mixer.head_dim, "dtype": dtype}
    specs = [FullAttentionSpec(block_size=size, **heads, head_size_v=mixer.value_dim)]
    if kind == "BlockSparseAttention":
        specs.append(MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=mixer.index_dim, dtype=torch.bfloat16))
    return specs


def _compressed(mixer: Any, size: int) -> list[Any]:
    """DeepSeek-V4: a window, compressed entries and the states they are made of, and the same of an indexer."""
    import torch  # noqa: PLC0415 - needs what vLLM needs
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec  # noqa: PLC0415 - as above

    packed = {"num_kv_heads": 1, "alignment": 576}
    entry = {**packed, "head_size": 512, "dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla"}
    entry["model_version"] = "deepseek_v4"
    specs: list[Any] = [SlidingWindowMLASpec(block_size=64, sliding_window=mixer.window, **entry)]

    def states(compressor: Any) -> Any:
        twice = 2 if compressor.tokens == 4 else 1
        width = 2 * twice * compressor.head_dim
        return SlidingWindowMLASpec(
            block_size={4: 4, 128: 8}[compressor.tokens], sliding_window=twice * compressor.tokens, **packed,
            head_size=width, dtype=torch.float32,
        )  # fmt: skip

    if mixer.compressor:
        specs.append(MLAAttentionSpec(block_size=size, compress_ratio=mixer.compressor.tokens, **entry))
        specs.append(states(mixer.compressor))
    if mixer.indexer:
        keys = {**packed, "head_size": mixer.indexer.head_dim + 4, "dtype": torch.uint8}
        specs.append(MLAAttentionSpec(block_size=size, compress_ratio=mixer.indexer.compressor.tokens, **keys))
        specs.append(states(mixer.indexer.compressor))
    return specs


def _first(spec: Any) -> Any:
    """A group of several widths has blocks of the same tokens."""
    return next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec


def _most_blocks(spec: Any, mode: str) -> int:
    """Blocks that the longest sequence holds at most in a group, as vLLM admits it."""
    whole = -(-TOKENS // spec.block_size)
    if hasattr(spec, "mamba_cache_mode"):
        return {NONE: 1, ALIGN: min(2, whole), ALL: whole}[mode]
    if not getattr(spec, "sliding_window", None):
        return whole
    return min(whole, int(spec.max_admission_blocks_per_request(CHUNK, TOKENS)))


def _words(numbers: Any) -> str:
    return " ".join(map(str, numbers))


if __name__ == "__main__":
    sys.exit(main())
