"""Sparse attention as vLLM launches it: index scores, top-k, attention over latents, block-sparse kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from infercast.lab.measure.cases import Shape
from infercast.lab.measure.device import vllm
from infercast.lab.measure.launch import SimpleLaunch, Workspace, integers

# Block-sparse attention (MiniMax-M3) as vLLM launches it on chips without kernels of their own for it: Triton's.

BLOCK, WIDTH = 128, 128  # tokens of a block, which is a page too, and the width of a head
LOCAL = 1  # blocks before a token that are always chosen
OPS = "models.minimax_m3.common.ops"


class _Batch:
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
    batch, heads = _Batch(shape, workspace), shape["kv_heads"]
    query, cache = workspace.take(batch.tokens, heads, WIDTH), workspace.take(batch.blocks, BLOCK, WIDTH)
    lengths = (batch.starts, batch.lengths, batch.prefixes, batch.queries, batch.keys)
    score = vllm(f"{OPS}.index_topk").minimax_m3_index_score
    return SimpleLaunch("vllm", partial(score, query, cache, batch.table, *lengths, heads), (query,))


def _block_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    batch = _Batch(shape, workspace)
    columns = -(-batch.most // 16) * 16
    scores = workspace.take(shape["kv_heads"], batch.tokens, columns, dtype="fp32")[:, :, : batch.most]
    choose = vllm(f"{OPS}.index_topk").minimax_m3_index_topk
    lengths = (batch.starts, batch.prefixes, batch.queries)
    return SimpleLaunch("vllm", partial(choose, scores, *lengths, shape["topk"], 0, LOCAL))


def _block_decode_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    batch, heads = _Batch(shape, workspace), shape["kv_heads"]
    query, cache = workspace.take(batch.tokens, heads, WIDTH), workspace.take(batch.blocks, BLOCK, WIDTH)
    choose = vllm(f"{OPS}.index_topk").minimax_m3_index_decode
    operands = (query, cache, batch.table, batch.lengths, batch.keys)
    return SimpleLaunch("vllm", partial(choose, *operands, shape["topk"], 0, LOCAL, heads, 1, 1), (query,))


def _block_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    attend, batch = vllm(f"{OPS}.sparse_attn"), _Batch(shape, workspace)
    kv_heads, scale = shape["kv_heads"], WIDTH**-0.5
    query = workspace.take(batch.tokens, shape["heads"], WIDTH)
    cache = workspace.take(batch.blocks, 2, BLOCK, kv_heads, WIDTH, dtype=shape["kv_dtype"])
    operands = (query, cache, batch.chosen(shape, workspace), batch.table)
    out = torch.empty_like(query)
    if batch.queries == 1:
        decode = attend.minimax_m3_sparse_attn_decode
        return SimpleLaunch("vllm", partial(decode, *operands, batch.lengths, kv_heads, scale, out, 1), (query,))
    lengths = (batch.starts, batch.lengths, batch.prefixes, batch.queries)
    launch = partial(attend.minimax_m3_sparse_attn, *operands, *lengths, kv_heads, scale, out)
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
LONGEST_MODEL = 163_840  # scores of sequences that decode lie in rows of this length, whatever is in them
SCALE = 0.0417


class _RowsLaunch(SimpleLaunch):
    def touch(self) -> None:
        """Write what is read of them, and nothing between."""
        for rows in self.inputs:
            rows.mul_(1.0)


def build_sparse(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    return {**_BUILDERS, **BLOCK_SPARSE}[shape["op"]](shape, workspace)


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
    tokens, keys = shape["batch"] * shape["q_len"], shape["batch"] * (shape["prefix"] + shape["q_len"])
    query = workspace.take(tokens, shape["heads"], INDEX_DIM, dtype="fp8")
    key, scale = workspace.take(keys, INDEX_DIM, dtype="fp8"), workspace.take(keys, dtype="fp32")
    weights = workspace.take(tokens, shape["heads"], dtype="fp32")
    ends = (integers(each, workspace.device) for each in _ends(shape))
    score = vllm("utils.deep_gemm").fp8_fp4_mqa_logits
    launch = partial(score, (query, None), (key, scale), weights, *ends, clean_logits=False)
    return SimpleLaunch("vllm", launch, (query, key, scale, weights))


def _paged_scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    gemm = vllm("utils.deep_gemm")
    batch, heads = shape["batch"], shape["heads"]
    query = workspace.take(batch, 1, heads, INDEX_DIM, dtype="fp8")
    weights = workspace.take(batch, heads, dtype="fp32")
    lengths = integers(np.full((batch, 1), shape["prefix"] + 1), workspace.device)
    table, blocks = _pages(shape, workspace)
    cache = _bytes(workspace, blocks, PAGE, INDEX_BYTES).unsqueeze(-2)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    operands = ((query, None), cache, weights, lengths, table, gemm.get_paged_mqa_logits_metadata(lengths, PAGE, sms))
    launch = partial(gemm.fp8_fp4_paged_mqa_logits, *operands, max_model_len=LONGEST_MODEL, clean_logits=False)
    return SimpleLaunch("vllm", launch, (query, weights))


def _choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    starts, ends = _ends(shape)
    rows, columns, topk = len(starts), int(ends[-1]), shape["topk"]
    logits = workspace.take(rows, columns, dtype="fp32")
    first, last = integers(starts, workspace.device), integers(ends, workspace.device)
    places = torch.empty(rows, topk, dtype=torch.int32, device=workspace.device)
    choose, strides = vllm("_custom_ops").top_k_per_row_prefill, (logits.stride(0), logits.stride(1))
    return SimpleLaunch("vllm", partial(choose, logits, first, last, places, rows, *strides, topk), (logits,))


def _decode_choice(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """The best scores of sequences that decode: a row of the longest length each, of which a part is taken."""
    vllm("_custom_ops")  # registers the kernels
    batch, keys, topk = shape["batch"], shape["prefix"] + 1, shape["topk"]
    logits = workspace.take(batch, LONGEST_MODEL, dtype="fp32")
    lengths = integers(np.full((batch, 1), keys), workspace.device)
    places = torch.empty(batch, topk, dtype=torch.int32, device=workspace.device)
    topk_workspace = 1 << 20
    operands = (logits, lengths, places, torch.zeros(topk_workspace, dtype=torch.uint8, device=workspace.device), topk)
    launch = partial(torch.ops._C.persistent_topk, *operands, LONGEST_MODEL)
    cooperative_rows = 32  # up to this many rows, several thread blocks search one together
    if batch <= cooperative_rows:
        launch = partial(torch.ops._C.cooperative_topk, *operands, keys)
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
    attend = vllm("vllm_flash_attn.flash_attn_interface").flash_attn_varlen_func
    places, counts = _chosen(shape, workspace)
    tokens, (_, blocks) = len(places), _pages(shape, workspace)
    cache = workspace.take(blocks, PAGE, LATENT)
    key = cache[:, :, VALUE:].view(-1, 1, 1, LATENT - VALUE)
    value = cache[:, :, :VALUE].view(-1, 1, 1, VALUE)
    absorbed = workspace.take(tokens, shape["heads"], VALUE)
    rotated = workspace.take(tokens, shape["heads"], LATENT - VALUE)

    def launch() -> None:
        starts = torch.arange(0, tokens + 1, dtype=torch.int32, device=workspace.device)
        attend(
            q=rotated, k=key, v=value, q_v=absorbed, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=shape["topk"],
            seqused_k=counts, block_table=places, softmax_scale=SCALE, causal=True, fa_version=3,
        )  # fmt: skip

    return SimpleLaunch("vllm", launch, (absorbed, rotated))


def _widened_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashMLA over a bf16 copy of the cache, as prompts of many heads run over a packed one."""
    attend = vllm("v1.attention.ops.flashmla").flash_mla_sparse_fwd
    places, counts = _chosen(shape, workspace)
    _, blocks = _pages(shape, workspace)
    query, copy = workspace.take(len(places), shape["heads"], LATENT), workspace.take(blocks * PAGE, 1, LATENT)
    launch = partial(attend, query, copy, places.unsqueeze(1), SCALE, topk_length=counts)
    return SimpleLaunch("vllm", launch, (query, copy))


def _packed_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashMLA over a packed cache: sequences that decode, or prompts of few heads as one long sequence."""
    flashmla = vllm("v1.attention.ops.flashmla")
    places, _ = _chosen(shape, workspace)
    _, blocks = _pages(shape, workspace)
    decodes = shape["q_len"] == 1
    sizes = (len(places), 1) if decodes else (1, len(places))
    query = workspace.take(*sizes, shape["heads"], LATENT)
    # A packed entry holds scales that are no numbers if drawn at random, which is as fast.
    cache = _bytes(workspace, blocks, PAGE, PACKED).unsqueeze(-2)
    table = torch.zeros(sizes[0], 1, dtype=torch.int32, device=workspace.device)
    lengths = torch.full((sizes[0],), LONGEST_MODEL, dtype=torch.int32, device=workspace.device)
    launch = partial(
        flashmla.flash_mla_with_kvcache, q=query, k_cache=cache, block_table=table, head_dim_v=VALUE,
        cache_seqlens=lengths, tile_scheduler_metadata=flashmla.get_mla_metadata()[0], is_fp8_kvcache=True,
        indices=places.view(*sizes, -1), softmax_scale=SCALE,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, (query,))


_BUILDERS: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "index_scores": _scores, "index_scores_decode": _paged_scores, "top_k": _choice, "top_k_decode": _decode_choice,
    "mla": _attention, "mla_widened": _widened_attention, "mla_packed": _packed_attention,
}  # fmt: skip
