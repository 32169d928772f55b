"""Published tables of sparse and compressed attention: component kernels, and whole attention modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from infercast.bundled import read_data
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.load import facts_of
from infercast.lab.fit.tables import Array, Rows, read_parquet, rows_of
from infercast.models.layout import ParallelLayout, Shard, WeightFormat
from infercast.models.mixers.mixer import Mixer, SequenceBatch
from infercast.models.mixers.sparse import BlockSparseAttention, CompressedAttention, SparseLatentAttention
from infercast.models.read import read_model
from infercast.ops import Call, EncoderAttention, Gemm, HyperConnection, IndexScores, SparseAttention, TopK
from infercast.ops.mixers import Batch
from infercast.ops.op import PACKED_LATENT
from infercast.predict.array_api import miss_share
from infercast.predict.estimate import exposed_seconds
from infercast.predict.families.sparse import SPARSE_ATTENTION, latent_attention
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned, default_artifact
from infercast.predict.roofline import Predictor

# Columns are ``batch_size``, ``isl`` (new tokens of a sequence), ``step`` (tokens cached before) and ``latency_ms``. A
# group is one pair of batch size and new tokens: all prefixes of it are hidden together.

FOLDER = "sparse-and-recurrent"
TABLES = read_data(Path(__file__).with_name("tables.toml"))["sparse"]
SPARSE_FILES = {name: f"{FOLDER}/{file}.parquet" for name, file in TABLES["files"].items()}
DSA_HEADS, DSA_TOPK = 32, 2048  # Index heads and chosen tokens of GLM-5, of which all component rows are
CSA_HEADS, CSA_COMPRESS = 64, 4
CSA_TOPK = {64: 512, 128: 1024}  # Chosen entries of DeepSeek-V4-Flash and -Pro, by their heads
_rows = partial(rows_of, time=("latency_ms", 1e-3))
NEEDED = ("gpu", "engine", "latency_ms")


def read_sparse(path: Path, name: str) -> Iterator[Rows]:
    table = read_parquet(path, NEEDED)
    table = table[table.latency_ms > 0]  # nothing is launched where there is no choice to make
    yield from _READERS[name](table)


def parts(table: pandas.DataFrame, *columns: str) -> Iterator[pandas.DataFrame]:
    """Rows that share GPU, engine and the values of these columns."""
    for _, part in table.groupby(["gpu", "engine", *columns], sort=True):
        yield part


def lengths_of(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    """(new tokens, tokens in all, sequences), one batch a row."""
    queries = part.isl.to_numpy()
    return queries[:, None], (queries + part.step.to_numpy())[:, None], part.batch_size.to_numpy()[:, None]


def batch_groups(part: pandas.DataFrame) -> Array:
    return np.array([f"{batch}|{new}" for batch, new in zip(part.batch_size, part.isl, strict=True)])


def _scores(table: pandas.DataFrame) -> Iterator[Rows]:
    """The kernel for prompts; sequences that decode run another."""
    for part in parts(table[table.isl > 1]):
        op = IndexScores(*lengths_of(part), heads=DSA_HEADS)
        yield _rows(part, "index_scores", "fp8", op, batch_groups(part), "fp8 prompt")


def _paged_scores(table: pandas.DataFrame) -> Iterator[Rows]:
    """Single new tokens alone: prompts do not run this kernel in engines."""
    for part in parts(table[table.isl == 1]):
        queries, keys, sequences = lengths_of(part)
        op = IndexScores(queries, keys, sequences, heads=CSA_HEADS, compress=CSA_COMPRESS)
        yield _rows(part, "paged_scores", "fp8", op, batch_groups(part), "fp8 decode")


def _choices(table: pandas.DataFrame) -> Iterator[Rows]:
    """Scores that are all alike take longest and scores that rise take least: the geometric mean of both."""
    shape = ["gpu", "engine", "batch_size", "isl", "step", "num_heads", "compress_ratio"]
    table = table.assign(latency_ms=np.log(table.latency_ms))
    merged = table.groupby(shape, sort=True, as_index=False).agg({"latency_ms": "mean", "index": "first"})
    merged["latency_ms"] = np.exp(merged.latency_ms)
    merged["phase"] = np.where(merged.isl == 1, "decode", "prompt")
    for part in parts(merged, "compress_ratio", "num_heads", "phase"):
        compress = int(part.compress_ratio.iloc[0])
        topk = DSA_TOPK if compress == 1 else CSA_TOPK[int(part.num_heads.iloc[0])]
        op = TopK(*lengths_of(part), topk=topk, compress=compress)
        name = "top_k" if compress == 1 else "compressed_top_k"
        yield _rows(part, name, "fp32", op, batch_groups(part), part.phase.iloc[0])


def _latent(table: pandas.DataFrame) -> Iterator[Rows]:
    """SGLang's calls do not say how many places are taken: each token walks through all of them."""
    for part in parts(table[table.isl > 1], "num_heads"):
        queries, _, sequences = lengths_of(part)
        # Heads that FlashMLA computes, which takes multiples
        multiple = 128 if load_gpu(part.gpu.iloc[0]).kernels == "blackwell" else 64
        sizes = {"heads": -(-int(part.num_heads.iloc[0]) // multiple) * multiple, "selected": DSA_TOPK}
        op = latent_attention(queries, queries + DSA_TOPK, sequences, **sizes, kind="mla", kv_dtype="bf16")
        yield _rows(part, "mla_attention", "bf16", op, batch_groups(part), "mla bf16 prompt")


def _heavily_compressed(table: pandas.DataFrame) -> Iterator[Rows]:
    table = table.assign(phase=np.where(table.isl == 1, "decode", "prompt"))
    for part in parts(table, "num_heads", "phase"):
        heads = int(part.num_heads.iloc[0])
        op = latent_attention(*lengths_of(part), heads=heads, selected=0, kind="hca", kv_dtype="fp8")
        yield _rows(part, "hca_attention", "fp8", op, batch_groups(part), f"hca fp8 {part.phase.iloc[0]} kernel")


def _connections(table: pandas.DataFrame) -> Iterator[Rows]:
    """A row is of both places of a layer, which are alike; rows of whole layers are left out."""
    table = table[table.num_sites == 2]
    table = table.assign(latency_ms=table.latency_ms / 2)
    table = table.assign(half=np.where(table.kernel_source.str.contains("post"), "post", "pre"))
    for part in parts(table, "hidden_size", "half"):
        hidden, half = int(part.hidden_size.iloc[0]), part.half.iloc[0]
        op = HyperConnection(part.num_tokens.to_numpy(), hidden=hidden, half=half)
        yield _rows(part, "hyper_connection", "bf16", op, np.array([f"{n}" for n in part.num_tokens]), half)


def _towers(table: pandas.DataFrame) -> Iterator[Rows]:
    """The last release of each engine; a group is one layout of heads."""
    last = table.groupby(["gpu", "engine"]).engine_version.transform("max")
    for part in parts(table[table.engine_version == last], "num_heads", "head_dim"):
        heads, width = int(part.num_heads.iloc[0]), int(part.head_dim.iloc[0])
        op = EncoderAttention(part.batch_size.to_numpy(), part.isl.to_numpy(), heads=heads, head_dim=width)
        yield _rows(part, "encoder_attention", "bf16", op, f"{heads}|{width}")


_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[Rows]]] = {
    "index_scores": _scores,
    "paged_scores": _paged_scores,
    "top_k": _choices,
    "compressed_top_k": _choices,
    "mla_attention": _latent,
    "hca_attention": _heavily_compressed,
    "hyper_connection": _connections,
    "encoder_attention": _towers,
}


# Published tables of whole attention modules. Attention over the chosen keys is learned from what the estimates of all
# other kernels leave of a row, and what the sum still misses of the module as a whole. A group is one model at one
# number of heads a GPU: all its batches are hidden together.

KINDS = {"dsa": "dsa", "csa": "dsv4_csa", "hca": "dsv4_hca", "msa": "msa"}
PHASES = {"prompt": "context", "decode": "generation"}
MODULE_FILES = {
    f"{kind}_{phase}_attention": f"{FOLDER}/{file}_{part}_module.parquet"
    for kind, file in KINDS.items()
    for phase, part in PHASES.items()
}
VERSIONS = {"vllm": "0.24.0"}  # Of each engine, the last release that was measured
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
FLASHMLA_HEADS = {"hopper": 64, "blackwell": 128}
KERNELS = {"FLASHINFER": "flashinfer", "MSAImpl": "fmha"}  # Kernels that are learned apart, by what tables call them
UNPADDED = "FLASHINFER"  # Its kernels take heads as they are
HEADS = {"msa": (4, 8, 16, 32, 64)}  # Heads of a GPU that a model can be split to
HOST_BOUND = 1.3  # Eager prompts last as long as the host launches: rows below this times the shortest tell its speed
HALVED, ALONE, SHARPNESS = 0.55, 0.9, 4.0
"""Share of L2 that holds weights: where it is two halves that may hold a line each, and where not."""


def read_module(path: Path, name: str) -> Iterator[Rows]:
    """Attention, from what the other kernels of a module leave of its time."""
    kind, phase, _ = name.split("_")
    table = read_parquet(path, NEEDED)
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
        yield _left(part, name, calls, seconds)


def _left(part: pandas.DataFrame, name: str, calls: list[Call], seconds: dict[str, Array]) -> Rows:
    first = part.iloc[0]
    attention = next(call for call in calls if isinstance(call.op, SparseAttention))
    other_seconds = np.sum([seconds[call.name] for call in calls if call is not attention], axis=0)
    kind, phase, _ = name.split("_")
    # Kernels of latents have tables of their own; what modules leave of them holds small kernels that engines fuse.
    op: Any = attention.op
    variant = f"mla {op.kv_dtype} {phase} module" if kind == "dsa" else f"{op.kind} {phase}"
    kernel = variant + _kernel(part)
    return _rows(part, name, FORMATS[first.gemm_type], op, _group(part), kernel, other_seconds=other_seconds)


def _kernel(part: pandas.DataFrame) -> str:
    """The library of the kernel, if it is not the usual one."""
    return next((f" {name}" for word, name in KERNELS.items() if word in part.kernel_source.iloc[0]), "")


def _group(part: pandas.DataFrame) -> str:
    return f"{part.model.iloc[0]}|{part.num_heads.iloc[0]}"


def module_calls(kind: str, row: Any, gpu: Gpu, lengths: tuple[Array, Array, Array]) -> list[Call]:
    config, format_ = read_model(TABLES["models"][row.model]), FORMATS[row.gemm_type]
    mixer, cache = _BUILD[kind](row, gpu, [stack.mixer for stack in config.stacks])
    weights = WeightFormat(attention=format_, activation_attention=format_, name=format_)
    shard = Shard(config.hidden, "", weights, cache, ParallelLayout())
    queries, _, sequences = lengths
    return [
        *mixer.token_calls(shard, (queries * sequences).sum(axis=-1)),
        *mixer.sequence_calls(shard, SequenceBatch(*lengths)),
    ]


def _module_latent(row: Any, gpu: Gpu, mixers: list[Mixer]) -> tuple[Mixer, str]:
    """DeepSeek sparse attention at the row's heads per GPU, with or without an indexer."""
    mixer = next(each for each in mixers if isinstance(each, SparseLatentAttention))
    narrow = row.kv_cache_dtype == "fp8"
    is_padded = UNPADDED not in row.kernel_source
    mixer = replace(
        mixer,
        heads=int(row.num_heads),
        head_multiple=FLASHMLA_HEADS[gpu.kernels] if is_padded else 1,
        joins_queries=True,
    )
    return mixer, (PACKED_LATENT if is_padded else "fp8") if narrow else "bf16"


def _blocks(row: Any, _: Gpu, mixers: list[Mixer]) -> tuple[Mixer, str]:
    mixer = next(each for each in mixers if isinstance(each, BlockSparseAttention))
    kv_heads = max(1, mixer.kv_heads * int(row.num_heads) // mixer.heads)
    mixer = replace(mixer, heads=int(row.num_heads), kv_heads=kv_heads, index_heads=kv_heads)
    return mixer, "fp8" if row.kv_cache_dtype == "fp8" else "bf16"


def _compressed(row: Any, gpu: Gpu, mixers: list[Mixer]) -> tuple[Mixer, str]:
    """Compressed attention at the row's heads per GPU; groups of heads are split as heads are."""
    every = (each for each in mixers if isinstance(each, CompressedAttention))
    mixer = next(each for each in every if each.compressor and each.compressor.tokens == row.compress_ratio)
    heads, padding = int(row.num_heads), FLASHMLA_HEADS[gpu.kernels]
    groups = max(1, mixer.o_groups * heads // mixer.heads)
    return replace(mixer, heads=heads, o_groups=groups, head_multiple=padding), PACKED_LATENT


_BUILD: dict[str, Callable[[Any, Gpu, list[Mixer]], tuple[Mixer, str]]] = {
    "dsa": _module_latent,
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
    return exposed_seconds(call, seconds)
