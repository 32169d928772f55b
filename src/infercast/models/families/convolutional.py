"""LFM2: gated short convolutions, with attention in some layers and experts in its larger models."""

from __future__ import annotations

from infercast.errors import UnsupportedModelError
from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer, dense_feed_forward, grouped_attention
from infercast.models.feed_forward import DenseFeedForward, FeedForward
from infercast.models.mixers import GatedConvolution

CONVOLUTION, FULL = "conv", "full_attention"


def read_lfm2(fields: Fields) -> list[Layer]:
    """LFM2: dense networks whose width is two thirds of what the file says, in multiples."""
    return _layers(fields, [_network(fields)] * fields.layers)


def read_lfm2_moe(fields: Fields) -> list[Layer]:
    """LFM2-8B-A1B: the first layers dense, then experts."""
    experts = routed_experts(fields, "num_experts", "moe_intermediate_size", router_bias="use_expert_bias")
    dense, first = dense_feed_forward(fields), fields.count("num_dense_layers")
    return _layers(fields, [dense if index < first else experts for index in range(fields.layers)])


def _layers(fields: Fields, networks: list[FeedForward]) -> list[Layer]:
    channels = fields.positive("conv_dim", "hidden_size")
    convolution = GatedConvolution(channels, fields.positive("conv_L_cache", default=3), bias=fields.flag("conv_bias"))
    attention = grouped_attention(fields, qk_norm=True)
    return [
        Layer(attention if here else convolution, network)
        for here, network in zip(_attention_layers(fields), networks, strict=True)
    ]


def _attention_layers(fields: Fields) -> list[bool]:
    """Which layers attend: by ``layer_types``, or by the list of their numbers in older files."""
    names = fields.words("layer_types")
    if not names:
        listed = set(fields.numbers("full_attn_idxs") or [])
        return [index in listed for index in range(fields.layers)]
    names = fields.a_layer("layer_types", names)
    unknown = sorted({*names} - {CONVOLUTION, FULL})
    if unknown:
        known = f"{CONVOLUTION}, {FULL}"
        raise UnsupportedModelError(f"{fields.where}: {unknown[0]} layers are not modelled; known: {known}")
    return [name == FULL for name in names]


def _network(fields: Fields) -> DenseFeedForward:
    width = fields.positive("intermediate_size", "block_ff_dim")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        factor = fields.number("block_ffn_dim_multiplier", default=1.0)
        multiple = fields.positive("block_multiple_of", default=256)
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    return DenseFeedForward(width)
