"""Granite 4 and Bamba: Mamba2, with attention in some layers; Falcon-H1: both in each layer, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.errors import UnsupportedModelError
from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.grouped import plain_networks
from infercast.models.families.hybrid import state_dtype
from infercast.models.families.layers import Layer, grouped_attention
from infercast.models.feed_forward import DenseFeedForward, FeedForward
from infercast.models.mixers import Mamba2, SideBySide

KINDS = ("mamba", "attention")


def read_granite_hybrid(fields: Fields) -> list[Layer]:
    """Granite 4: experts with a shared one beside them, or that one alone; most models have no positions."""
    kinds = fields.a_layer("layer_types", fields.words("layer_types") or fields.words("layers_block_type"))
    unknown = sorted({*kinds} - {*KINDS})
    if unknown:
        raise UnsupportedModelError(f"{fields.where}: {unknown[0]} layers are not modelled; known: {', '.join(KINDS)}")
    network: FeedForward = DenseFeedForward(fields.positive("shared_intermediate_size"))
    if fields.count("num_local_experts"):
        shared = fields.count("shared_intermediate_size")
        network = routed_experts(fields, "num_local_experts", "intermediate_size", shared_inter=shared)
    rotated = fields.word("position_embedding_type", "nope") == "rope"
    return _layers(fields, [kind == "attention" for kind in kinds], [network] * fields.layers, rotated=rotated)


def read_bamba(fields: Fields) -> list[Layer]:
    """Bamba: attention in the listed layers, dense networks in all."""
    listed = set(fields.numbers("attn_layer_indices") or [])
    attending = [index in listed for index in range(fields.layers)]
    return _layers(fields, attending, plain_networks(fields), rotated=True)


def read_falcon_h1(fields: Fields) -> list[Layer]:
    """Falcon-H1: attention beside Mamba2 in every layer, whose gate most models do not norm."""
    mamba = replace(_mamba(fields), normed=fields.flag("mamba_rms_norm"))
    mixer = SideBySide(grouped_attention(fields), mamba)
    return [Layer(mixer, network) for network in plain_networks(fields)]


def _layers(fields: Fields, attending: list[bool], networks: Sequence[FeedForward], rotated: bool) -> list[Layer]:
    attention = grouped_attention(fields)
    attention = attention if rotated else replace(attention, rotary_dim=0)
    mamba = _mamba(fields)
    return [Layer(attention if here else mamba, network) for here, network in zip(attending, networks, strict=True)]


def _mamba(fields: Fields) -> Mamba2:
    heads = fields.positive("mamba_n_heads")
    inner = fields.positive("mamba_expand", default=2) * fields.positive("hidden_size")
    return Mamba2(
        heads=heads,
        # "auto" is what the heads have of the inner width.
        head_dim=inner // heads if fields.raw("mamba_d_head") == "auto" else fields.positive("mamba_d_head"),
        state_size=fields.positive("mamba_d_state"),
        groups=fields.positive("mamba_n_groups", default=1),
        taps=fields.positive("mamba_d_conv", default=4),
        chunk=fields.positive("mamba_chunk_size", default=256),
        state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype"),
        bias=fields.flag("mamba_proj_bias"),
        convolution_bias=fields.flag("mamba_conv_bias", default=True),
    )
