"""Families with routed experts and grouped attention."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import FileFormatError
from infercast.models.families.dense import biased_attentions, normed_attentions, upper_windows
from infercast.models.families.fields import Fields
from infercast.models.families.layers import (
    Layer,
    by_window,
    checked_kv_heads,
    dense_feed_forward,
    grouped_attention,
    rotary_dim,
    useful_window,
    windows,
)
from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward, FeedForward
from infercast.models.mixers import GroupedAttention


def routed_experts(
    fields: Fields,
    experts: int,
    inter: int,
    *,
    shared_inter: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    expert_bias: bool = False,
    dense_inter: int = 0,
) -> ExpertFeedForward:
    """``experts`` of width ``inter``, of which ``num_experts_per_tok`` serve a token."""
    topk = fields.positive("num_experts_per_tok", "top_k_experts")
    if topk > experts:
        raise FileFormatError(fields.where, f"num_experts_per_tok is {topk}, more than the {experts} experts there are")
    return ExpertFeedForward(
        experts=experts,
        topk=topk,
        inter=inter,
        shared_inter=shared_inter,
        shared_gate=shared_gate,
        router_bias=router_bias,
        expert_bias=expert_bias,
        dense_inter=dense_inter,
        grouped_choice=fields.count("n_group") > 0 or bool(fields.word("topk_method")),
    )


def read_mixtral(fields: Fields) -> list[Layer]:
    """Mixtral: experts in every layer."""
    feed_forward = routed_experts(fields, fields.positive("num_local_experts"), fields.positive("intermediate_size"))
    everywhere = [fields.count("sliding_window") > 0] * fields.layers
    attentions = by_window(windows(fields, everywhere), lambda window: grouped_attention(fields, window=window))
    return [Layer(attention, feed_forward) for attention in attentions]


def _qwen_feed_forwards(fields: Fields, sparse: ExpertFeedForward) -> list[FeedForward]:
    """Experts in every ``decoder_sparse_step``-th layer that is not listed in ``mlp_only_layers``."""
    step = fields.positive("decoder_sparse_step", default=1)
    listed = set(fields.numbers("mlp_only_layers") or [])
    is_sparse = [index not in listed and (index + 1) % step == 0 for index in range(fields.layers)]
    dense = None if all(is_sparse) else dense_feed_forward(fields)
    return [dense if dense and not here else sparse for here in is_sparse]


def read_qwen2_moe(fields: Fields) -> list[Layer]:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert, biases on queries, keys and values."""
    sparse = routed_experts(
        fields,
        fields.positive("num_experts"),
        fields.positive("moe_intermediate_size"),
        shared_inter=fields.positive("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return list(map(Layer, biased_attentions(fields), _qwen_feed_forwards(fields, sparse)))


def read_qwen3_moe(fields: Fields) -> list[Layer]:
    """Qwen3-MoE and the text part of Qwen3-VL-MoE: norms on each query and key head, no shared expert."""
    sparse = routed_experts(fields, fields.positive("num_experts"), fields.positive("moe_intermediate_size"))
    attentions = normed_attentions(fields, upper_windows(fields))
    return list(map(Layer, attentions, _qwen_feed_forwards(fields, sparse)))


def read_minimax_m2(fields: Fields) -> list[Layer]:
    """MiniMax-M2: norms over all queries and all keys, a bias on the router's choice."""
    attention = replace(grouped_attention(fields, qk_norm=fields.flag("use_qk_norm")), norm_across=True)
    feed_forward = routed_experts(
        fields,
        fields.positive("num_local_experts"),
        fields.positive("intermediate_size"),
        shared_inter=fields.count("shared_intermediate_size"),
        router_bias=fields.flag("use_routing_bias"),
    )
    return [Layer(attention, feed_forward)] * fields.layers


def read_glm4_moe(fields: Fields) -> list[Layer]:
    """GLM-4.5, 4.6 and 4.7: the first layers dense, then experts with shared ones beside them."""
    attention = grouped_attention(fields, qk_norm=fields.flag("use_qk_norm"), qkv_bias=fields.flag("attention_bias"))
    inter = fields.positive("moe_intermediate_size")
    sparse = routed_experts(
        fields,
        fields.positive("n_routed_experts"),
        inter,
        shared_inter=inter * fields.count("n_shared_experts"),
        router_bias=True,
    )
    sparse = replace(sparse, grouped_choice=True)  # of one group, as DeepSeek-V3 chooses
    dense = min(fields.count("first_k_dense_replace"), fields.layers)
    first = [Layer(attention, dense_feed_forward(fields))] * dense
    return first + [Layer(attention, sparse)] * (fields.layers - dense)


def read_gpt_oss(fields: Fields) -> list[Layer]:
    """gpt-oss: sinks, a window in every other layer, biases on everything."""
    alternating = [index % 2 == 0 for index in range(fields.layers)]
    feed_forward = routed_experts(
        fields,
        fields.positive("num_local_experts"),
        fields.positive("intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    bias = fields.flag("attention_bias", True)
    attentions = by_window(
        windows(fields, alternating),
        lambda window: grouped_attention(fields, window=window, qkv_bias=bias, output_bias=bias, sinks=True),
    )
    return [Layer(attention, feed_forward) for attention in attentions]


def read_llama4(fields: Fields) -> list[Layer]:
    """Llama 4: attention in chunks where there are rotary positions, experts in every n-th layer."""
    layers = fields.layers
    rotated = fields.numbers("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(layers)]
    fields.a_layer("no_rope_layers", rotated)
    step = fields.positive("interleave_moe_layer_step", default=1)
    listed = fields.numbers("moe_layers")
    sparse_layers = set(range(step - 1, layers, step) if listed is None else listed)
    bias = fields.flag("attention_bias")
    everywhere = replace(grouped_attention(fields, qkv_bias=bias, output_bias=bias), rotary_dim=0)
    chunked = grouped_attention(
        fields,
        window=fields.count("attention_chunk_size", default=8192),
        qk_norm=fields.flag("use_qk_norm"),
        qkv_bias=bias,
        output_bias=bias,
    )
    chunked = replace(chunked, chunked=chunked.window > 0)
    inter = fields.positive("intermediate_size")
    sparse = routed_experts(fields, fields.positive("num_local_experts"), inter, shared_inter=inter)
    dense = DenseFeedForward(fields.positive("intermediate_size_mlp", default=inter))
    return [
        Layer(chunked if rotated[index] else everywhere, sparse if index in sparse_layers else dense)
        for index in range(layers)
    ]


def read_mimo_v2_flash(fields: Fields) -> list[Layer]:
    """MiMo-V2-Flash: windowed layers with sinks and more key-value heads, values narrower than keys."""
    windowed = fields.numbers("hybrid_layer_pattern") or [0] * fields.layers
    is_sparse = fields.numbers("moe_layer_freq") or [1] * fields.layers
    fields.a_layer("hybrid_layer_pattern", windowed)
    fields.a_layer("moe_layer_freq", is_sparse)
    everywhere = _mimo_attention(fields, "", fields.flag("add_full_attention_sink_bias"), 0)
    sliding = _mimo_attention(
        fields, "swa_", fields.flag("add_swa_attention_sink_bias"), fields.positive("sliding_window")
    )
    inter = fields.positive("moe_intermediate_size")
    sparse = routed_experts(
        fields,
        fields.positive("n_routed_experts"),
        inter,
        shared_inter=inter * fields.count("n_shared_experts"),
        router_bias=fields.word("topk_method") == "noaux_tc",
    )
    dense = dense_feed_forward(fields)
    return [
        Layer(sliding if window else everywhere, sparse if experts else dense)
        for window, experts in zip(windowed, is_sparse, strict=True)
    ]


def _mimo_attention(fields: Fields, prefix: str, sinks: bool, window: int) -> GroupedAttention:
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
        sinks=sinks,
    )
