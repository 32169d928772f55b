"""Families of sparse attention: DeepSeek-V3.2 and GLM-5, DeepSeek-V4, MiniMax-M3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.errors import FileFormatError
from infercast.models.families.attention import latent_sizes
from infercast.models.families.fields import Fields, Layer, expert_networks, grouped_attention, usual_experts
from infercast.models.feed_forward import DenseFeedForward
from infercast.models.mixers.sparse import (
    BlockSparseAttention,
    CompressedAttention,
    Compressor,
    Indexer,
    SparseLatentAttention,
)


def read_indexed(fields: Fields) -> list[Layer]:
    """DeepSeek-V3.2 and GLM-5: latent attention with an indexer, which layers of GLM-5.2 share."""
    sizes, topk = latent_sizes(fields), fields.positive("index_topk")
    indexer = Indexer(
        heads=fields.positive("index_n_heads"), head_dim=fields.positive("index_head_dim"), rope_dim=sizes["rope_dim"],
        query_rank=fields.positive("q_lora_rank"), topk=topk,
    )  # fmt: skip
    full = SparseLatentAttention(**sizes, topk=topk, indexer=indexer)
    shared = SparseLatentAttention(**sizes, topk=topk)
    pairs = zip(_has_indexer(fields), expert_networks(fields), strict=True)
    return [Layer(full if own else shared, network) for own, network in pairs]


def indexed_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layer of a head that predicts further tokens: it has an indexer, whatever the last layer of the model has."""
    return (layers[-1]._replace(mixer=layers[0].mixer),)


def _has_indexer(fields: Fields) -> list[bool]:
    """Whether each layer has an indexer: by letters, interval or kinds (vLLM 0.25, ``models/deepseek_v2.py``)."""
    layers = range(fields.layers)
    pattern = fields.word("index_topk_pattern")
    if pattern:
        # Layers beyond the pattern have an indexer of their own.
        own = [index >= len(pattern) or pattern[index] != "S" for index in layers]
    elif fields.raw("index_topk_freq") is None and fields.raw("indexer_types") is not None:
        own = [name != "shared" for name in fields.a_layer("indexer_types", fields.words("indexer_types"))]
    else:
        every, offset = fields.positive("index_topk_freq", default=1), fields.count("index_skip_topk_offset", default=2)
        own = [max(index - offset + 1, 0) % every == 0 for index in layers]
    if not own[0]:
        raise FileFormatError(fields.where, "the first layer has no indexer, and none before it to share")
    return own


def read_compressed(fields: Fields) -> list[Layer]:
    """Layers compress 0 tokens (the window alone), 4 or 128; the first choose experts by a table of the vocabulary."""
    ratios = fields.numbers("compress_ratios") or [0] * fields.layers
    kinds = {ratio: _attention(fields, ratio) for ratio in set(fields.a_layer("compress_ratios", ratios))}
    experts, streams = usual_experts(fields), fields.positive("hc_mult", default=1)
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
    quantised_group = 64  # Values in fp8 that share a scale of one byte; there is room for one scale more
    entry = quantised + 2 * rope_dim + quantised // quantised_group + 1
    indexed = 4  # Layers that compress this many tokens to an entry have an indexer; others look at all entries
    return CompressedAttention(
        **fields.sizes(heads="num_attention_heads", q_lora_rank="q_lora_rank", o_lora_rank="o_lora_rank"),
        **fields.sizes(o_groups="o_groups", window="sliding_window"),
        head_dim=head_dim,
        rope_dim=rope_dim,
        entry_bytes=entry,
        compressor=Compressor(ratio, head_dim, entry) if ratio > 1 else None,
        indexer=_indexer(fields, ratio) if ratio == indexed else None,
    )


def _indexer(fields: Fields, ratio: int) -> Indexer:
    head_dim = fields.positive("index_head_dim")
    index_scale_bytes = 4
    return Indexer(
        **fields.sizes(heads="index_n_heads", rope_dim="qk_rope_head_dim", query_rank="q_lora_rank", topk="index_topk"),
        head_dim=head_dim,
        compressor=Compressor(ratio, head_dim, head_dim + index_scale_bytes),
    )


def read_minimax_m3(fields: Fields) -> list[Layer]:
    """Which layers have experts and which choose blocks are two lists; by default the first three have neither."""
    plain = grouped_attention(fields, qk_norm=fields.flag("use_qk_norm", True))
    settings = fields.section("sparse_attention_config")
    shared_sizes = ("heads", "kv_heads", "head_dim", "value_dim", "rotary_dim", "qk_norm")
    sparse = BlockSparseAttention(
        **{name: getattr(plain, name) for name in shared_sizes},
        index_heads=settings.positive("sparse_num_index_heads", default=plain.kv_heads),
        index_dim=settings.positive("sparse_index_dim", default=plain.head_dim),
        blocks=settings.positive("sparse_topk_blocks", default=16),
        block=settings.positive("sparse_block_size", default=128),
    )
    experts = usual_experts(fields, router_bias="use_routing_bias")
    dense = DenseFeedForward(fields.positive("dense_intermediate_size"))
    dense_layers = 3
    usual = [int(index >= dense_layers) for index in range(fields.layers)]
    chooses = fields.a_layer("sparse_attention_freq", settings.numbers("sparse_attention_freq") or usual)
    is_routed = fields.a_layer("moe_layer_freq", fields.numbers("moe_layer_freq") or usual)
    halves = zip(chooses, is_routed, strict=True)
    return [Layer(sparse if blocks else plain, experts if routed else dense) for blocks, routed in halves]
