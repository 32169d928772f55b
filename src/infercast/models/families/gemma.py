"""Google's Gemma 1 to 4: windows in a pattern, and from Gemma 2 on a norm before and after each half."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import UnsupportedModelError
from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import (
    Layer,
    by_window,
    checked_kv_heads,
    dense_feed_forward,
    grouped_attention,
    listed_windows,
    rotary_dim,
    windows,
)
from infercast.models.feed_forward import FeedForward
from infercast.models.mixers import GroupedAttention

# Gemma 3's config.json leaves out what equals the library's defaults (transformers, Gemma3TextConfig).
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def read_gemma(fields: Fields) -> list[Layer]:
    """Gemma 1."""
    bias = fields.flag("attention_bias")
    attention = grouped_attention(fields, qkv_bias=bias, output_bias=bias)
    return [Layer(attention, dense_feed_forward(fields))] * fields.layers


def read_gemma2(fields: Fields) -> list[Layer]:
    """Gemma 2: every other layer is windowed, the first one is."""
    pattern = [index % 2 == 0 for index in range(fields.layers)]
    feed_forward = dense_feed_forward(fields)
    attentions = by_window(windows(fields, pattern), lambda window: grouped_attention(fields, window=window))
    return [Layer(attention, feed_forward, norms=4) for attention in attentions]


def read_gemma3(fields: Fields) -> list[Layer]:
    """Gemma 3: five windowed layers, then one that sees everything; norms on queries and keys."""
    period = fields.positive("sliding_window_pattern", "_sliding_window_pattern", default=6)
    pattern = [(index + 1) % period != 0 for index in range(fields.layers)]
    feed_forward = dense_feed_forward(fields)
    attentions = by_window(
        windows(fields, pattern), lambda window: grouped_attention(fields, window=window, qk_norm=True)
    )
    return [Layer(attention, feed_forward, norms=4) for attention in attentions]


def read_gemma4(fields: Fields) -> list[Layer]:
    """Gemma 4: layers that see everything have wider and fewer heads; experts may run beside the dense half."""
    if fields.count("hidden_size_per_layer_input"):
        raise UnsupportedModelError(f"{fields.where}: per-layer embeddings (Gemma 4 E2B, E4B) are not modelled yet")
    if fields.count("num_kv_shared_layers"):
        raise UnsupportedModelError(f"{fields.where}: layers that share a KV cache are not modelled yet")
    windowed = listed_windows(fields) or [(index + 1) % 6 != 0 for index in range(fields.layers)]
    local = grouped_attention(fields, window=fields.positive("sliding_window"), qk_norm=True)
    everywhere = _global_attention(fields, local)
    feed_forward = _feed_forward(fields)
    # Beside its experts a layer norms the input and output of either feed-forward once more.
    norms = 7 if feed_forward.num_experts else 4
    return [Layer(local if here else everywhere, feed_forward, norms=norms) for here in windowed]


def _global_attention(fields: Fields, local: GroupedAttention) -> GroupedAttention:
    head_dim = fields.positive("global_head_dim", default=local.head_dim)
    shared = fields.flag("attention_k_eq_v")
    # Only layers whose keys serve as values have a head count of their own.
    key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    rope = fields.section("rope_parameters").section("full_attention")
    return replace(
        local,
        kv_heads=checked_kv_heads(fields, key, local.heads) if fields.raw(key) is not None else local.kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        rotary_dim=rotary_dim(rope, head_dim),
        window=0,
        shared_key_value=shared,
    )


def _feed_forward(fields: Fields) -> FeedForward:
    if not fields.flag("enable_moe_block"):
        return dense_feed_forward(fields)
    return routed_experts(
        fields,
        fields.positive("num_experts"),
        fields.positive("moe_intermediate_size", "expert_intermediate_size"),
        dense_inter=fields.positive("intermediate_size"),
    )
