"""Attention as an engine launches it: FlashAttention over paged keys, PyTorch's own, and vLLM's sparse kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from infercast.lab.measure.device import vllm
from infercast.lab.measure.launch import SimpleLaunch, Workspace, integers, starts_of
from infercast.lab.measure.rows import Shape
from infercast.ops.op import spread_lengths

BLOCK = 16
OLDER, NEWER, HOPPER = 2, 3, 9
LARGEST_GRAPH = 512  # steps of up to this many tokens run in a graph, for which vLLM limits the splits of a sequence


def batch_of(shape: Shape) -> tuple[list[int], list[int]]:
    """(new tokens, tokens in all) of each sequence."""
    queries: list[int] = []
    keys: list[int] = []
    if "q_len" in shape:
        queries += [shape["q_len"]] * shape["batch"]
        keys += [shape["prefix"] + shape["q_len"]] * shape["batch"]
    decodes = shape.get("decodes", 0 if "q_len" in shape else shape["batch"])
    if decodes:
        queries += [1] * decodes
        keys += [int(length) + 1 for length in spread_lengths(decodes, shape["kv_len"], shape["sigma"])]
    return queries, keys


def build_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    try:
        flash = vllm("vllm_flash_attn.flash_attn_interface")
    except ImportError:
        return _plain(shape, workspace)
    # Version 3 of FlashAttention is for Hopper; other chips run version 2.
    version = NEWER if torch.cuda.get_device_capability()[0] == HOPPER else OLDER
    queries, keys = batch_of(shape)
    build = _expanded if shape["head_dim"] != shape["value_dim"] and not shape["latent"] else _paged
    return build(shape, workspace, queries, keys, flash, version)


def _paged(
    shape: Shape, workspace: Workspace, queries: list[int], keys: list[int], flash: Any, version: int
) -> SimpleLaunch:
    latent, narrow, heads = shape["latent"], shape["kv_dtype"] == "fp8", shape["heads"]
    if version == OLDER and (latent or narrow):
        raise NotImplementedError("FlashAttention 2 has no kernel for latent or fp8 keys")
    tokens, decoding, table = sum(queries), max(queries) == 1, _block_table(keys, workspace)
    lengths, starts = integers(keys, workspace.device), starts_of(queries, workspace.device)
    window = (shape["window"] - 1, 0) if shape["window"] else (-1, -1)
    head_dim = shape["head_dim"] - shape["value_dim"] if latent else shape["head_dim"]
    longest_model = 16_384  # what a graph of decoding steps is captured for, unless the batch is longer
    same = {
        "max_seqlen_q": max(queries), "max_seqlen_k": max(*keys, longest_model) if decoding else max(keys),
        "cu_seqlens_q": starts, "causal": True,
        "num_splits": 32 if tokens <= LARGEST_GRAPH and version != OLDER else 0,
    }  # fmt: skip
    scheduled = None
    if version != OLDER:
        scheduled = flash.get_scheduler_metadata(
            batch_size=len(queries), num_heads_q=heads, num_heads_kv=shape["kv_heads"], headdim=head_dim,
            headdim_v=shape["value_dim"], cache_seqlens=lengths,
            qkv_dtype=torch.float8_e4m3fn if narrow else torch.bfloat16, page_size=BLOCK, window_size=window, **same,
        )  # fmt: skip
    query = workspace.take(tokens, heads, head_dim, dtype="fp8" if narrow else "bf16")
    cache, key, value = _pages(shape, workspace, int(table.max()) + 1)
    descale = torch.ones((), device=workspace.device).expand(len(queries), shape["kv_heads"]) if narrow else None
    launch = partial(
        flash.flash_attn_varlen_func, q=query, k=key, v=value,
        q_v=workspace.take(tokens, heads, shape["value_dim"]) if latent else None, seqused_k=lengths, block_table=table,
        window_size=list(window), out=workspace.take(tokens, heads, shape["value_dim"]), scheduler_metadata=scheduled,
        fa_version=version, **same, **dict.fromkeys(("q_descale", "k_descale", "v_descale"), descale),
    )  # fmt: skip
    # Keys and values of new tokens were written just before; a cached prefix and decoding sequences are cold.
    fresh = (cache,) if not decoding and shape.get("prefix", 0) == 0 and not shape.get("decodes") else ()
    return SimpleLaunch("vllm", launch, (query, *fresh))


def _pages(shape: Shape, workspace: Workspace, blocks: int) -> tuple[Any, Any, Any]:
    """The cache with its keys and values, which of latents are parts of one entry."""
    if shape["latent"]:
        cache = workspace.take(blocks, BLOCK, shape["head_dim"])
        return cache, cache[..., shape["value_dim"] :].unsqueeze(-2), cache[..., : shape["value_dim"]].unsqueeze(-2)
    cache = workspace.take(blocks, 2, BLOCK, shape["kv_heads"], shape["head_dim"], dtype=shape["kv_dtype"])
    key, value = cache.unbind(1)
    if shape["kv_heads"] == 1:
        key, value = (_with_strides(part) for part in (key, value))
    return cache, key, value


def _expanded(
    shape: Shape, workspace: Workspace, queries: list[int], keys: list[int], flash: Any, version: int
) -> SimpleLaunch:
    """Prompts of latent attention: keys and values are expanded to full heads, without pages."""
    if version == OLDER:
        raise NotImplementedError("FlashAttention 2 has no kernel for values narrower than keys")
    query = workspace.take(sum(queries), shape["heads"], shape["head_dim"])
    key = workspace.take(sum(keys), shape["heads"], shape["head_dim"])
    value = workspace.take(sum(keys), shape["heads"], shape["value_dim"])
    launch = partial(
        flash.flash_attn_varlen_func, q=query, k=key, v=value, cu_seqlens_q=starts_of(queries, workspace.device),
        cu_seqlens_k=starts_of(keys, workspace.device), max_seqlen_q=max(queries), max_seqlen_k=max(keys), causal=True,
        fa_version=version,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, (query, key, value))


def _plain(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """PyTorch's attention over a batch of equal lengths, keys in one piece."""
    queries, keys = batch_of(shape)
    if len({*zip(queries, keys, strict=True)}) > 1 or shape["window"] or shape["latent"] or shape["kv_dtype"] != "bf16":
        raise NotImplementedError("PyTorch alone has no kernel for uneven batches, windows, latent or fp8 keys")
    batch, heads, kv_heads = len(queries), shape["heads"], shape["kv_heads"]
    query = workspace.take(batch, heads, queries[0], shape["head_dim"])
    key = workspace.take(batch, kv_heads, keys[0], shape["head_dim"])
    value = workspace.take(batch, kv_heads, keys[0], shape["value_dim"])
    attend = torch.nn.functional.scaled_dot_product_attention
    causal = queries[0] > 1 and queries[0] == keys[0]
    return SimpleLaunch(
        "torch", lambda: attend(query, key, value, is_causal=causal, enable_gqa=heads != kv_heads), (query,)
    )


def _block_table(keys: list[int], workspace: Workspace) -> Any:
    """Blocks of each sequence, one sequence after the other, as an engine hands them out to prompts."""
    counts = [-(-length // BLOCK) for length in keys]
    table = np.zeros((len(keys), max(counts)), dtype=np.int32)
    start = 0
    for row, count in zip(table, counts, strict=True):
        row[:count] = np.arange(start, start + count)
        start += count
    return integers(table, workspace.device)


def _with_strides(cache: Any) -> Any:
    """A single head's stride as hardware copies want it: a multiple of its width."""
    blocks, size, _, width = cache.shape
    return cache.as_strided((blocks, size, 1, width), (cache.stride(0), cache.stride(1), width, 1))


# Block-sparse attention (MiniMax-M3) as vLLM launches it on chips without kernels of their own for it: Triton's.

SPARSE_BLOCK, WIDTH = 128, 128  # tokens of a block, which is a page too, and the width of a head
LOCAL = 1  # blocks before a token that are always chosen
OPS = "models.minimax_m3.common.ops"


class _Batch:
    def __init__(self, shape: Shape, workspace: Workspace) -> None:
        device, batch = workspace.device, shape["batch"]
        self.queries, self.keys = shape["q_len"], shape["prefix"] + shape["q_len"]
        self.tokens, self.most = batch * self.queries, -(-self.keys // SPARSE_BLOCK)
        self.blocks = batch * self.most
        self.table = torch.arange(self.blocks, dtype=torch.int32, device=device).view(batch, self.most)
        self.starts = torch.arange(0, self.tokens + 1, self.queries, dtype=torch.int32, device=device)
        self.lengths = torch.full((batch,), self.keys, dtype=torch.int32, device=device)
        self.prefixes = torch.full((batch,), shape["prefix"], dtype=torch.int32, device=device)

    def chosen(self, shape: Shape, workspace: Workspace) -> Any:
        """Blocks that are drawn for each token and key-value head, -1 where there are fewer."""
        device, topk = workspace.device, shape["topk"]
        position = torch.arange(self.tokens, device=device) % self.queries + shape["prefix"]
        seen = (position // SPARSE_BLOCK + 1).view(1, -1, 1)
        drawn = (torch.rand(shape["kv_heads"], self.tokens, topk, device=device) * seen).int()
        taken = torch.arange(topk, device=device).view(1, 1, -1) < seen
        return torch.where(taken, drawn, torch.full_like(drawn, -1)).contiguous()


def _block_scores(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    batch, heads = _Batch(shape, workspace), shape["kv_heads"]
    query, cache = workspace.take(batch.tokens, heads, WIDTH), workspace.take(batch.blocks, SPARSE_BLOCK, WIDTH)
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
    query, cache = workspace.take(batch.tokens, heads, WIDTH), workspace.take(batch.blocks, SPARSE_BLOCK, WIDTH)
    choose = vllm(f"{OPS}.index_topk").minimax_m3_index_decode
    operands = (query, cache, batch.table, batch.lengths, batch.keys)
    return SimpleLaunch("vllm", partial(choose, *operands, shape["topk"], 0, LOCAL, heads, 1, 1), (query,))


def _block_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    attend, batch = vllm(f"{OPS}.sparse_attn"), _Batch(shape, workspace)
    kv_heads, scale = shape["kv_heads"], WIDTH**-0.5
    query = workspace.take(batch.tokens, shape["heads"], WIDTH)
    cache = workspace.take(batch.blocks, 2, SPARSE_BLOCK, kv_heads, WIDTH, dtype=shape["kv_dtype"])
    operands = (query, cache, batch.chosen(shape, workspace), batch.table)
    out = torch.empty_like(query)
    if batch.queries == 1:
        decode = attend.minimax_m3_sparse_attn_decode
        return SimpleLaunch("vllm", partial(decode, *operands, batch.lengths, kv_heads, scale, out, 1), (query,))
    lengths = (batch.starts, batch.lengths, batch.prefixes, batch.queries)
    launch = partial(attend.minimax_m3_sparse_attn, *operands, *lengths, kv_heads, scale, out)
    return SimpleLaunch("vllm", launch, (query,))


BLOCK_SPARSE: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "msa_scores": _block_scores, "msa_choice": _block_choice, "msa_decode_choice": _block_decode_choice,
    "msa": _block_attention,
}  # fmt: skip


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


def _latent_pages(shape: Shape, workspace: Workspace) -> tuple[Any, int]:
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
    table, blocks = _latent_pages(shape, workspace)
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
    tokens, (_, blocks) = len(places), _latent_pages(shape, workspace)
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
    _, blocks = _latent_pages(shape, workspace)
    query, copy = workspace.take(len(places), shape["heads"], LATENT), workspace.take(blocks * PAGE, 1, LATENT)
    launch = partial(attend, query, copy, places.unsqueeze(1), SCALE, topk_length=counts)
    return SimpleLaunch("vllm", launch, (query, copy))


def _packed_attention(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """FlashMLA over a packed cache: sequences that decode, or prompts of few heads as one long sequence."""
    flashmla = vllm("v1.attention.ops.flashmla")
    places, _ = _chosen(shape, workspace)
    _, blocks = _latent_pages(shape, workspace)
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
