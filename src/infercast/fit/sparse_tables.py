"""Published tables of sparse and compressed attention: component kernels, one parquet file each.

Columns are ``batch_size``, ``isl`` (new tokens of a sequence), ``step`` (tokens cached before) and ``latency_ms``. A
group is one pair of batch size and new tokens: all prefixes of it are hidden together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.errors import FileFormatError
from infercast.fit.rows import Rows
from infercast.hardware import load_gpu
from infercast.ops import EncoderAttention, HyperConnection, IndexScores, TopK
from infercast.predict.families.sparse import latent_attention

Array = npt.NDArray[Any]

FOLDER = "sparse-and-recurrent"
SPARSE_FILES = {
    name: f"{FOLDER}/{file}.parquet"
    for name, file in {
        "index_scores": "glm5_mqa_logits_module",
        "paged_scores": "dsv4_paged_mqa_logits_module",
        "top_k": "glm5_topk_module",
        "compressed_top_k": "dsv4_csa_topk_calib",
        "mla_attention": "glm5_dsa_attn_module",
        "hca_attention": "dsv4_hca_attn_module",
        "hyper_connection": "mhc_module",
        "encoder_attention": "encoder_attention",
    }.items()
}
"""Of each table, its file."""
SPARSE_FAMILIES = {
    "paged_scores": "index_scores",
    "compressed_top_k": "top_k",
    "mla_attention": "sparse_attention",
    "hca_attention": "sparse_attention",
}
"""Families of the tables that have another name."""

DSA_HEADS, DSA_TOPK = 32, 2048
"""Index heads and chosen tokens of GLM-5, of which all component rows are."""
CSA_HEADS, CSA_COMPRESS = 64, 4
CSA_TOPK = {64: 512, 128: 1024}
"""Chosen entries of DeepSeek-V4-Flash and -Pro, by their heads."""


def read_sparse(path: Path, name: str) -> Iterator[Rows]:
    """All rows of one file, operator by operator."""
    table = read_latencies(path)
    table = table[table.latency_ms > 0]  # nothing is launched where there is no choice to make
    yield from _READERS[name](table)


def read_latencies(path: Path) -> pandas.DataFrame:
    """A table with its row numbers; an error where it is none."""
    try:
        table = pandas.read_parquet(path)
    except (OSError, ValueError) as problem:
        raise FileFormatError(path, f"cannot be read as parquet: {problem}") from None
    for name in ("gpu", "engine", "latency_ms"):
        if name not in table:
            raise FileFormatError(path, f"lacks the column {name!r}")
    return table.assign(index=np.arange(len(table)))


def parts(table: pandas.DataFrame, *columns: str) -> Iterator[pandas.DataFrame]:
    """Rows that share GPU, engine and the values of these columns."""
    for _, part in table.groupby(["gpu", "engine", *columns], sort=True):
        yield part


def rows_of(part: pandas.DataFrame, family: str, dtype: str, op: Any, group: Array, kernel: str = "") -> Rows:
    """Rows of one operator."""
    return Rows(
        family=family,
        gpu=part.gpu.iloc[0],
        engine=part.engine.iloc[0],
        dtype=dtype,
        kernel=kernel,
        group=group,
        op=op,
        seconds=part.latency_ms.to_numpy() * 1e-3,
        index=part["index"].to_numpy(),
    )


def lengths_of(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    """(new tokens, tokens in all, sequences), one batch a row."""
    queries = part.isl.to_numpy()
    return queries[:, None], (queries + part.step.to_numpy())[:, None], part.batch_size.to_numpy()[:, None]


def batch_groups(part: pandas.DataFrame) -> Array:
    """One group for each batch size and number of new tokens."""
    return np.array([f"{batch}|{new}" for batch, new in zip(part.batch_size, part.isl, strict=True)])


def padded_heads(heads: int, gpu: str) -> int:
    """Heads that FlashMLA computes in place of so many."""
    multiple = 128 if load_gpu(gpu).kernels == "blackwell" else 64
    return -(-heads // multiple) * multiple


def _scores(table: pandas.DataFrame) -> Iterator[Rows]:
    """The kernel for prompts; sequences that decode run another."""
    for part in parts(table[table.isl > 1]):
        op = IndexScores(*lengths_of(part), heads=DSA_HEADS)
        yield rows_of(part, "index_scores", "fp8", op, batch_groups(part), "fp8 prompt")


def _paged_scores(table: pandas.DataFrame) -> Iterator[Rows]:
    """Single new tokens alone: prompts do not run this kernel in engines."""
    for part in parts(table[table.isl == 1]):
        queries, keys, sequences = lengths_of(part)
        op = IndexScores(queries, keys, sequences, heads=CSA_HEADS, compress=CSA_COMPRESS)
        yield rows_of(part, "paged_scores", "fp8", op, batch_groups(part), "fp8 decode")


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
        yield rows_of(part, name, "fp32", op, batch_groups(part), part.phase.iloc[0])


def _latent(table: pandas.DataFrame) -> Iterator[Rows]:
    """SGLang's calls do not say how many places are taken: each token walks through all of them."""
    for part in parts(table[table.isl > 1], "num_heads"):
        queries, _, sequences = lengths_of(part)
        op = latent_attention(
            queries,
            queries + DSA_TOPK,
            sequences,
            heads=padded_heads(int(part.num_heads.iloc[0]), part.gpu.iloc[0]),
            selected=DSA_TOPK,
            kind="mla",
            kv_dtype="bf16",
        )
        yield rows_of(part, "mla_attention", "bf16", op, batch_groups(part), "mla bf16 prompt")


def _heavily_compressed(table: pandas.DataFrame) -> Iterator[Rows]:
    table = table.assign(phase=np.where(table.isl == 1, "decode", "prompt"))
    for part in parts(table, "num_heads", "phase"):
        heads = int(part.num_heads.iloc[0])
        op = latent_attention(*lengths_of(part), heads=heads, selected=0, kind="hca", kv_dtype="fp8")
        yield rows_of(part, "hca_attention", "fp8", op, batch_groups(part), f"hca fp8 {part.phase.iloc[0]} kernel")


def _connections(table: pandas.DataFrame) -> Iterator[Rows]:
    """A row is of both places of a layer, which are alike; rows of whole layers are left out."""
    table = table[table.num_sites == 2]
    table = table.assign(latency_ms=table.latency_ms / 2)
    table = table.assign(half=np.where(table.kernel_source.str.contains("post"), "post", "pre"))
    for part in parts(table, "hidden_size", "half"):
        hidden, half = int(part.hidden_size.iloc[0]), part.half.iloc[0]
        op = HyperConnection(part.num_tokens.to_numpy(), hidden=hidden, half=half)
        yield rows_of(part, "hyper_connection", "bf16", op, np.array([f"{n}" for n in part.num_tokens]), half)


def _towers(table: pandas.DataFrame) -> Iterator[Rows]:
    """The last release of each engine; a group is one layout of heads."""
    last = table.groupby(["gpu", "engine"]).engine_version.transform("max")
    for part in parts(table[table.engine_version == last], "num_heads", "head_dim"):
        heads, width = int(part.num_heads.iloc[0]), int(part.head_dim.iloc[0])
        op = EncoderAttention(part.batch_size.to_numpy(), part.isl.to_numpy(), heads=heads, head_dim=width)
        yield rows_of(part, "encoder_attention", "bf16", op, np.full(len(part), f"{heads}|{width}"))


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
