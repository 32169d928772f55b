"""Step-3.5-Flash and Step-3.7-Flash: attention whose heads are gated one by one, in windows in most layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import (
    Layer,
    checked_kv_heads,
    dense_feed_forward,
    listed_windows,
    rotary_dim,
    useful_window,
)
from infercast.models.mixers import GroupedAttention


def read_step(fields: Fields) -> list[Layer]:
    """Windowed layers may have heads of their own; the first layers are dense."""
    windowed = listed_windows(fields) or [False] * fields.layers
    everywhere = _attention(fields, fields)
    # Newer files say nothing of heads that differ.
    other = fields.section("attention_other_setting")
    local = replace(
        _attention(fields, other) if other.values else everywhere,
        window=useful_window(fields, fields.positive("sliding_window")) if any(windowed) else 0,
    )
    sparse_layers = _sparse_layers(fields)
    experts = routed_experts(
        fields,
        "moe_num_experts" if fields.raw("moe_num_experts") is not None else "num_experts",
        "moe_intermediate_size",
        shared_inter=fields.count("share_expert_dim"),
        router_bias="use_moe_router_bias",
    )
    dense = dense_feed_forward(fields)
    return [
        Layer(local if here else everywhere, experts if index in sparse_layers else dense)
        for index, here in enumerate(windowed)
    ]


def step_head(fields: Fields, layers: Sequence[Layer]) -> list[Layer]:
    """What predicts further tokens: windowed attention and a dense network."""
    windowed = (layer.mixer for layer in layers if isinstance(layer.mixer, GroupedAttention) and layer.mixer.window)
    return [Layer(next(windowed, layers[-1].mixer), dense_feed_forward(fields))]


def _attention(fields: Fields, sizes: Fields) -> GroupedAttention:
    """Attention with the heads that ``sizes`` give."""
    heads = sizes.positive("num_attention_heads")
    head_dim = sizes.positive("head_dim", default=fields.positive("hidden_size") // heads)
    key = "num_attention_groups" if sizes.raw("num_attention_groups") is not None else "num_key_value_heads"
    return GroupedAttention(
        heads=heads,
        kv_heads=checked_kv_heads(sizes, key, heads),
        head_dim=head_dim,
        value_dim=head_dim,
        rotary_dim=rotary_dim(fields, head_dim),
        qk_norm=True,
        qkv_bias=fields.flag("attention_bias"),
        gate_width=1 if fields.flag("use_head_wise_attn_gate") else 0,
    )


def _sparse_layers(fields: Fields) -> set[int]:
    """Layers with experts: a list of numbers in one string, or all after the first few."""
    listed = fields.word("moe_layers_enum")
    if not listed:
        return set(range(fields.count("first_k_dense_replace", default=1), fields.layers))
    numbers = [number.strip() for number in listed.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise fields.wrong("moe_layers_enum", "whole numbers with commas between them")
    return {int(number) for number in numbers}
