"""NVIDIA's Nemotron families: layers that are one half each (Nemotron-H and 3), and layers that pruning thinned out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.families.experts import routed_experts
from infercast.models.families.fields import MOST_LAYERS, Fields
from infercast.models.families.hybrid import state_dtype
from infercast.models.families.layers import Layer, checked_kv_heads, rotary_dim
from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward, FeedForward, NoFeedForward
from infercast.models.mixers import GroupedAttention, Mamba2, Mixer, NoMixer

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in ``hybrid_override_pattern``, as newer files call them in ``layers_block_type``."""


def read_nemotron_h(fields: Fields) -> list[Layer]:
    """Nemotron-H and Nemotron 3: each layer is a Mamba2, attention without positions, a feed-forward or experts."""
    kinds = _kinds(fields, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        raise FileFormatError(fields.where, "neither hybrid_override_pattern nor layers_block_type lists the layers")
    if fields.raw("num_hidden_layers") is not None:
        kinds = fields.a_layer("hybrid_override_pattern", kinds)
    if len(kinds) > MOST_LAYERS:
        raise FileFormatError(fields.where, f"{len(kinds)} layers are more than {MOST_LAYERS}")
    return _half_layers(fields, kinds)


def nemotron_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """What predicts further tokens in Nemotron 3: attention, then experts."""
    kinds = _kinds(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return _half_layers(fields, kinds or ["attention", "moe"])


def _kinds(fields: Fields, pattern: str, names: str) -> list[str]:
    """The kind of each layer, from a pattern of letters or a list of names."""
    letters = fields.word(pattern)
    kinds = [LETTERS.get(letter, letter) for letter in letters] if letters else fields.words(names)
    unknown = sorted({*kinds} - {*LETTERS.values()})
    if unknown:
        known = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
        raise UnsupportedModelError(f"{fields.where}: {unknown[0]!r} layers are not modelled; known: {known}")
    return kinds


def _half_layers(fields: Fields, kinds: Sequence[str]) -> list[Layer]:
    """One norm and one half each."""
    makers: dict[str, Callable[[Fields], Mixer | FeedForward]]
    makers = {"mamba": mamba2, "attention": _attention, "mlp": _network, "moe": _experts}
    halves = {kind: makers[kind](fields) for kind in dict.fromkeys(kinds)}
    return [
        Layer(half, NoFeedForward(), 1) if isinstance(half, Mixer) else Layer(NoMixer(), half, 1)
        for half in (halves[kind] for kind in kinds)
    ]


def mamba2(fields: Fields) -> Mamba2:
    """A state space from the keys of Nemotron-H; its state is kept in fp32 where the file does not say."""
    return Mamba2(
        heads=fields.positive("mamba_num_heads"),
        head_dim=fields.positive("mamba_head_dim"),
        state_size=fields.positive("ssm_state_size"),
        groups=fields.positive("n_groups", "mamba_n_groups", default=8),
        taps=fields.positive("conv_kernel", default=4),
        chunk=fields.positive("chunk_size", default=128),
        state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype", "float32"),
        bias=fields.flag("use_bias"),
        convolution_bias=fields.flag("use_conv_bias", default=True),
    )


def _attention(fields: Fields) -> GroupedAttention:
    heads = fields.positive("num_attention_heads")
    head_dim = fields.positive("head_dim", "attention_head_dim", default=fields.positive("hidden_size") // heads)
    kv_heads = checked_kv_heads(fields, "num_key_value_heads", heads)
    return GroupedAttention(heads, kv_heads, head_dim, head_dim, rotary_dim=0)


def _network(fields: Fields) -> DenseFeedForward:
    return DenseFeedForward(fields.positive("intermediate_size"), gated=False, bias=fields.flag("mlp_bias"))


def _experts(fields: Fields) -> ExpertFeedForward:
    shared = fields.count("moe_shared_expert_intermediate_size") * fields.count("n_shared_experts")
    return routed_experts(
        fields,
        "n_routed_experts",
        "moe_intermediate_size",
        shared_inter=shared,
        router_bias=True,
        gated=False,
        latent=fields.count("moe_latent_size"),
    )


def read_decilm(fields: Fields) -> list[Layer]:
    """Nemotron Super and Ultra of 2025: Llama with layers that lost their attention or a part of their feed-forward."""
    blocks = fields.a_layer("block_configs", fields.sections("block_configs"))
    return [_block(fields, block) for block in blocks]


def _block(fields: Fields, block: Fields) -> Layer:
    attention, network = block.section("attention"), block.section("ffn")
    for half in (attention, network):
        if half.flag("replace_with_linear"):
            raise UnsupportedModelError(f"{half.where}: halves replaced by one matrix are not modelled")
    mixer: Mixer = NoMixer() if attention.flag("no_op") else _pruned_attention(fields, attention)
    feed_forward: FeedForward = NoFeedForward()
    if not network.flag("no_op"):
        feed_forward = DenseFeedForward(_pruned_width(fields, network))
    return Layer(mixer, feed_forward, (not mixer.is_empty) + (not feed_forward.is_empty))


def _pruned_attention(fields: Fields, block: Fields) -> GroupedAttention:
    heads = fields.positive("num_attention_heads")
    head_dim = fields.positive("head_dim", default=fields.positive("hidden_size") // heads)
    kv_heads = heads // block.positive("n_heads_in_group")
    return GroupedAttention(heads, kv_heads, head_dim, head_dim, rotary_dim(fields, head_dim))


def _pruned_width(fields: Fields, block: Fields) -> int:
    """The width of a feed-forward from its share of the hidden size, in multiples of 256."""
    if block.raw("intermediate_size") is not None:
        return block.positive("intermediate_size")
    width = int(2 * block.number("ffn_mult") * fields.positive("hidden_size") / 3)
    return -(-width // 256) * 256
