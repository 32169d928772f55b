"""What sparse attention takes in memory beside weights and blocks.

Facts of vLLM 0.25 (``layers/sparse_attn_indexer.py``, ``backends/mla/indexer.py``, ``flashmla_sparse.py``,
``layers/attention/mla_attention.py``, ``models/deepseek_v4/nvidia/flashmla.py``): buffers for the longest sequences are
reserved at the start, in a workspace that all layers share with their experts, and the first step tries out the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.vllm.block_size import INDEXED
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import CompressedAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import PACKED_LATENT, bytes_of
from infercast.units import MIB

GATHERED_SEQUENCES, WIDENED_SEQUENCES, WIDENED_PROMPTS = 40, 5, 4
"""Longest sequences that there is room for to gather index keys, and to widen a packed cache, compressed or not."""
SCORES_BYTES = 512 * MIB
"""Room for the scores of a chunk of prompts."""
EXPANDED_SEQUENCES, EXPANDED_TOKENS = 8, 64 * 1024
"""Latents that there is room for to expand them, though sparse attention expands none."""


class SparseMemory(NamedTuple):
    """What sparse attention takes of one GPU, in bytes."""

    kept: float
    """The places that were chosen, and the workspace."""
    beside: float
    """What is alive in a layer's attention when the engine tries out its largest step."""


def sparse_memory(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> SparseMemory | None:
    """What it takes under these settings; None without sparse attention."""
    mixers = [stack.mixer for stack in config.stacks]
    sparse = [mixer for mixer in mixers if isinstance(mixer, SparseLatentAttention | CompressedAttention)]
    indexers = [mixer.indexer for mixer in sparse if mixer.indexer]
    if not indexers:
        return None
    longest, tokens = settings.max_model_len, settings.max_num_batched_tokens
    shard = config.shard(layout)
    gathered = GATHERED_SEQUENCES * longest * indexers[0].caches()[0].bytes_per_token
    value, beside, copied = bytes_of(config.weights.base), float(SCORES_BYTES), 0.0
    for mixer in sparse:
        if isinstance(mixer, CompressedAttention):
            entries = -(-longest // mixer.compressor.tokens) if mixer.compressor else 0
            room = WIDENED_PROMPTS * (entries + mixer.window + tokens) * mixer.head_dim * value
        else:
            heads = shard.layout.share(mixer.heads)
            room = tokens * heads * mixer.latent_dim * value if mixer.joins_queries else 0.0
            if config.cache_dtype == PACKED_LATENT:
                room += WIDENED_SEQUENCES * longest * mixer.latent_dim * value
            beside = max(beside, _expanded_tokens(settings) * heads * mixer.expanded_dim * value)
        copied = max(copied, room)
    return SparseMemory(max(gathered, copied) + 4.0 * tokens * indexers[0].topk, beside)


def _expanded_tokens(settings: ResolvedSettings) -> int:
    pages = settings.max_num_seqs * INDEXED
    return max(min(max(EXPANDED_SEQUENCES * settings.max_model_len, 4 * pages), EXPANDED_TOKENS), pages)
