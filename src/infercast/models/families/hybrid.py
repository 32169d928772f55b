"""Families of recurrent layers with attention in between: Qwen3-Next, Qwen3.5 and after, LFM2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infercast.errors import UnsupportedModelError
from infercast.models.families.experts import qwen_experts
from infercast.models.families.fields import Fields
from infercast.models.families.grouped import plain_networks
from infercast.models.families.layers import Layer, grouped_attention
from infercast.models.feed_forward import FeedForward
from infercast.models.mixers import GatedDeltaNet, GroupedAttention

STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": ""}
RECURRENT, FULL = "linear_attention", "full_attention"


def state_dtype(fields: Fields, key: str, default: str = "auto") -> str:
    """The format of a recurrent state; empty: that of the model."""
    name = fields.word(key, default)
    if name not in STATE_DTYPES:
        raise fields.wrong(key, f"one of {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES[name]


def read_qwen_hybrid(fields: Fields) -> list[Layer]:
    """Qwen3-Next, Qwen3.5 and 3.6: gated delta nets, and gated attention in every fourth layer."""
    delta_net = GatedDeltaNet(
        heads=fields.positive("linear_num_value_heads"),
        key_heads=fields.positive("linear_num_key_heads"),
        key_dim=fields.positive("linear_key_head_dim"),
        value_dim=fields.positive("linear_value_head_dim"),
        taps=fields.positive("linear_conv_kernel_dim", default=4),
        state_dtype=state_dtype(fields, "mamba_ssm_dtype"),
    )
    if delta_net.heads % delta_net.key_heads:
        raise fields.wrong("linear_num_value_heads", f"a multiple of linear_num_key_heads = {delta_net.key_heads}")
    attention = grouped_attention(fields, qk_norm=True, qkv_bias=fields.answer("attention_bias"))
    if fields.flag("attn_output_gate", default=True):
        attention = replace(attention, gate_width=attention.value_dim)
    networks = gated_experts(fields) if fields.count("num_experts") else plain_networks(fields)
    recurrent = recurrent_layers(fields, fields.positive("full_attention_interval", default=4))
    return [Layer(delta_net if here else attention, network) for here, network in zip(recurrent, networks, strict=True)]


def gated_experts(fields: Fields) -> Sequence[FeedForward]:
    """Experts with a gated shared one beside them, where its width is given."""
    shared = fields.count("shared_expert_intermediate_size")
    return qwen_experts(fields, shared_inter=shared, shared_gate=shared > 0)


def recurrent_layers(fields: Fields, interval: int) -> list[bool]:
    """Whether each layer is recurrent: as ``layer_types`` says, or all but every ``interval``-th."""
    names = fields.words("layer_types")
    if not names:
        return [(index + 1) % interval != 0 for index in range(fields.layers)]
    names = fields.a_layer("layer_types", names)
    unknown = sorted({*names} - {RECURRENT, FULL})
    if unknown:
        raise UnsupportedModelError(f"{fields.where}: {unknown[0]} layers are not modelled; known: {RECURRENT}, {FULL}")
    return [name == RECURRENT for name in names]


def last_attention(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """A head that predicts further tokens is a layer like the last one with attention."""
    return [next(layer for layer in reversed(layers) if isinstance(layer.mixer, GroupedAttention))]
