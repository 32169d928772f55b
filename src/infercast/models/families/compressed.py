"""DeepSeek-V4: compressed attention of three kinds, hyper-connections, and first layers that route by a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.models.families.experts import deepseek_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer
from infercast.models.mixers import CompressedAttention, Compressor, Indexer

INDEXED = 4
"""Layers that compress so many tokens to an entry have an indexer; others look at all entries."""
QUANTISED_GROUP = 64
"""Values in fp8 that share a scale of one byte; there is room for one scale more."""
INDEX_SCALE_BYTES = 4


def read_compressed(fields: Fields) -> list[Layer]:
    """``compress_ratios`` says what each layer compresses: 0 tokens (its window alone), 4 or 128.

    The first layers choose experts by a table of the vocabulary instead of the router's bias; their router runs all the
    same, for the weights of the chosen.
    """
    ratios = fields.numbers("compress_ratios") or [0] * fields.layers
    kinds = {ratio: _attention(fields, ratio) for ratio in set(fields.a_layer("compress_ratios", ratios))}
    experts, streams = deepseek_experts(fields), fields.positive("hc_mult", default=1)
    by_table = replace(experts, router_bias=False)
    first = fields.count("num_hash_layers")
    return [
        Layer(kinds[ratios[index]], by_table if index < first else experts, streams=streams)
        for index in range(fields.layers)
    ]


def windowed_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layer of a head that predicts further tokens compresses nothing."""
    return (layers[-1]._replace(mixer=_attention(fields, 0)),)


def _attention(fields: Fields, ratio: int) -> CompressedAttention:
    head_dim, rope_dim = fields.positive("head_dim"), fields.positive("qk_rope_head_dim")
    # fp8 and scales, and the rotated part in bf16.
    quantised = head_dim - rope_dim
    entry = quantised + 2 * rope_dim + quantised // QUANTISED_GROUP + 1
    return CompressedAttention(
        heads=fields.positive("num_attention_heads"),
        head_dim=head_dim,
        rope_dim=rope_dim,
        q_lora_rank=fields.positive("q_lora_rank"),
        o_lora_rank=fields.positive("o_lora_rank"),
        o_groups=fields.positive("o_groups"),
        window=fields.positive("sliding_window"),
        entry_bytes=entry,
        compressor=Compressor(ratio, head_dim, entry) if ratio > 1 else None,
        indexer=_indexer(fields, ratio) if ratio == INDEXED else None,
    )


def _indexer(fields: Fields, ratio: int) -> Indexer:
    head_dim = fields.positive("index_head_dim")
    return Indexer(
        heads=fields.positive("index_n_heads"),
        head_dim=head_dim,
        rope_dim=fields.positive("qk_rope_head_dim"),
        query_rank=fields.positive("q_lora_rank"),
        topk=fields.positive("index_topk"),
        compressor=Compressor(ratio, head_dim, head_dim + INDEX_SCALE_BYTES),
    )
