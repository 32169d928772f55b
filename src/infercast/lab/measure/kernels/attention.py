"""Attention as an engine launches it: FlashAttention over paged keys with vLLM, PyTorch's own without."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from infercast.lab.measure.cases import Shape
from infercast.lab.measure.device import vllm
from infercast.lab.measure.launch import SimpleLaunch, Workspace, integers, starts_of
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
    most_splits = 32
    longest_model = 16_384  # what a graph of decoding steps is captured for, unless the batch is longer
    same = {
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(*keys, longest_model) if decoding else max(keys),
        "cu_seqlens_q": starts,
        "causal": True,
        "num_splits": most_splits if tokens <= LARGEST_GRAPH and version != OLDER else 0,
    }
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
        flash.flash_attn_varlen_func,
        q=query,
        k=key,
        v=value,
        q_v=workspace.take(tokens, heads, shape["value_dim"]) if latent else None,
        seqused_k=lengths,
        block_table=table,
        window_size=list(window),
        out=workspace.take(tokens, heads, shape["value_dim"]),
        scheduler_metadata=scheduled,
        fa_version=version,
        **same,
        **dict.fromkeys(("q_descale", "k_descale", "v_descale"), descale),
    )
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
