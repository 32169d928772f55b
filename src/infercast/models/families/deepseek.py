"""Families with multi-head latent attention: DeepSeek-V2, V3, R1 and V3.1, Kimi-K2 and K2.5, GLM-4.7-Flash."""

from __future__ import annotations

from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer, dense_feed_forward
from infercast.models.mixers import LatentAttention


def read_deepseek(fields: Fields) -> list[Layer]:
    """The first layers dense, then experts in every ``moe_layer_freq``-th layer."""
    attention = latent_attention(fields)
    dense = Layer(attention, dense_feed_forward(fields))
    if not fields.count("n_routed_experts"):
        return [dense] * fields.layers
    inter = fields.positive("moe_intermediate_size")
    feed_forward = routed_experts(
        fields,
        fields.positive("n_routed_experts"),
        inter,
        shared_inter=inter * fields.count("n_shared_experts"),
        # The bias that balances the experts without an auxiliary loss (DeepSeek-V3 report, 2.1.2).
        router_bias=fields.word("topk_method") == "noaux_tc",
    )
    sparse = Layer(attention, feed_forward)
    first = fields.count("first_k_dense_replace")
    frequency = fields.positive("moe_layer_freq", default=1)
    return [sparse if index >= first and index % frequency == 0 else dense for index in range(fields.layers)]


def latent_attention(fields: Fields) -> LatentAttention:
    """Attention over one compressed vector a token."""
    return LatentAttention(
        heads=fields.positive("num_attention_heads"),
        kv_lora_rank=fields.positive("kv_lora_rank"),
        q_lora_rank=fields.count("q_lora_rank"),
        nope_dim=fields.positive("qk_nope_head_dim"),
        rope_dim=fields.positive("qk_rope_head_dim"),
        value_dim=fields.positive("v_head_dim"),
    )
