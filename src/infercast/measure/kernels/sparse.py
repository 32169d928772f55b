"""Sparse attention as vLLM launches it: index scores, top-k, attention over latents, block-sparse kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from infercast.measure.cases import Shape
from infercast.measure.device import need_vllm
from infercast.measure.launch import SimpleLaunch, Workspace

# Block-sparse attention (MiniMax-M3) as vLLM launches it on chips without kernels of their own for it: Triton's.


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


def _block_scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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


def _block_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best blocks of each token, of prompts."""
    from vllm.models.minimax_m3.common.ops.index_topk import minimax_m3_index_topk  # noqa: PLC0415

    batch = _Batch(shape, workspace)
    columns = -(-batch.most // 16) * 16
    scores = workspace.take(shape["kv_heads"], batch.tokens, columns, dtype="fp32")[:, :, : batch.most]

    def launch() -> None:
        minimax_m3_index_topk(scores, batch.starts, batch.prefixes, batch.queries, shape["topk"], 0, LOCAL)

    return SimpleLaunch("vllm", launch)


def _block_decode_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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


def _block_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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
    "msa_scores": _block_scores,
    "msa_choice": _block_choice,
    "msa_decode_choice": _block_decode_choice,
    "msa": _block_attention,
}


# Scores are DeepGEMM's, which compiles a kernel for each number of index heads when it is first used. Attention is
# FlashAttention's over a bf16 cache and FlashMLA's over a packed fp8 one.


PAGE = 64
INDEX_DIM, INDEX_BYTES = 128, 132
LATENT, VALUE, PACKED = 576, 512, 656
LONGEST_MODEL = 163_840
"""Scores of sequences that decode lie in rows of this length, whatever is in them."""
TOPK_WORKSPACE = 1 << 20
COOPERATIVE_ROWS = 32
"""Up to so many rows several thread blocks search one together."""
SCALE = 0.0417


class _RowsLaunch(SimpleLaunch):
    """A launch that reads the beginnings of rows."""

    def touch(self) -> None:
        """Write what is read of them, and nothing between."""
        for rows in self.inputs:
            rows.mul_(1.0)


def build_sparse(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    need_vllm()
    return {**_BUILDERS, **BLOCK_SPARSE}[shape["op"]](shape, workspace)


def _integers(values: Any, workspace: Workspace) -> Any:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=workspace.device)


def _bytes(workspace: Workspace, *sizes: int) -> Any:
    return workspace.take(*sizes, dtype="fp8").view(torch.uint8)


def _ends(shape: Shape) -> tuple[Any, Any]:
    """Of each new token, where the keys of its sequence begin among all, and where those that it may see end."""
    batch, queries, keys = shape["batch"], shape["q_len"], shape["prefix"] + shape["q_len"]
    starts = np.repeat(np.arange(batch) * keys, queries)
    return starts, starts + np.tile(np.arange(shape["prefix"] + 1, keys + 1), batch)


def _pages(shape: Shape, workspace: Workspace) -> tuple[Any, int]:
    """Blocks of each sequence, one after the other, and how many there are in all."""
    each = -(-(shape["prefix"] + shape["q_len"]) // PAGE)
    table = torch.arange(shape["batch"] * each, dtype=torch.int32, device=workspace.device)
    return table.view(shape["batch"], each), shape["batch"] * each


def _scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Scores of prompts, over keys that were gathered into one array."""
    from vllm.utils.deep_gemm import fp8_fp4_mqa_logits  # noqa: PLC0415

    tokens, keys = shape["batch"] * shape["q_len"], shape["batch"] * (shape["prefix"] + shape["q_len"])
    query = workspace.take(tokens, shape["heads"], INDEX_DIM, dtype="fp8")
    key, scale = workspace.take(keys, INDEX_DIM, dtype="fp8"), workspace.take(keys, dtype="fp32")
    weights = workspace.take(tokens, shape["heads"], dtype="fp32")
    starts, ends = (_integers(each, workspace) for each in _ends(shape))

    def launch() -> None:
        fp8_fp4_mqa_logits((query, None), (key, scale), weights, starts, ends, clean_logits=False)

    return SimpleLaunch("vllm", launch, (query, key, scale, weights))


def _paged_scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Scores of sequences that decode, over keys in blocks."""
    from vllm.utils.deep_gemm import fp8_fp4_paged_mqa_logits, get_paged_mqa_logits_metadata  # noqa: PLC0415

    batch, heads = shape["batch"], shape["heads"]
    query = workspace.take(batch, 1, heads, INDEX_DIM, dtype="fp8")
    weights = workspace.take(batch, heads, dtype="fp32")
    lengths = _integers(np.full((batch, 1), shape["prefix"] + 1), workspace)
    table, blocks = _pages(shape, workspace)
    cache = _bytes(workspace, blocks, PAGE, INDEX_BYTES).unsqueeze(-2)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    schedule = get_paged_mqa_logits_metadata(lengths, PAGE, sms)

    def launch() -> None:
        fp8_fp4_paged_mqa_logits(
            (query, None), cache, weights, lengths, table, schedule, max_model_len=LONGEST_MODEL, clean_logits=False
        )

    return SimpleLaunch("vllm", launch, (query, weights))


def _choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best scores of each new token of prompts."""
    from vllm import _custom_ops as ops  # noqa: PLC0415

    starts, ends = _ends(shape)
    rows, columns, topk = len(starts), int(ends[-1]), shape["topk"]
    logits = workspace.take(rows, columns, dtype="fp32")
    first, last = _integers(starts, workspace), _integers(ends, workspace)
    places = torch.empty(rows, topk, dtype=torch.int32, device=workspace.device)

    def launch() -> None:
        ops.top_k_per_row_prefill(logits, first, last, places, rows, logits.stride(0), logits.stride(1), topk)

    return SimpleLaunch("vllm", launch, (logits,))


def _decode_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best scores of sequences that decode: a row of the longest length each, of which a part is taken."""
    import vllm._custom_ops  # noqa: F401, PLC0415 - registers the kernels

    batch, keys, topk = shape["batch"], shape["prefix"] + 1, shape["topk"]
    logits = workspace.take(batch, LONGEST_MODEL, dtype="fp32")
    lengths = _integers(np.full((batch, 1), keys), workspace)
    places = torch.empty(batch, topk, dtype=torch.int32, device=workspace.device)
    scratch = torch.zeros(TOPK_WORKSPACE, dtype=torch.uint8, device=workspace.device)

    def launch() -> None:
        if batch <= COOPERATIVE_ROWS:
            torch.ops._C.cooperative_topk(logits, lengths, places, scratch, topk, keys)
        else:
            torch.ops._C.persistent_topk(logits, lengths, places, scratch, topk, LONGEST_MODEL)

    return _RowsLaunch("vllm", launch, (logits[:, :keys],))


def _chosen(shape: Shape, workspace: Workspace) -> tuple[Any, Any]:
    """Places of the chosen keys of each new token in the cache, -1 where there are fewer, and how many there are."""
    starts, ends = (torch.tensor(each, device=workspace.device) for each in _ends(shape))
    seen, topk = (ends - starts).unsqueeze(1), shape["topk"]
    # Sequences begin at whole pages.
    each = -(-(shape["prefix"] + shape["q_len"]) // PAGE) * PAGE
    begins = (torch.arange(len(starts), device=workspace.device) // shape["q_len"] * each).unsqueeze(1)
    drawn = (torch.rand(len(starts), topk, device=workspace.device) * seen).long() + begins
    taken = torch.arange(topk, device=workspace.device).unsqueeze(0) < seen
    places = torch.where(taken, drawn, torch.full_like(drawn, -1)).to(torch.int32)
    return places.contiguous(), taken.sum(dim=1).to(torch.int32)


def _attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashAttention over single entries of a bf16 cache."""
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func  # noqa: PLC0415

    places, counts = _chosen(shape, workspace)
    tokens, (_, blocks) = len(places), _pages(shape, workspace)
    cache = workspace.take(blocks, PAGE, LATENT)
    key = cache[:, :, VALUE:].view(-1, 1, 1, LATENT - VALUE)
    value = cache[:, :, :VALUE].view(-1, 1, 1, VALUE)
    absorbed = workspace.take(tokens, shape["heads"], VALUE)
    rotated = workspace.take(tokens, shape["heads"], LATENT - VALUE)

    def launch() -> None:
        starts = torch.arange(0, tokens + 1, dtype=torch.int32, device=workspace.device)
        flash_attn_varlen_func(
            q=rotated,
            k=key,
            v=value,
            q_v=absorbed,
            max_seqlen_q=1,
            cu_seqlens_q=starts,
            max_seqlen_k=shape["topk"],
            seqused_k=counts,
            block_table=places,
            softmax_scale=SCALE,
            causal=True,
            fa_version=3,
        )

    return SimpleLaunch("vllm", launch, (absorbed, rotated))


def _widened_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashMLA over a bf16 copy of the cache, as prompts of many heads run over a packed one."""
    from vllm.v1.attention.ops.flashmla import flash_mla_sparse_fwd  # noqa: PLC0415

    places, counts = _chosen(shape, workspace)
    _, blocks = _pages(shape, workspace)
    query, copy = workspace.take(len(places), shape["heads"], LATENT), workspace.take(blocks * PAGE, 1, LATENT)
    chosen = places.unsqueeze(1)

    def launch() -> None:
        flash_mla_sparse_fwd(query, copy, chosen, SCALE, topk_length=counts)

    return SimpleLaunch("vllm", launch, (query, copy))


def _packed_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashMLA over a packed cache: sequences that decode, or prompts of few heads as one long sequence."""
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache, get_mla_metadata  # noqa: PLC0415

    places, _ = _chosen(shape, workspace)
    _, blocks = _pages(shape, workspace)
    decodes = shape["q_len"] == 1
    sizes = (len(places), 1) if decodes else (1, len(places))
    query = workspace.take(*sizes, shape["heads"], LATENT)
    # A packed entry holds scales that are no numbers if drawn at random, which is as fast.
    cache = _bytes(workspace, blocks, PAGE, PACKED).unsqueeze(-2)
    table = torch.zeros(sizes[0], 1, dtype=torch.int32, device=workspace.device)
    lengths = torch.full((sizes[0],), LONGEST_MODEL, dtype=torch.int32, device=workspace.device)
    schedule, _ = get_mla_metadata()

    def launch() -> None:
        flash_mla_with_kvcache(
            q=query,
            k_cache=cache,
            block_table=table,
            head_dim_v=VALUE,
            cache_seqlens=lengths,
            tile_scheduler_metadata=schedule,
            is_fp8_kvcache=True,
            indices=places.view(*sizes, -1),
            softmax_scale=SCALE,
        )

    return SimpleLaunch("vllm", launch, (query,))


_BUILDERS: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "index_scores": _scores,
    "index_scores_decode": _paged_scores,
    "top_k": _choice,
    "top_k_decode": _decode_choice,
    "mla": _attention,
    "mla_widened": _widened_attention,
    "mla_packed": _packed_attention,
}
