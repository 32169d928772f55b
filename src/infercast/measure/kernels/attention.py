"""Attention as an engine launches it: FlashAttention over paged keys with vLLM, PyTorch's own without."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infercast.measure.cases import Shape
from infercast.measure.device import need_vllm
from infercast.measure.launch import SimpleLaunch, Workspace
from infercast.ops.op import spread_lengths

BLOCK = 16
OLDER, NEWER, HOPPER = 2, 3, 9
LARGEST_GRAPH = 512
"""Steps of up to so many tokens run in a graph, for which vLLM fixes the most splits of a sequence."""
MOST_SPLITS = 32
LONGEST_MODEL = 16_384
"""What a graph of decoding steps is captured for, unless the batch is longer."""


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
        need_vllm()
        from vllm.vllm_flash_attn import flash_attn_interface as flash  # noqa: PLC0415
    except ImportError:
        return _plain(shape, workspace)
    queries, keys = batch_of(shape)
    if shape["head_dim"] != shape["value_dim"] and not shape["latent"]:
        return _expanded(shape, workspace, queries, keys, flash)
    starts = _integers([0, *np.cumsum(queries)], workspace)
    lengths, table = _integers(keys, workspace), _block_table(keys, workspace)
    tokens, longest = sum(queries), max(keys)
    decoding = max(queries) == 1
    splits = MOST_SPLITS if tokens <= LARGEST_GRAPH else 0
    window = (shape["window"] - 1, 0) if shape["window"] else (-1, -1)
    latent = shape["latent"]
    head_dim = shape["head_dim"] - shape["value_dim"] if latent else shape["head_dim"]
    blocks = int(table.max()) + 1
    narrow = shape["kv_dtype"] == "fp8"
    dtype = "fp8" if narrow else "bf16"
    most_keys = max(longest, LONGEST_MODEL) if decoding else longest
    version = flash_version()
    if version == OLDER and (latent or narrow):
        raise NotImplementedError("FlashAttention 2 has no kernel for latent or fp8 keys")
    scheduled = (
        None
        if version == OLDER
        else flash.get_scheduler_metadata(
            batch_size=len(queries),
            max_seqlen_q=max(queries),
            max_seqlen_k=most_keys,
            num_heads_q=shape["heads"],
            num_heads_kv=shape["kv_heads"],
            headdim=head_dim,
            headdim_v=shape["value_dim"],
            cache_seqlens=lengths,
            qkv_dtype=torch.float8_e4m3fn if narrow else torch.bfloat16,
            cu_seqlens_q=starts,
            page_size=BLOCK,
            causal=True,
            window_size=window,
            num_splits=splits,
        )
    )
    query = workspace.take(tokens, shape["heads"], head_dim, dtype=dtype)
    if latent:
        cache = workspace.take(blocks, BLOCK, shape["head_dim"])
        value, key = cache[..., : shape["value_dim"]].unsqueeze(-2), cache[..., shape["value_dim"] :].unsqueeze(-2)
        absorbed = workspace.take(tokens, shape["heads"], shape["value_dim"])
    else:
        cache = workspace.take(blocks, 2, BLOCK, shape["kv_heads"], head_dim, dtype=dtype)
        key, value = cache.unbind(1)
        if shape["kv_heads"] == 1:
            key, value = (_with_strides(part) for part in (key, value))
        absorbed = None
    descale = torch.ones((), device=workspace.device).expand(len(queries), shape["kv_heads"]) if narrow else None
    out = workspace.take(tokens, shape["heads"], shape["value_dim"])

    def launch() -> None:
        flash.flash_attn_varlen_func(
            q=query,
            k=key,
            v=value,
            q_v=absorbed,
            max_seqlen_q=max(queries),
            cu_seqlens_q=starts,
            max_seqlen_k=most_keys,
            seqused_k=lengths,
            block_table=table,
            causal=True,
            window_size=list(window),
            out=out,
            scheduler_metadata=scheduled,
            num_splits=0 if version == OLDER else splits,
            fa_version=version,
            q_descale=descale,
            k_descale=descale,
            v_descale=descale,
        )

    # Keys and values of new tokens were written just before; a cached prefix and decoding sequences are cold.
    fresh = (cache,) if not decoding and shape.get("prefix", 0) == 0 and not shape.get("decodes") else ()
    return SimpleLaunch("vllm", launch, (query, *fresh))


def _expanded(shape: Shape, workspace: Workspace, queries: list[int], keys: list[int], flash: Any) -> SimpleLaunch:
    """Prompts of latent attention: keys and values are expanded to full heads, without pages."""
    starts, ends = (_integers([0, *np.cumsum(sizes)], workspace) for sizes in (queries, keys))
    query = workspace.take(sum(queries), shape["heads"], shape["head_dim"])
    key = workspace.take(sum(keys), shape["heads"], shape["head_dim"])
    value = workspace.take(sum(keys), shape["heads"], shape["value_dim"])
    version = flash_version()
    if version == OLDER:
        raise NotImplementedError("FlashAttention 2 has no kernel for values narrower than keys")

    def launch() -> None:
        flash.flash_attn_varlen_func(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=starts,
            cu_seqlens_k=ends,
            max_seqlen_q=max(queries),
            max_seqlen_k=max(keys),
            causal=True,
            fa_version=version,
        )

    return SimpleLaunch("vllm", launch, (query, key, value))


def flash_version() -> int:
    """Version 3 of FlashAttention is for Hopper; other chips run version 2."""
    major, _ = torch.cuda.get_device_capability()
    return NEWER if major == HOPPER else OLDER


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


def _integers(values: Any, workspace: Workspace) -> Any:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=workspace.device)


def _block_table(keys: list[int], workspace: Workspace) -> Any:
    """Blocks of each sequence, one sequence after the other, as an engine hands them out to prompts."""
    counts = [-(-length // BLOCK) for length in keys]
    table = np.zeros((len(keys), max(counts)), dtype=np.int32)
    start = 0
    for row, count in zip(table, counts, strict=True):
        row[:count] = np.arange(start, start + count)
        start += count
    return torch.tensor(table, device=workspace.device)


def _with_strides(cache: Any) -> Any:
    """A single head's stride as hardware copies want it: a multiple of its width."""
    blocks, size, _, width = cache.shape
    return cache.as_strided((blocks, size, 1, width), (cache.stride(0), cache.stride(1), width, 1))
