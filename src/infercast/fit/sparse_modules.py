"""Published tables of whole attention modules: what they leave for attention itself, once all else is estimated.

A row times a module with its projections. Its kernels are those that a step of a model with this module runs
(``models.mixers``); attention over the chosen keys is learned from what the estimates of all others leave of a row, so
that a module comes out right as the sum of its kernels, in a table as in an engine's step. A group is one model at one
number of heads a GPU: all its batches are hidden together.
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
from infercast.fit.sparse_tables import FOLDER, lengths_of, parts, read_latencies
from infercast.hardware import Gpu, load_gpu
from infercast.models.formats import WeightFormat
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import BlockSparseAttention, Mixer, SparseLatentAttention
from infercast.models.read import read_model
from infercast.models.shard import Shard
from infercast.ops import Call, SparseAttention
from infercast.ops.dtypes import PACKED_LATENT
from infercast.predict.default import make_predictor
from infercast.predict.learned import Learned

Array = npt.NDArray[Any]

KINDS = {"dsa": "dsa", "msa": "msa"}
"""Of each kind of module, what its files are called."""
PHASES = {"prompt": "context", "decode": "generation"}
MODULE_FILES = {
    f"{kind}_{phase}_module": f"{FOLDER}/{file}_{part}_module.parquet"
    for kind, file in KINDS.items()
    for phase, part in PHASES.items()
}
MODULE_FAMILIES = dict.fromkeys(MODULE_FILES, "sparse_attention")

VERSIONS = {"vllm": ("0.24.0",), "sglang": ("0.5.14", "0.5.16")}
"""Only the last release of an engine that was measured."""
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
DENSE = "dense_mha"
"""Short prompts that SGLang runs without choosing anything."""
SKIPPING = "skip_indexer"
"""Layers that take the choice of a layer before."""
FLASHMLA_HEADS = {"hopper": 64, "blackwell": 128}
UNPADDED = ("FLASHINFER", "trtllm", "fa3")
"""Kernels that take heads as they are."""
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5-FP8": "glm-5",
    "nvidia/GLM-5-NVFP4": "glm-5",
    "zai-org/GLM-5.2": "glm-5",
    "zai-org/GLM-5.2-FP8": "glm-5",
    "nvidia/GLM-5.2-NVFP4": "glm-5",
    "MiniMaxAI/MiniMax-M3": "minimax-m3",
}
HEADS = {"msa": (4, 8, 16, 32, 64)}
"""Heads of a GPU that a model can be split to."""
HOST_BOUND = 1.3
"""Eager launches of prompts never end sooner than the host has launched them: rows of fewer times the shortest of their
kind say how fast a host is."""


def read_module(path: Path, name: str) -> Iterator[Rows]:
    """All rows of one file, layout by layout."""
    kind, phase, _ = name.split("_")
    table = read_latencies(path)
    known = np.logical_or.reduce(
        [table.engine.eq(engine) & table.engine_version.isin(each) for engine, each in VERSIONS.items()]
    )
    table = table[known & ~table.kernel_source.str.contains(DENSE)]
    table = table[(table.isl > 1) == (phase == "prompt")]
    if kind in HEADS:
        table = table[table.num_heads.isin(HEADS[kind])]
    if phase == "prompt":
        shortest = table.groupby(["gpu", "engine", "kernel_source"]).latency_ms.transform("min")
        table = table[table.latency_ms > HOST_BOUND * shortest]
    for part in parts(table, "model", "num_heads", "kv_cache_dtype", "gemm_type", "mla_dtype", "kernel_source"):
        yield _rows(part, kind, phase, name)


def _rows(part: pandas.DataFrame, kind: str, phase: str, name: str) -> Rows:
    first = part.iloc[0]
    gpu = load_gpu(first.gpu)
    calls = module_calls(kind, first, gpu, lengths_of(part))
    attention = next(call.op for call in calls if isinstance(call.op, SparseAttention))
    beside = sum(_seconds(call, gpu) for call in calls if call.op is not attention)
    variant = f"{attention.kind} {attention.kv_dtype} {phase}" + (" module" if kind == "dsa" else "")
    return Rows(
        family=name,
        gpu=first.gpu,
        engine=first.engine,
        dtype=FORMATS[first.gemm_type],
        kernel=variant,
        group=np.full(len(part), f"{first.model}|{first.num_heads}"),
        op=attention,
        seconds=part.latency_ms.to_numpy() * 1e-3,
        index=part["index"].to_numpy(),
        beside=np.broadcast_to(beside, len(part)),
    )


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
    is_padded = not any(name in row.kernel_source for name in UNPADDED)
    mixer = replace(
        mixer,
        heads=int(row.num_heads),
        indexer=None if SKIPPING in row.kernel_source else mixer.indexer,
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


_BUILD: dict[str, Callable[[Any, Gpu], tuple[Mixer, int, str]]] = {"dsa": _latent, "msa": _blocks}


@lru_cache
def _predictor() -> Learned:
    """Estimates of the other kernels, as an engine runs them one after the other."""
    return make_predictor()


def _seconds(call: Call, gpu: Gpu) -> Any:
    return call.count * _predictor().seconds(call.op, gpu)
