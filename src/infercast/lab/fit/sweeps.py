"""Tables of ``infercast measure`` as operators: kernels as an engine launches them, compared with its physics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from infercast import ops
from infercast.errors import FileFormatError, InputError
from infercast.hardware import load_gpu
from infercast.lab.fit.tables import Array, Rows, read_parquet, rows_of
from infercast.ops.op import gated_activation, norm, quantise, rope, spread_lengths
from infercast.predict.families.sparse import BLOCK_CHOICE, TOP_K, latent_attention
from infercast.predict.identity import SWEEP

# Kernels of sparse attention: one table, in which ``op`` names the kernel; a group is one layout of heads at one batch.

Lengths = tuple[Array, Array, Array]
BLOCK, WIDTH = 128, 128  # Tokens of a block and the width of a head, of block-sparse attention
_rows = partial(rows_of, engine=SWEEP, time=("burst_us", 1e-6))
"""The power limit, which longer runs meet, is a matter of the whole step."""
LATENT = {"mla": "bf16", "mla_packed": "fp8"}


def read_sparse_sweep(table: pandas.DataFrame) -> Iterator[Rows]:
    """All rows that an engine launches in the same form."""
    table = table.assign(phase=np.where(table.q_len == 1, "decode", "prompt"))
    for values, part in table.groupby(["op", "phase", "heads", "kv_heads", "topk", "kv_dtype"]):
        op, phase, heads, kv_heads, topk, kv_dtype = values
        lengths = _prompts(part)
        if op.startswith("index_scores"):
            yield _sparse_rows(part, "index_scores", ops.IndexScores(*lengths, heads=int(heads)), f"fp8 {phase}")
        elif op.startswith("top_k"):
            yield _sparse_rows(part, "top_k", ops.TopK(*lengths, topk=int(topk)), phase)
        elif op in LATENT:
            stored = LATENT[op]
            latent = latent_attention(*lengths, heads=int(heads), selected=int(topk), kind="mla", kv_dtype=stored)
            yield _sparse_rows(part, "sparse_attention", latent, f"mla {stored} {phase}")
        elif op.startswith("msa"):
            yield from _blocks(part, op, phase, lengths, (int(heads), int(kv_heads), int(topk), str(kv_dtype)))


def _blocks(
    part: pandas.DataFrame, op: str, phase: str, lengths: Lengths, layout: tuple[int, int, int, str]
) -> Iterator[Rows]:
    """Block-sparse attention, its scores and its choice; decoding sequences choose in the same launch."""
    heads, kv_heads, topk, kv_dtype = layout
    queries, keys, sequences = lengths
    scores = ops.IndexScores(*lengths, heads=kv_heads, entry_bytes=2.0 * WIDTH, dtype="bf16")
    choice = ops.TopK(queries, keys, sequences * kv_heads, topk=topk, compress=BLOCK)
    if op == "msa_scores":
        yield _sparse_rows(part, "index_scores", scores, f"bf16 {phase}")
    elif op == "msa_choice":
        yield _sparse_rows(part, "top_k", choice, f"{BLOCK_CHOICE} {phase}")
    elif op == "msa_decode_choice":
        other_seconds = np.ravel(TOP_K.physics(choice, load_gpu(part.gpu.iloc[0]), swept=True).seconds)
        yield _sparse_rows(part, "index_scores", scores, f"bf16 {phase}", other_seconds)
    else:
        stored = 2.0 * WIDTH * kv_heads * (1.0 if kv_dtype == "fp8" else 2.0)
        sizes: dict[str, Any] = {"heads": heads, "head_dim": WIDTH, "value_dim": WIDTH, "kv_heads": kv_heads}
        sizes |= {"selected": topk * BLOCK, "block": BLOCK, "bytes_per_key": stored}
        attention = ops.SparseAttention(*lengths, **sizes, kind="msa", kv_dtype=kv_dtype)
        yield _sparse_rows(part, "sparse_attention", attention, f"msa {phase}")


def _sparse_rows(part: pandas.DataFrame, family: str, op: Any, kernel: str, other_seconds: Array | None = None) -> Rows:
    layout = f"{part.heads.iloc[0]}|{part.kv_heads.iloc[0]}|{part.topk.iloc[0]}"
    group = np.array([f"{layout}|{batch}" for batch in part.batch])
    return _rows(part, family, part.kv_dtype.iloc[0], op, group, kernel, other_seconds=other_seconds)


PUBLISHED: dict[str, tuple[str, ...]] = {"elementwise": ("quantise",)}
"""What published tables call the one kernel that they have of a family, or the kinds of layers they have it of."""
PUBLISHED |= dict.fromkeys(("scan", "state_update", "convolution"), ("gdn", "kda", "mamba2"))
HEADS = ("heads", "key_heads", "key_dim", "value_dim")
PUBLISHED["sparse"] = ("index_scores", "top_k", "mla_attention", "msa_decode_attention")
LAYOUT = ("heads", "kv_heads", "head_dim", "value_dim", "latent", "window", "kv_dtype")


def read_sweep(folder: Path, families: Sequence[str] | None = None, *, needs_meta: bool = True) -> Iterator[Rows]:
    if needs_meta and not (folder / "meta.toml").exists():
        raise InputError(f"{folder} is not a table of `infercast measure`: it has no meta.toml")
    for family in read_families(folder, families):
        path = folder / f"{family}.parquet"
        table = read_parquet(path, ("gpu", "latency_us", "burst_us"))
        for name in ("latency_us", "burst_us"):
            if not (table[name] > 0).all():
                row = int(np.flatnonzero(~(table[name] > 0))[0])
                raise FileFormatError(path, f"row {row}: {name} must be above 0, not {table[name].iloc[row]}")
        yield from _READERS[family](table)


def read_families(folder: Path, families: Sequence[str] | None = None) -> list[str]:
    """Tables of a GPU's folder that are read when these families are asked for."""
    return [
        family
        for family in _READERS
        if (folder / f"{family}.parquet").exists()
        and (families is None or not {family, *PUBLISHED.get(family, ())}.isdisjoint(families))
    ]


def is_swept(folder: Path) -> bool:
    """Whether its tables are of `infercast measure`, by a column that no published table has."""
    tables = (folder / f"{family}.parquet" for family in read_families(folder))
    return any("burst_us" in pandas.read_parquet(table) for table in tables)


def sweep_folders(folder: Path) -> list[Path]:
    found = [folder] if (folder / "meta.toml").exists() else sorted(path.parent for path in folder.glob("*/meta.toml"))
    if not found:
        raise InputError(f"{folder} has no table of `infercast measure`: no meta.toml in it or one level below")
    return found


def _gemm(table: pandas.DataFrame) -> Iterator[Rows]:
    for dtype, part in table.groupby("dtype"):
        m, n, k = (part[name].to_numpy() for name in "mnk")
        if dtype in ("bf16", "fp8"):  # too few rows of other formats, which run bf16's kernels or nearly so
            yield _rows(part, "gemm", dtype, ops.Gemm(m, n, k, dtype), n * 1_000_000 + k)


def _attention(family: str) -> Callable[[pandas.DataFrame], Iterator[Rows]]:
    def read(table: pandas.DataFrame) -> Iterator[Rows]:
        for values, part in table.groupby(list(LAYOUT)):
            heads, kv_heads, head_dim, value_dim, latent, window, kv_dtype = values
            queries, keys, sequences = _prompts(part) if "q_len" in part else _decodes(part)
            sizes = (heads, kv_heads, head_dim, value_dim)
            op = ops.Attention(queries, keys, *sizes, sequences, int(window), bool(latent), kv_dtype=kv_dtype)
            yield _rows(part, family, f"bf16/{kv_dtype}", op, "|".join(map(str, values[:5])))

    return read


def _prompts(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    queries = part.q_len.to_numpy()[:, None]
    return queries, queries + part.prefix.to_numpy()[:, None], part.batch.to_numpy()[:, None]


def _decodes(part: pandas.DataFrame) -> tuple[Array, Array, Array]:
    cached, sequences = _batches(part, part.kv_len)
    return np.ones_like(cached), np.where(sequences > 0, cached + 1, 1), sequences


def _batches(part: pandas.DataFrame, means: pandas.Series) -> tuple[Array, Array]:
    """Uneven lengths, one row a batch; batches shorter than the longest end in rows of no sequences."""
    widest = int(part.batch.max())
    lengths, sequences = np.ones((len(part), widest), dtype=np.int64), np.zeros((len(part), widest), dtype=np.int64)
    for row, (batch, mean, sigma) in enumerate(zip(part.batch, means, part.sigma, strict=True)):
        lengths[row, :batch], sequences[row, :batch] = spread_lengths(batch, mean, sigma), 1
    return lengths, sequences


def _experts(table: pandas.DataFrame) -> Iterator[Rows]:
    layout = ["dtype", "routing", "hidden", "inter", "experts", "topk"]
    for (dtype, routing, hidden, inter, experts, topk), part in table.groupby(layout):
        op = ops.MoE(
            part.tokens.to_numpy(), hidden, inter, experts, topk, dtype=dtype, weight_dtype=dtype, routing=routing
        )
        yield _rows(part, "moe", f"{dtype}/{routing}", op, f"{hidden}|{inter}|{experts}|{topk}", "triton")


def _memory_bound(table: pandas.DataFrame) -> Iterator[Rows]:
    """Kernels that an engine launches in the same form; others stay with their physics."""
    for (name, width, heads), part in table.groupby(["op", "width", "heads"]):
        if name in _COMPILED:
            op = _COMPILED[name](part.rows.to_numpy(), int(width), int(heads))
            yield _rows(part, "memory_bound", op.kind, op, f"{width}|{heads}", op.kind)


def _scans(table: pandas.DataFrame) -> Iterator[Rows]:
    for (kind, *sizes), part in table.groupby(["kind", *HEADS, "chunk", "state_dtype"]):
        heads, key_heads, key_dim, value_dim, chunk, state_dtype = sizes
        lengths, sequences = _batches(part, part.q_len)
        op = ops.Scan(
            lengths, sequences, heads, key_heads, key_dim, value_dim, kind, chunk, "bf16", state_dtype, "triton"
        )
        yield _rows(part, "scan", f"{kind} triton", op, "|".join(map(str, sizes[:4])), f"{kind}/triton")


def _updates(table: pandas.DataFrame) -> Iterator[Rows]:
    for (kind, *sizes), part in table.groupby(["kind", *HEADS, "state_dtype"]):
        heads, key_heads, key_dim, value_dim, state_dtype = sizes
        rows = part.rows.to_numpy()
        op = ops.StateUpdate(rows, heads, key_heads, key_dim, value_dim, kind, "bf16", state_dtype)
        yield _rows(part, "state_update", kind, op, "|".join(map(str, sizes[:4])), kind)


def _convolutions(table: pandas.DataFrame) -> Iterator[Rows]:
    for (update, channels, taps), part in table.groupby(["update", "channels", "taps"]):
        lengths, sequences = _batches(part, part.q_len)
        op = ops.ShortConvolution(
            (lengths * sequences).sum(axis=-1), part.batch.to_numpy(), int(channels), int(taps), bool(update)
        )
        kernel = f"{'update' if update else 'prompts'}/triton"
        yield _rows(part, "convolution", kernel.replace("/", " "), op, f"{channels}", kernel)


_COMPILED: dict[str, Callable[[Array, int, int], ops.Elementwise]] = {
    "norm": lambda rows, width, _: norm(rows, width, residual=False),
    "add_norm": lambda rows, width, _: norm(rows, width, residual=True),
    "norm_quant": lambda rows, width, _: norm(rows, width, residual=False, out_dtype="fp8"),
    "add_norm_quant": lambda rows, width, _: norm(rows, width, residual=True, out_dtype="fp8"),
    "quant": lambda rows, width, _: quantise(rows, width, compiled=True),
    "silu_mul": lambda rows, width, _: gated_activation(rows, width),
    "rope": lambda rows, width, heads: rope(rows, heads, width),
}
_READERS: dict[str, Callable[[pandas.DataFrame], Iterator[Rows]]] = {
    "gemm": _gemm, "attention_prefill": _attention("attention_prefill"),
    "attention_decode": _attention("attention_decode"), "moe": _experts, "elementwise": _memory_bound, "scan": _scans,
    "state_update": _updates, "convolution": _convolutions, "sparse": read_sparse_sweep,
}  # fmt: skip
