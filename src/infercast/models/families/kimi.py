"""Kimi-Linear and Kimi-K3: delta attention with a gate for each channel, and latent attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import FileFormatError
from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer, dense_feed_forward
from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.mixers import KimiDeltaAttention, KimiLatentAttention


def read_kimi_linear(fields: Fields) -> list[Layer]:
    """Layers are counted from one in the lists that say which are which."""
    settings = fields.section("linear_attn_config")
    delta = KimiDeltaAttention(
        heads=settings.positive("num_heads"),
        head_dim=settings.positive("head_dim"),
        taps=settings.positive("short_conv_kernel_size", default=4),
        full_rank_gate=settings.flag("use_full_rank_gate"),
    )
    latent = KimiLatentAttention(
        heads=fields.positive("num_attention_heads"),
        kv_lora_rank=fields.positive("kv_lora_rank"),
        q_lora_rank=fields.count("q_lora_rank"),
        nope_dim=fields.positive("qk_nope_head_dim"),
        rope_dim=fields.positive("qk_rope_head_dim"),
        value_dim=fields.positive("v_head_dim"),
        gated=fields.flag("mla_use_output_gate"),
    )
    recurrent = settings.numbers("kda_layers")
    if recurrent is None:
        raise FileFormatError(settings.where, "the field kda_layers is missing; a list of layers from 1 on is needed")
    dense, experts = dense_feed_forward(fields), _experts(fields)
    first, frequency = fields.count("first_k_dense_replace"), fields.positive("moe_layer_freq", default=1)
    here = set(recurrent)
    streams = _residual_streams(fields)
    return [
        Layer(
            delta if index + 1 in here else latent,
            experts if index >= first and index % frequency == 0 else dense,
            residuals=streams,
        )
        for index in range(fields.layers)
    ]


def _experts(fields: Fields) -> ExpertFeedForward:
    """Experts with shared ones beside them; in Kimi-K3 behind a narrower vector."""
    shared = fields.positive("moe_intermediate_size") * fields.count("num_shared_experts")
    experts = routed_experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        shared_inter=shared,
        router_bias=True,
        latent=fields.count("routed_expert_hidden_size"),
    )
    return replace(experts, latent_norm=experts.latent > 0 and fields.flag("latent_moe_use_norm"))


def _residual_streams(fields: Fields) -> int:
    """Kimi-K3: every so many layers the sum so far is put aside, and each norm weighs all sums; the mean number."""
    block = fields.count("attn_res_block_size")
    if not block:
        return 0
    return max(1, round(sum(-(-index // block) for index in range(fields.layers)) / fields.layers))
