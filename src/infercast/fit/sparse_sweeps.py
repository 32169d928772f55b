"""Kernels of sparse attention in tables of ``infercast measure``: one table, in which ``op`` names the kernel.

A group is one layout of heads at one batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from infercast.fit.rows import Rows
from infercast.hardware import load_gpu
from infercast.ops import IndexScores, SparseAttention, TopK
from infercast.predict.families.sparse import BLOCK_CHOICE, TOP_K, latent_attention
from infercast.predict.identity import SWEEP

Array = npt.NDArray[Any]
Lengths = tuple[Array, Array, Array]

BLOCK, WIDTH = 128, 128
"""Tokens of a block and the width of a head, of block-sparse attention."""
LATENT = {"mla": "bf16", "mla_packed": "fp8"}
"""Kernels over latents, and the format of their cache."""


def read_sparse_sweep(table: pandas.DataFrame) -> Iterator[Rows]:
    """All rows that an engine launches in the same form."""
    table = table.assign(phase=np.where(table.q_len == 1, "decode", "prompt"))
    for values, part in table.groupby(["op", "phase", "heads", "kv_heads", "topk", "kv_dtype"]):
        op, phase, heads, kv_heads, topk, kv_dtype = values
        queries = part.q_len.to_numpy()[:, None]
        lengths = (queries, queries + part.prefix.to_numpy()[:, None], part.batch.to_numpy()[:, None])
        if op.startswith("index_scores"):
            yield _rows(part, "index_scores", IndexScores(*lengths, heads=int(heads)), f"fp8 {phase}")
        elif op.startswith("top_k"):
            yield _rows(part, "top_k", TopK(*lengths, topk=int(topk)), phase)
        elif op in LATENT:
            stored = LATENT[op]
            latent = latent_attention(*lengths, heads=int(heads), selected=int(topk), kind="mla", kv_dtype=stored)
            yield _rows(part, "sparse_attention", latent, f"mla {stored} {phase}")
        elif op.startswith("msa"):
            yield from _blocks(part, op, phase, lengths, (int(heads), int(kv_heads), int(topk), str(kv_dtype)))


def _blocks(
    part: pandas.DataFrame, op: str, phase: str, lengths: Lengths, layout: tuple[int, int, int, str]
) -> Iterator[Rows]:
    """Block-sparse attention, its scores and its choice; decoding sequences choose in the same launch."""
    heads, kv_heads, topk, kv_dtype = layout
    queries, keys, sequences = lengths
    scores = IndexScores(*lengths, heads=kv_heads, entry_bytes=2.0 * WIDTH, dtype="bf16")
    choice = TopK(queries, keys, sequences * kv_heads, topk=topk, compress=BLOCK)
    if op == "msa_scores":
        yield _rows(part, "index_scores", scores, f"bf16 {phase}")
    elif op == "msa_choice":
        yield _rows(part, "top_k", choice, f"{BLOCK_CHOICE} {phase}")
    elif op == "msa_decode_choice":
        beside = np.ravel(TOP_K.physics(choice, load_gpu(part.gpu.iloc[0]), swept=True).seconds)
        yield _rows(part, "index_scores", scores, f"bf16 {phase}", beside)
    else:
        attention = SparseAttention(
            *lengths,
            heads=heads,
            head_dim=WIDTH,
            value_dim=WIDTH,
            kv_heads=kv_heads,
            selected=topk * BLOCK,
            block=BLOCK,
            bytes_per_key=2.0 * WIDTH * kv_heads * (1.0 if kv_dtype == "fp8" else 2.0),
            kind="msa",
            kv_dtype=kv_dtype,
        )
        yield _rows(part, "sparse_attention", attention, f"msa {phase}")


def _rows(part: pandas.DataFrame, family: str, op: Any, kernel: str, beside: Array | None = None) -> Rows:
    layout = f"{part.heads.iloc[0]}|{part.kv_heads.iloc[0]}|{part.topk.iloc[0]}"
    return Rows(
        family=family,
        gpu=part.gpu.iloc[0],
        engine=SWEEP,
        dtype=part.kv_dtype.iloc[0],
        kernel=kernel,
        group=np.array([f"{layout}|{batch}" for batch in part.batch]),
        op=op,
        seconds=part.burst_us.to_numpy() * 1e-6,  # the power limit is a matter of the whole step
        index=part.index.to_numpy(),
        beside=beside,
    )
