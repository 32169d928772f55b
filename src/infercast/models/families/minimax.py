"""MiniMax-M3: grouped attention over blocks that index heads choose, experts after a few dense layers."""

from __future__ import annotations

from typing import Any

from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer, grouped_attention
from infercast.models.feed_forward import DenseFeedForward
from infercast.models.mixers import BlockSparseAttention

DENSE_LAYERS = 3

# What a published file leaves out where it equals vLLM's defaults (``transformers_utils/configs/minimax_m3.py``).
DEFAULTS: dict[str, Any] = {
    "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "rotary_dim": 64,
    "max_position_embeddings": 524288, "num_local_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "use_routing_bias": True,
}  # fmt: skip


def read_minimax_m3(fields: Fields) -> list[Layer]:
    """Which layers have experts and which choose blocks are two lists; by default the first three have neither."""
    plain = grouped_attention(fields, qk_norm=fields.flag("use_qk_norm", True))
    settings = fields.section("sparse_attention_config")
    sparse = BlockSparseAttention(
        heads=plain.heads,
        kv_heads=plain.kv_heads,
        head_dim=plain.head_dim,
        value_dim=plain.value_dim,
        rotary_dim=plain.rotary_dim,
        qk_norm=plain.qk_norm,
        index_heads=settings.positive("sparse_num_index_heads", default=plain.kv_heads),
        index_dim=settings.positive("sparse_index_dim", default=plain.head_dim),
        blocks=settings.positive("sparse_topk_blocks", default=16),
        block=settings.positive("sparse_block_size", default=128),
    )
    inter = fields.positive("intermediate_size")
    shared = inter * fields.count("n_shared_experts")
    experts = routed_experts(
        fields, "num_local_experts", "intermediate_size", shared_inter=shared, router_bias="use_routing_bias"
    )
    dense = DenseFeedForward(fields.positive("dense_intermediate_size"))
    usual = [int(index >= DENSE_LAYERS) for index in range(fields.layers)]
    chooses = fields.a_layer("sparse_attention_freq", settings.numbers("sparse_attention_freq") or usual)
    is_routed = fields.a_layer("moe_layer_freq", fields.numbers("moe_layer_freq") or usual)
    return [
        Layer(sparse if blocks else plain, experts if routed else dense)
        for blocks, routed in zip(chooses, is_routed, strict=True)
    ]
