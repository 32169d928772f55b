"""Block-sparse attention (MiniMax-M3) as vLLM launches it on chips without kernels of their own for it: Triton's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from infercast.measure.case import Shape
from infercast.measure.launch import SimpleLaunch
from infercast.measure.workspace import Workspace

BLOCK, WIDTH = 128, 128
"""Tokens of a block, which is a page too, and the width of a head."""
LOCAL = 1
"""Blocks before a token that are always chosen."""


class _Batch:
    """Lengths and blocks of a batch, as these kernels take them."""

    def __init__(self, shape: Shape, workspace: Workspace) -> None:
        device, batch = workspace.device, shape["batch"]
        self.queries, self.keys = shape["q_len"], shape["prefix"] + shape["q_len"]
        self.tokens, self.most = batch * self.queries, -(-self.keys // BLOCK)
        self.blocks = batch * self.most
        self.table = torch.arange(self.blocks, dtype=torch.int32, device=device).view(batch, self.most)
        self.starts = torch.arange(0, self.tokens + 1, self.queries, dtype=torch.int32, device=device)
        self.lengths = torch.full((batch,), self.keys, dtype=torch.int32, device=device)
        self.prefixes = torch.full((batch,), shape["prefix"], dtype=torch.int32, device=device)

    def chosen(self, shape: Shape, workspace: Workspace) -> Any:
        """Blocks that are drawn for each token and key-value head, -1 where there are fewer."""
        device, topk = workspace.device, shape["topk"]
        position = torch.arange(self.tokens, device=device) % self.queries + shape["prefix"]
        seen = (position // BLOCK + 1).view(1, -1, 1)
        drawn = (torch.rand(shape["kv_heads"], self.tokens, topk, device=device) * seen).int()
        taken = torch.arange(topk, device=device).view(1, 1, -1) < seen
        return torch.where(taken, drawn, torch.full_like(drawn, -1)).contiguous()


def _scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best score of each block, of prompts."""
    from vllm.models.minimax_m3.common.ops.index_topk import minimax_m3_index_score  # noqa: PLC0415

    batch, heads = _Batch(shape, workspace), shape["kv_heads"]
    query = workspace.take(batch.tokens, heads, WIDTH)
    cache = workspace.take(batch.blocks, BLOCK, WIDTH)

    def launch() -> None:
        minimax_m3_index_score(
            query, cache, batch.table, batch.starts, batch.lengths, batch.prefixes, batch.queries, batch.keys, heads
        )

    return SimpleLaunch("vllm", launch, (query,))


def _choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best blocks of each token, of prompts."""
    from vllm.models.minimax_m3.common.ops.index_topk import minimax_m3_index_topk  # noqa: PLC0415

    batch = _Batch(shape, workspace)
    columns = -(-batch.most // 16) * 16
    scores = workspace.take(shape["kv_heads"], batch.tokens, columns, dtype="fp32")[:, :, : batch.most]

    def launch() -> None:
        minimax_m3_index_topk(scores, batch.starts, batch.prefixes, batch.queries, shape["topk"], 0, LOCAL)

    return SimpleLaunch("vllm", launch)


def _decode_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Scores and the choice of sequences that decode."""
    from vllm.models.minimax_m3.common.ops.index_topk import minimax_m3_index_decode  # noqa: PLC0415

    batch, heads = _Batch(shape, workspace), shape["kv_heads"]
    query = workspace.take(batch.tokens, heads, WIDTH)
    cache = workspace.take(batch.blocks, BLOCK, WIDTH)

    def launch() -> None:
        minimax_m3_index_decode(
            query, cache, batch.table, batch.lengths, batch.keys, shape["topk"], 0, LOCAL, heads, 1, 1
        )

    return SimpleLaunch("vllm", launch, (query,))


def _attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Attention over the chosen blocks."""
    from vllm.models.minimax_m3.common.ops.sparse_attn import (  # noqa: PLC0415
        minimax_m3_sparse_attn,
        minimax_m3_sparse_attn_decode,
    )

    batch, kv_heads, scale = _Batch(shape, workspace), shape["kv_heads"], WIDTH**-0.5
    query = workspace.take(batch.tokens, shape["heads"], WIDTH)
    cache = workspace.take(batch.blocks, 2, BLOCK, kv_heads, WIDTH, dtype=shape["kv_dtype"])
    chosen, out = batch.chosen(shape, workspace), torch.empty_like(query)

    def launch() -> None:
        if batch.queries == 1:
            minimax_m3_sparse_attn_decode(query, cache, chosen, batch.table, batch.lengths, kv_heads, scale, out, 1)
        else:
            minimax_m3_sparse_attn(
                query,
                cache,
                chosen,
                batch.table,
                batch.starts,
                batch.lengths,
                batch.prefixes,
                batch.queries,
                kv_heads,
                scale,
                out,
            )

    return SimpleLaunch("vllm", launch, (query,))


BLOCK_SPARSE: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "msa_scores": _scores,
    "msa_choice": _choice,
    "msa_decode_choice": _decode_choice,
    "msa": _attention,
}
