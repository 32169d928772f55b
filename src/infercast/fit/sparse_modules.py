"""Published tables of whole attention modules: what they leave for attention itself, once all else is estimated.

A row times a module with its projections. Its kernels are those that a step of a model with this module runs
(``models.mixers``). Attention over the chosen keys is learned from what the estimates of all others leave of a row, so
that a module comes out right as the sum of its kernels, in a table as in an engine's step; and what the sum still
misses is learned of the module as a whole. A group is one model at one number of heads a GPU: all its batches are
hidden together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.fit.rows import Rows
from infercast.fit.sparse_tables import FOLDER, lengths_of, parts, read_latencies, rows_of
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.kernels import facts_of
from infercast.models.formats import WeightFormat
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import BlockSparseAttention, CompressedAttention, Mixer, SparseLatentAttention
from infercast.models.read import read_model
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm, SparseAttention
from infercast.ops.dtypes import PACKED_LATENT, bytes_of
from infercast.ops.sparse import Batch
from infercast.predict.adjust.beside import felt_seconds
from infercast.predict.default import default_artifact
from infercast.predict.families import family_of
from infercast.predict.families.sparse import SPARSE_ATTENTION
from infercast.predict.families.sparse_module import PARTS, SparseModule, part_of
from infercast.predict.learned import Learned
from infercast.predict.physics.terms import miss_share
from infercast.predict.profile import kernel_profile
from infercast.predict.roofline import Predictor

Array = npt.NDArray[Any]

KINDS = {"dsa": "dsa", "csa": "dsv4_csa", "hca": "dsv4_hca", "msa": "msa"}
"""Of each kind of module, what its files are called."""
PHASES = {"prompt": "context", "decode": "generation"}
WHOLE, LEFT = "module", "attention"
"""What is learned of a module: what the sum of all its kernels misses, or attention from what the others leave."""
MODULE_FILES = {
    f"{kind}_{phase}_{what}": f"{FOLDER}/{file}_{part}_module.parquet"
    for what in (LEFT, WHOLE)
    for kind, file in KINDS.items()
    for phase, part in PHASES.items()
}
MODULE_FAMILIES = {name: "sparse_module" if name.endswith(WHOLE) else "sparse_attention" for name in MODULE_FILES}

VERSIONS = {"vllm": "0.24.0"}
"""Of each engine, the last release that was measured."""
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
FLASHMLA_HEADS = {"hopper": 64, "blackwell": 128}
KERNELS = {"FLASHINFER": "flashinfer", "MSAImpl": "fmha"}
"""Kernels that are learned apart, by what tables call them."""
UNPADDED = "FLASHINFER"
"""Whose kernels take heads as they are."""
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "zai-org/GLM-5": "glm-5",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4-flash",
    "sgl-project/DeepSeek-V4-Flash-FP8": "deepseek-v4-flash",
    "deepseek-ai/DeepSeek-V4-Pro": "deepseek-v4-pro",
    "sgl-project/DeepSeek-V4-Pro-FP8": "deepseek-v4-pro",
    "MiniMaxAI/MiniMax-M3": "minimax-m3",
}
HEADS = {"msa": (4, 8, 16, 32, 64)}
"""Heads of a GPU that a model can be split to."""
HOST_BOUND = 1.3
"""Eager launches of prompts never end sooner than the host has launched them: rows of fewer times the shortest of their
kind say how fast a host is."""


HALVED, ALONE, SHARPNESS = 0.55, 0.9, 4.0
"""Share of L2 that holds weights: where it is two halves that may hold a line each, and where not."""


def read_module(path: Path, name: str) -> Iterator[Rows]:
    """All rows of one file, layout by layout."""
    kind, phase, what = name.split("_")
    table = read_latencies(path)
    table = table[table.engine_version == table.engine.map(VERSIONS)]
    table = table[(table.isl > 1) == (phase == "prompt")]
    if kind in HEADS:
        table = table[table.num_heads.isin(HEADS[kind])]
    if phase == "prompt":
        shortest = table.groupby(["gpu", "engine", "kernel_source"]).latency_ms.transform("min")
        table = table[table.latency_ms > HOST_BOUND * shortest]
    for part in parts(table, "model", "num_heads", "kv_cache_dtype", "gemm_type", "mla_dtype", "kernel_source"):
        first = part.iloc[0]
        gpu = load_gpu(first.gpu)
        calls = module_calls(kind, first, gpu, lengths_of(part))
        hit = _kept(calls, gpu)
        seconds = {call.name: np.broadcast_to(_seconds(call, gpu, hit), len(part)) for call in calls}
        yield (_whole if what == WHOLE else _left)(part, name, calls, seconds)


def _whole(part: pandas.DataFrame, name: str, calls: list[Call], seconds: dict[str, Array]) -> Rows:
    """The module as one operator."""
    kind, phase, _ = name.split("_")
    first = part.iloc[0]
    sums: dict[str, Any] = {each: np.zeros(len(part)) for each in PARTS}
    for call in calls:
        sums[part_of(family_of(call.op).name)] += seconds[call.name]
    op = SparseModule(
        *lengths_of(part),
        kind=kind,
        heads=int(first.num_heads),
        weight_bytes=bytes_of(FORMATS[first.gemm_type]),
        narrow=first.kv_cache_dtype != "bfloat16",
        **sums,
    )
    return rows_of(part, name, FORMATS[first.gemm_type], op, _groups(part), f"{kind} {phase}{_kernel(part)}")


def _left(part: pandas.DataFrame, name: str, calls: list[Call], seconds: dict[str, Array]) -> Rows:
    """Attention, with what all other kernels take beside it."""
    first = part.iloc[0]
    attention = next(call for call in calls if isinstance(call.op, SparseAttention))
    beside = np.sum([seconds[call.name] for call in calls if call is not attention], axis=0)
    rows = rows_of(
        part, name, FORMATS[first.gemm_type], attention.op, _groups(part), _variant(name, attention.op) + _kernel(part)
    )
    return replace(rows, beside=beside)


def _variant(name: str, op: Any) -> str:
    """Kernels of latents have tables of their own; what modules leave of them holds small kernels that engines fuse."""
    kind, phase, _ = name.split("_")
    return f"{op.kind} {phase}" if kind != "dsa" else f"mla {op.kv_dtype} {phase} module"


def _kernel(part: pandas.DataFrame) -> str:
    """Whose kernel it is, where it is not the usual one."""
    return next((f" {name}" for word, name in KERNELS.items() if word in part.kernel_source.iloc[0]), "")


def _groups(part: pandas.DataFrame) -> Array:
    """One model at one number of heads."""
    return np.full(len(part), f"{part.model.iloc[0]}|{part.num_heads.iloc[0]}")


def module_calls(kind: str, row: Any, gpu: Gpu, lengths: tuple[Array, Array, Array]) -> list[Call]:
    """Kernels of a module, for an array of batches."""
    mixer, hidden, cache = _BUILD[kind](row, gpu)
    format_ = FORMATS[row.gemm_type]
    weights = WeightFormat(attention=format_, activation_attention=format_, name=format_)
    shard = Shard(hidden, "", weights, cache, ParallelLayout())
    queries, _, sequences = lengths
    return [
        *mixer.token_calls(shard, (queries * sequences).sum(axis=-1), 1),
        *mixer.sequence_calls(shard, 1, *lengths),
    ]


def _latent(row: Any, gpu: Gpu) -> tuple[Mixer, int, str]:
    """DeepSeek sparse attention at so many heads a GPU, with or without an indexer."""
    config = read_model(MODELS[row.model])
    mixer = next(stack.mixer for stack in config.stacks if isinstance(stack.mixer, SparseLatentAttention))
    narrow = row.kv_cache_dtype == "fp8"
    is_padded = UNPADDED not in row.kernel_source
    mixer = replace(
        mixer,
        heads=int(row.num_heads),
        head_multiple=FLASHMLA_HEADS[gpu.kernels] if is_padded else 1,
        joins_queries=True,
    )
    return mixer, config.hidden, (PACKED_LATENT if is_padded else "fp8") if narrow else "bf16"


def _blocks(row: Any, gpu: Gpu) -> tuple[Mixer, int, str]:
    """Block-sparse attention at so many heads a GPU."""
    del gpu
    config = read_model(MODELS[row.model])
    mixer = next(stack.mixer for stack in config.stacks if isinstance(stack.mixer, BlockSparseAttention))
    kv_heads = max(1, mixer.kv_heads * int(row.num_heads) // mixer.heads)
    mixer = replace(mixer, heads=int(row.num_heads), kv_heads=kv_heads, index_heads=kv_heads)
    return mixer, config.hidden, "fp8" if row.kv_cache_dtype == "fp8" else "bf16"


def _compressed(row: Any, gpu: Gpu) -> tuple[Mixer, int, str]:
    """Compressed attention at so many heads a GPU; groups of heads are split as heads are."""
    config = read_model(MODELS[row.model])
    mixers = [stack.mixer for stack in config.stacks if isinstance(stack.mixer, CompressedAttention)]
    mixer = next(each for each in mixers if each.compressor and each.compressor.tokens == row.compress_ratio)
    heads, padding = int(row.num_heads), FLASHMLA_HEADS[gpu.kernels]
    groups = max(1, mixer.o_groups * heads // mixer.heads)
    return replace(mixer, heads=heads, o_groups=groups, head_multiple=padding), config.hidden, PACKED_LATENT


_BUILD: dict[str, Callable[[Any, Gpu], tuple[Mixer, int, str]]] = {
    "dsa": _latent,
    "csa": _compressed,
    "hca": _compressed,
    "msa": _blocks,
}


@lru_cache
def _predictor(*, as_tabled: bool) -> Predictor:
    """Estimates of kernels as an engine runs them one after the other, or as a table that repeats them."""
    return Learned(default_artifact(), kernel_profile(), as_tabled=as_tabled)


def _kept(calls: list[Call], gpu: Gpu) -> float:
    """Share of the weights that a table, which repeats one module, finds in L2; an engine comes from other layers."""
    weights = sum(float(np.max(call.op.weight_bytes)) for call in calls if isinstance(call.op, Gemm))
    room = gpu.l2_bytes * (HALVED if facts_of(gpu).l2_partitions > 1 else ALONE)
    return 1.0 - float(miss_share(np.array(weights), room, SHARPNESS))


def _seconds(call: Call, gpu: Gpu, hit: float) -> Any:
    """As an engine runs it, but for weights and keys that a table finds in L2."""
    if isinstance(call.op, SparseAttention):
        # By its physics alone: what was learned of it may come from the very rows that are hidden.
        return SPARSE_ATTENTION.physics(call.op, gpu).seconds
    looks_back = isinstance(call.op, Batch)
    seconds = _predictor(as_tabled=looks_back).seconds(call.op, gpu)
    if isinstance(call.op, Gemm):
        saved = call.op.weight_bytes * (1.0 / (0.85 * gpu.dram_bandwidth) - 1.0 / (0.5 * gpu.l2_bandwidth))
        seconds = np.maximum(seconds - hit * np.maximum(saved, 0.0), 0.4 * seconds)
    return felt_seconds(call, seconds)
