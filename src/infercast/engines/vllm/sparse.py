"""Sparse attention in vLLM: which GPUs it has kernels for, which it takes, and what they need in memory.

Facts of vLLM 0.25 (``platforms/cuda.py``, ``v1/attention/backends/mla``): on Hopper FlashAttention reads a bf16 cache,
and FlashMLA an fp8 one in a format of its own, for 64 or 128 heads. Blackwell in datacentres has FlashInfer for fp8
and for few heads and FlashMLA, for 128 heads, otherwise. The kernels of other Blackwell chips read FlashMLA's format
alone. Older chips have none, and no DeepGEMM, which computes the scores of an indexer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from infercast.engines.vllm.block_size import DATACENTER_BLACKWELL, INDEXED
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import SparseLatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import PACKED_LATENT, bytes_of
from infercast.units import MIB

WITHOUT_KERNELS = ("pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada")
OWN_FORMAT = ("blackwell-rtx",)
HOPPER_HEADS, BLACKWELL_HEADS, FEW_HEADS = 64, 128, 16

GATHERED_SEQUENCES, WIDENED_SEQUENCES = 40, 5
"""Longest sequences that there is room for to gather index keys, and to widen a packed cache."""
SCORES_BYTES = 512 * MIB
"""Room for the scores of a chunk of prompts."""
EXPANDED_SEQUENCES, EXPANDED_TOKENS = 8, 64 * 1024
"""Latents that the engine makes room for to expand them, though sparse attention expands none."""


def choose_sparse_kernels(model: ModelConfig, gpu: Gpu) -> ModelConfig:
    """The model with the cache format and the padding of the kernels that this GPU runs for sparse attention."""
    if not any(isinstance(stack.mixer, SparseLatentAttention) for stack in model.stacks):
        return model
    if gpu.architecture in WITHOUT_KERNELS:
        raise InputError(
            f"vLLM does not run {model.name} on {gpu.name}: it has kernels for sparse attention on Hopper and "
            "Blackwell alone (such as h200-sxm, b200-sxm or rtx-pro-6000)"
        )
    narrow = model.cache_dtype != model.weights.base
    is_hopper = gpu.architecture == "hopper"
    multiple, unpadded = (HOPPER_HEADS, 0) if is_hopper and narrow else (1, 0)
    if gpu.architecture in DATACENTER_BLACKWELL and not narrow:
        multiple, unpadded = BLACKWELL_HEADS, FEW_HEADS
    # FlashAttention alone takes the two parts of a query as they are.
    joins = narrow or not is_hopper
    stacks = (
        replace(
            stack,
            mixer=replace(stack.mixer, head_multiple=multiple, unpadded_heads=unpadded, joins_queries=joins),
        )
        if isinstance(stack.mixer, SparseLatentAttention)
        else stack
        for stack in model.stacks
    )
    packed = gpu.architecture in OWN_FORMAT or (narrow and is_hopper)
    return replace(model, stacks=tuple(stacks), kv_dtype=PACKED_LATENT if packed else model.kv_dtype)


class SparseMemory(NamedTuple):
    """What sparse attention takes of one GPU, in bytes."""

    kept: float
    """The places that were chosen, and buffers that all layers share with their experts."""
    beside: float
    """What is alive in a layer's attention at the start, when the engine tries out its largest step."""


def sparse_memory(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> SparseMemory | None:
    """Facts of vLLM 0.25 (``layers/sparse_attn_indexer.py``, ``backends/mla/indexer.py``); None without any."""
    mixers = [stack.mixer for stack in config.stacks if isinstance(stack.mixer, SparseLatentAttention)]
    indexers = [mixer.indexer for mixer in mixers if mixer.indexer]
    if not indexers:
        return None
    mixer, indexer = mixers[0], indexers[0]
    value, heads, longest = bytes_of(config.weights.base), layout.share(mixer.heads), settings.max_model_len
    gathered = GATHERED_SEQUENCES * longest * indexer.entry_bytes
    joined = settings.max_num_batched_tokens * heads * mixer.latent_dim * value if mixer.joins_queries else 0.0
    if config.cache_dtype == PACKED_LATENT:
        joined += WIDENED_SEQUENCES * longest * mixer.latent_dim * value
    pages = settings.max_num_seqs * INDEXED
    expanded = max(min(max(EXPANDED_SEQUENCES * longest, 4 * pages), EXPANDED_TOKENS), pages)
    return SparseMemory(
        kept=max(gathered, joined) + 4.0 * settings.max_num_batched_tokens * mixer.topk,
        beside=max(expanded * heads * mixer.expanded_dim * value, SCORES_BYTES),
    )
