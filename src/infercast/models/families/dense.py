"""Families whose every layer is grouped attention and one gated feed-forward."""

from __future__ import annotations

from infercast.models.families.fields import Fields
from infercast.models.families.layers import (
    Layer,
    by_window,
    dense_feed_forward,
    grouped_attention,
    windows,
)
from infercast.models.mixers import GroupedAttention


def read_llama(fields: Fields) -> list[Layer]:
    """Llama 2 and 3, and the many checkpoints published in its form (Yi, TinyLlama, SmolLM2); Granite."""
    bias = fields.flag("attention_bias")
    attention = grouped_attention(fields, qkv_bias=bias, output_bias=bias)
    return [Layer(attention, dense_feed_forward(fields, bias=fields.flag("mlp_bias")))] * fields.layers


def read_mistral(fields: Fields) -> list[Layer]:
    """Mistral, Phi-3 and Phi-4: a window, where there is one, in every layer."""
    everywhere = [fields.count("sliding_window") > 0] * fields.layers
    feed_forward = dense_feed_forward(fields)
    attentions = by_window(windows(fields, everywhere), lambda window: grouped_attention(fields, window=window))
    return [Layer(attention, feed_forward) for attention in attentions]


def upper_windows(fields: Fields) -> list[int]:
    """Qwen's rule: with ``use_sliding_window``, layers from ``max_window_layers`` on are windowed."""
    if not fields.flag("use_sliding_window"):
        return [0] * fields.layers
    first = fields.count("max_window_layers", default=fields.layers)
    return windows(fields, [index >= first for index in range(fields.layers)])


def biased_attentions(fields: Fields) -> list[GroupedAttention]:
    """Attention with biases on queries, keys and values, in each layer."""
    return by_window(upper_windows(fields), lambda window: grouped_attention(fields, window=window, qkv_bias=True))


def normed_attentions(fields: Fields, windows: list[int]) -> list[GroupedAttention]:
    """Attention with norms on queries and keys, in each layer."""
    bias = fields.flag("attention_bias")
    return by_window(
        windows,
        lambda window: grouped_attention(fields, window=window, qk_norm=True, qkv_bias=bias, output_bias=bias),
    )


def read_qwen2(fields: Fields) -> list[Layer]:
    """Qwen2, Qwen2.5 and MiMo-7B: biases on queries, keys and values."""
    feed_forward = dense_feed_forward(fields)
    return [Layer(attention, feed_forward) for attention in biased_attentions(fields)]


def read_qwen3(fields: Fields) -> list[Layer]:
    """Qwen3 and the text part of Qwen3-VL: norms on each query and key head."""
    feed_forward = dense_feed_forward(fields)
    return [Layer(attention, feed_forward) for attention in normed_attentions(fields, upper_windows(fields))]


def read_olmo2(fields: Fields) -> list[Layer]:
    """OLMo 2 and 3: norms on queries and keys, and after each half instead of before it."""
    feed_forward = dense_feed_forward(fields)
    attentions = normed_attentions(fields, windows(fields, [False] * fields.layers))
    return [Layer(attention, feed_forward) for attention in attentions]


def read_glm4(fields: Fields) -> list[Layer]:
    """GLM-4 of 2025 (0414): half of each head rotated, norms before and after each half."""
    attention = grouped_attention(fields, qkv_bias=fields.flag("attention_bias"))
    return [Layer(attention, dense_feed_forward(fields), norms=4)] * fields.layers


def read_seed_oss(fields: Fields) -> list[Layer]:
    """Seed-OSS: Llama with separate switches for the biases before and after attention."""
    attention = grouped_attention(
        fields, qkv_bias=fields.flag("attention_bias"), output_bias=fields.flag("attention_out_bias")
    )
    return [Layer(attention, dense_feed_forward(fields, bias=fields.flag("mlp_bias")))] * fields.layers
