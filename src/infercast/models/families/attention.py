"""Families of attention layers, with grouped heads or latents: Llama, Qwen, Gemma, DeepSeek, Step and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from infercast.errors import UnsupportedModelError
from infercast.models.families.fields import (
    Answer,
    Fields,
    Layer,
    after_dense_layers,
    checked_kv_heads,
    deepseek_experts,
    dense_feed_forward,
    grouped_attention,
    listed_windows,
    rotary_dim,
    routed_experts,
    useful_window,
)
from infercast.models.feed_forward import DenseFeedForward, FeedForward
from infercast.models.mixers.latent import LatentAttention
from infercast.models.mixers.mixer import GroupedAttention


def plain_networks(fields: Fields, bias: Answer = False) -> list[FeedForward]:
    return [dense_feed_forward(fields, bias=fields.answer(bias))] * fields.layers


def read_grouped(
    fields: Fields,
    *,
    windows: Callable[[Fields], list[int]] = lambda fields: [0] * fields.layers,
    networks: Callable[[Fields], Sequence[FeedForward]] = plain_networks,
    norms: int = 2,
    **attention: Answer,
) -> list[Layer]:
    """Layers of grouped attention, with the window and the feed-forward network of each; ``attention`` is for all."""
    plain = grouped_attention(fields, **{name: fields.answer(said) for name, said in attention.items()})
    each = windows(fields)
    kinds = {window: replace(plain, window=useful_window(fields, window)) for window in set(each)}
    return [Layer(kinds[window], network, norms) for window, network in zip(each, networks(fields), strict=True)]


def _windowed(rule: Callable[[Fields, int], bool]) -> Callable[[Fields], list[int]]:
    """The window of each layer: ``sliding_window`` where layer_types, or else a rule, has a windowed layer."""

    def windows(fields: Fields) -> list[int]:
        otherwise = [rule(fields, index) for index in range(fields.layers)]
        windowed = listed_windows(fields) or otherwise
        window = fields.positive("sliding_window") if any(windowed) else 0
        return [window if here else 0 for here in windowed]

    return windows


PERIOD = ("sliding_window_pattern", "_sliding_window_pattern")
# Mistral, Phi and Mixtral, if they have a window; Gemma 2 and gpt-oss; Gemma 3; OLMo 3.
every_layer = _windowed(lambda fields, _: fields.count("sliding_window") > 0)
every_other_layer = _windowed(lambda _, index: index % 2 == 0)
once_a_period = _windowed(lambda fields, index: (index + 1) % fields.positive(*PERIOD, default=6) != 0)
listed_layers = _windowed(lambda *_: False)
_last_layers = _windowed(lambda fields, index: index >= fields.count("max_window_layers", default=fields.layers))


def upper_layers(fields: Fields) -> list[int]:
    """Qwen: with ``use_sliding_window``, layers from ``max_window_layers`` on are windowed."""
    return _last_layers(fields) if fields.flag("use_sliding_window") else [0] * fields.layers


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


def windowed_head(fields: Fields, layers: Sequence[Layer]) -> list[Layer]:
    """What predicts further tokens: windowed attention and a dense network."""
    windowed = (layer.mixer for layer in layers if getattr(layer.mixer, "window", 0))
    return [Layer(next(windowed, layers[-1].mixer), dense_feed_forward(fields))]


def _attention(fields: Fields, sizes: Fields) -> GroupedAttention:
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


def read_deepseek(fields: Fields) -> list[Layer]:
    """DeepSeek-V2, V3, R1 and V3.1, Kimi-K2 and K2.5, GLM-4.7-Flash: attention over one compressed vector a token."""
    attention = LatentAttention(**latent_sizes(fields))
    networks = after_dense_layers(fields) if fields.count("n_routed_experts") else plain_networks(fields)
    return [Layer(attention, network) for network in networks]


def latent_sizes(fields: Fields) -> dict[str, Any]:
    """The sizes of latent attention, from the keys that DeepSeek gave them."""
    keys = {"kv_lora_rank": "kv_lora_rank", "nope_dim": "qk_nope_head_dim", "rope_dim": "qk_rope_head_dim"}
    keys |= {"heads": "num_attention_heads", "value_dim": "v_head_dim"}
    sizes = {name: fields.positive(key) for name, key in keys.items()}
    return {**sizes, "q_lora_rank": fields.count("q_lora_rank")}


def read_gemma4(fields: Fields) -> list[Layer]:
    """Gemma 4: layers that see everything have wider and fewer heads; experts may run parallel to the dense half."""
    if fields.count("hidden_size_per_layer_input"):
        raise UnsupportedModelError(f"{fields.where}: per-layer embeddings (Gemma 4 E2B, E4B) are not modelled yet")
    if fields.count("num_kv_shared_layers"):
        raise UnsupportedModelError(f"{fields.where}: layers that share a KV cache are not modelled yet")
    windowed = listed_windows(fields) or [(index + 1) % 6 != 0 for index in range(fields.layers)]
    local = grouped_attention(fields, window=fields.positive("sliding_window"), qk_norm=True)
    everywhere = _global_attention(fields, local)
    network: FeedForward = dense_feed_forward(fields)
    norms = 4
    if fields.flag("enable_moe_block"):
        keys = ("num_experts", "moe_intermediate_size", "expert_intermediate_size")
        network = routed_experts(fields, *keys, dense_inter=network.inter)
        norms = 7  # with experts, a layer norms the input and output of either feed-forward once more
    return [Layer(local if here else everywhere, network, norms) for here in windowed]


def _global_attention(fields: Fields, local: GroupedAttention) -> GroupedAttention:
    head_dim = fields.positive("global_head_dim", default=local.head_dim)
    shared = fields.flag("attention_k_eq_v")
    # Only layers with keys that serve as values have a head count of their own.
    key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    return replace(
        local,
        kv_heads=checked_kv_heads(fields, key, local.heads) if fields.raw(key) is not None else local.kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        rotary_dim=rotary_dim(fields.section("rope_parameters").section("full_attention"), head_dim),
        window=0,
        shared_key_value=shared,
    )


def read_llama4(fields: Fields) -> list[Layer]:
    """Llama 4: attention in chunks where there are rotary positions, experts in every n-th layer."""
    layers = fields.layers
    rotated = fields.numbers("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(layers)]
    rotated = fields.a_layer("no_rope_layers", rotated)
    step = fields.positive("interleave_moe_layer_step", default=1)
    listed = fields.numbers("moe_layers")
    sparse_layers = set(range(step - 1, layers, step) if listed is None else listed)
    bias = fields.flag("attention_bias")
    attention = grouped_attention(fields, qkv_bias=bias, output_bias=bias)
    everywhere = replace(attention, rotary_dim=0)
    window = useful_window(fields, fields.count("attention_chunk_size", default=8192))
    chunked = replace(attention, window=window, qk_norm=fields.flag("use_qk_norm"), chunked=window > 0)
    inter = fields.positive("intermediate_size")
    sparse = routed_experts(fields, "num_local_experts", "intermediate_size", shared_inter=inter)
    dense = DenseFeedForward(fields.positive("intermediate_size_mlp", default=inter))
    return [
        Layer(chunked if rotated[index] else everywhere, sparse if index in sparse_layers else dense)
        for index in range(layers)
    ]


def read_mimo_v2_flash(fields: Fields) -> list[Layer]:
    """MiMo-V2-Flash: windowed layers with sinks and more key-value heads, values narrower than keys."""
    windowed = fields.a_layer("hybrid_layer_pattern", fields.numbers("hybrid_layer_pattern") or [0] * fields.layers)
    is_sparse = fields.a_layer("moe_layer_freq", fields.numbers("moe_layer_freq") or [1] * fields.layers)
    everywhere = _mimo_attention(fields, "", "add_full_attention_sink_bias", 0)
    sliding = _mimo_attention(fields, "swa_", "add_swa_attention_sink_bias", fields.positive("sliding_window"))
    sparse, dense = deepseek_experts(fields), dense_feed_forward(fields)
    return [
        Layer(sliding if window else everywhere, sparse if experts else dense)
        for window, experts in zip(windowed, is_sparse, strict=True)
    ]


def _mimo_attention(fields: Fields, prefix: str, sinks: str, window: int) -> GroupedAttention:
    heads = fields.positive(f"{prefix}num_attention_heads", "num_attention_heads")
    head_dim = fields.positive(f"{prefix}head_dim", "head_dim")
    return GroupedAttention(
        heads=heads,
        kv_heads=checked_kv_heads(fields, f"{prefix}num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=fields.positive(f"{prefix}v_head_dim", "v_head_dim", default=head_dim),
        rotary_dim=rotary_dim(fields, head_dim),
        window=useful_window(fields, window),
        qkv_bias=fields.flag("attention_bias"),
        sinks=fields.flag(sinks),
    )
