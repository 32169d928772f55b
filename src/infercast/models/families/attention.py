"""Families of attention layers, with grouped heads or latents: Llama, Qwen, Gemma, DeepSeek, Step and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infercast.errors import FileFormatError
from infercast.models.families import fields as parts
from infercast.models.families.fields import Fields, Layer, expert_networks, grouped_attention, usual_experts
from infercast.models.feed_forward import DenseFeedForward, ExpertFeedForward, FeedForward
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention, Mixer
from infercast.models.mixers.sparse import (
    BlockSparseAttention,
    CompressedAttention,
    Compressor,
    Indexer,
    SparseLatentAttention,
)

PLAIN = ("relu", "relu2", "gelu", "gelu_new", "gelu_fast", "gelu_python", "quick_gelu", "xielu")
"""Activations that stand between two matrices; with others there is a third one, a gate."""


def plain_networks(fields: parts.Fields, bias: parts.Answer = False, gated: parts.Answer = True) -> list[FeedForward]:
    return [parts.dense_feed_forward(fields, fields.answer(bias), fields.answer(gated))] * fields.layers


def read_layers(
    fields: parts.Fields, *, windows: str = "none", experts: Mapping[str, Any] = {}, gated: parts.Answer | None = True,
    mlp_bias: parts.Answer = False, norms: int = 2, parallel: parts.Answer = False, rotary: bool = True, gate: str = "",
    latent: bool = False, **attention: parts.Answer,
) -> list[parts.Layer]:  # fmt: skip
    """Grouped or latent attention and a network, dense or of experts; options: rows of ``data/model_families.json``."""
    if latent or fields.count("kv_lora_rank"):
        each = [0] * fields.layers
        kinds: dict[int, Mixer] = {0: LatentAttention(**latent_sizes(fields))}
    else:
        plain = parts.grouped_attention(fields, **{name: fields.answer(said) for name, said in attention.items()})
        width = {"": 0, "heads": 1, "values": plain.value_dim}[gate]
        plain = replace(plain, gate_width=width, rotary_dim=plain.rotary_dim if rotary else 0)
        each = WINDOWS[windows](fields)
        kinds = {window: replace(plain, window=parts.useful_window(fields, window)) for window in set(each)}
    gated = str(fields.raw(*parts.ACTIVATION_KEYS)) not in PLAIN if gated is None else gated
    has_experts = fields.count(*parts.EXPERT_KEYS) > 1
    networks = parts.expert_networks(fields, **experts) if has_experts else plain_networks(fields, mlp_bias, gated)
    beside = fields.answer(parallel)
    norms = norms if beside else max(norms, 2)
    halves = zip(each, networks, strict=True)
    return [parts.Layer(kinds[window], network, norms, parallel=beside) for window, network in halves]


def _windowed(rule: Callable[[parts.Fields, int], bool]) -> Callable[[parts.Fields], list[int]]:
    """The window of each layer: ``sliding_window`` where layer_types, or else a rule, has a windowed layer."""

    def windows(fields: parts.Fields) -> list[int]:
        windowed = parts.listed_windows(fields) or [rule(fields, index) for index in range(fields.layers)]
        window = fields.positive("sliding_window") if any(windowed) else 0
        return [window if here else 0 for here in windowed]

    return windows


PERIOD = ("sliding_window_pattern", "_sliding_window_pattern")
_upper = _windowed(lambda fields, index: index >= fields.count("max_window_layers", default=fields.layers))
WINDOWS: dict[str, Callable[[parts.Fields], list[int]]] = {
    "none": lambda fields: [0] * fields.layers,
    "every layer": _windowed(lambda fields, _: fields.count("sliding_window") > 0),
    "every other layer": _windowed(lambda _, index: index % 2 == 0),
    "all but one of a period": _windowed(lambda fields, index: (index + 1) % fields.positive(*PERIOD, default=6) != 0),
    "all but the first of a period": _windowed(
        lambda fields, index: index % fields.positive("global_attn_every_n_layers", default=3) != 0
    ),
    "listed": _windowed(lambda *_: False),
    "by fields": _windowed(
        lambda fields, index: (
            fields.flag("use_sliding_window", True)
            and fields.count("sliding_window") > 0
            and (fields.raw(*PERIOD) is None or (index + 1) % fields.positive(*PERIOD) != 0)
        )
    ),
    # Qwen: with this flag, layers from max_window_layers on.
    "upper layers": lambda fields: (_upper if fields.flag("use_sliding_window") else WINDOWS["none"])(fields),
}


def read_step(fields: parts.Fields) -> list[parts.Layer]:
    """Windowed layers may have heads of their own; the first layers are dense."""
    windowed = parts.listed_windows(fields) or [False] * fields.layers
    everywhere = _attention(fields, fields)
    # Newer files say nothing of heads that differ.
    other = fields.section("attention_other_setting")
    local = replace(
        _attention(fields, other) if other.values else everywhere,
        window=parts.useful_window(fields, fields.positive("sliding_window")) if any(windowed) else 0,
    )
    sparse_layers = _sparse_layers(fields)
    experts = parts.routed_experts(
        fields, "moe_num_experts" if fields.raw("moe_num_experts") is not None else "num_experts",
        "moe_intermediate_size", shared_inter=fields.count("share_expert_dim"), router_bias="use_moe_router_bias",
    )  # fmt: skip
    dense = parts.dense_feed_forward(fields)
    return [
        parts.Layer(local if here else everywhere, experts if index in sparse_layers else dense)
        for index, here in enumerate(windowed)
    ]


def windowed_head(fields: parts.Fields, layers: Sequence[parts.Layer]) -> list[parts.Layer]:
    """What predicts further tokens: windowed attention and a dense network."""
    windowed = (layer.mixer for layer in layers if getattr(layer.mixer, "window", 0))
    return [parts.Layer(next(windowed, layers[-1].mixer), parts.dense_feed_forward(fields))]


def _attention(fields: parts.Fields, sizes: parts.Fields) -> GroupedAttention:
    values = {**fields.values, **sizes.values}
    values["num_key_value_heads"] = values.get("num_attention_groups", values.get("num_key_value_heads"))
    flags = {"qk_norm": True, "qkv_bias": fields.flag("attention_bias")}
    attention = parts.grouped_attention(fields._replace(values=values), **flags)
    return replace(attention, gate_width=1 if fields.flag("use_head_wise_attn_gate") else 0)


def _sparse_layers(fields: parts.Fields) -> set[int]:
    """Layers with experts: a list of numbers in one string, or all after the first few."""
    listed = fields.word("moe_layers_enum")
    if not listed:
        return set(range(fields.count("first_k_dense_replace", default=1), fields.layers))
    numbers = [number.strip() for number in listed.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise fields.wrong("moe_layers_enum", "whole numbers with commas between them")
    return {int(number) for number in numbers}


def latent_sizes(fields: parts.Fields) -> dict[str, Any]:
    """The sizes of latent attention, from the keys that DeepSeek gave them."""
    sizes = fields.sizes(kv_lora_rank="kv_lora_rank", nope_dim="qk_nope_head_dim", rope_dim="qk_rope_head_dim")
    sizes |= fields.sizes(heads="num_attention_heads", value_dim="v_head_dim")
    return {**sizes, "q_lora_rank": fields.count("q_lora_rank")}


def read_shortcut(fields: parts.Fields) -> list[parts.Layer]:
    """LongCat-Flash: two blocks a layer, the first in parallel with experts; those without weights cost nothing."""
    attention, dense = LatentAttention(**latent_sizes(fields)), parts.dense_feed_forward(fields)
    experts = parts.routed_experts(fields, router_bias=True, dense_inter=dense.inter, wide_router=True)
    share = experts.experts / (experts.experts + fields.count("zero_expert_num"))
    experts = replace(experts, topk=max(1, round(share * experts.topk)))
    return [parts.Layer(attention, experts), parts.Layer(attention, dense)] * fields.positive("num_layers")


def read_two_pools(fields: parts.Fields, **options: Any) -> list[parts.Layer]:
    """ERNIE 4.5 VL: numbers of experts of text and of images in lists; text never reaches the latter's weights."""
    pairs = {key: value for key, value in fields.values.items() if key.startswith("moe_") and isinstance(value, list)}
    first = {key: value[0] for key, value in pairs.items() if value}
    layers = read_layers(fields._replace(values={**fields.values, **first}), **options)
    counts, widths = (fields.numbers(key) or [] for key in ("moe_num_experts", "moe_intermediate_size"))
    if len(counts) != 2 or len(widths) != 2:
        raise fields.wrong("moe_num_experts", "a list of two numbers, as moe_intermediate_size")
    more = round(counts[1] * widths[1] / widths[0])  # experts of text with as many weights
    return [
        layer._replace(feed_forward=replace(network, experts=counts[0] + more, reached=counts[0]))
        if isinstance(network := layer.feed_forward, ExpertFeedForward)
        else layer
        for layer in layers
    ]


def read_gemma4(fields: parts.Fields) -> list[parts.Layer]:
    """Gemma 4: layers that see everything have wider and fewer heads; experts may run parallel to the dense half. The
    last layers of E2B and E4B read the KV cache of the last layer of their kind before them, and all layers add an
    embedding of their own.
    """
    windowed = parts.listed_windows(fields) or [(index + 1) % 6 != 0 for index in range(fields.layers)]
    local = parts.grouped_attention(fields, window=fields.positive("sliding_window"), qk_norm=True)
    everywhere = _global_attention(fields, local)
    dense = parts.dense_feed_forward(fields)
    networks: list[FeedForward] = [dense, replace(dense, inter=2 * dense.inter)]
    norms, width = 4, fields.count("hidden_size_per_layer_input")
    if fields.flag("enable_moe_block"):
        keys = ("num_experts", "moe_intermediate_size", "expert_intermediate_size")
        networks = [parts.routed_experts(fields, *keys, dense_inter=each.inter) for each in networks]
        norms = 7  # with experts, a layer norms the input and output of either feed-forward once more
    rows, first = fields.positive("vocab_size"), max(fields.layers - fields.count("num_kv_shared_layers"), 0)
    if width and fields.positive("vocab_size_per_layer_input", default=rows) != rows:
        raise fields.wrong("vocab_size_per_layer_input", f"as large as vocab_size = {rows}")
    if not {*windowed[first:]} <= {*windowed[:first]}:
        raise fields.wrong("num_kv_shared_layers", "so small that a layer of each kind before them has a KV cache")
    kinds = [(local if here else everywhere, index >= first) for index, here in enumerate(windowed)]
    doubles = fields.flag("use_double_wide_mlp")
    norms += 1 if width else 0  # what a layer adds of its own embedding is normed
    return [
        parts.Layer(replace(mixer, borrows=later), networks[later and doubles], norms, input_width=width)
        for mixer, later in kinds
    ]


def _global_attention(fields: parts.Fields, local: GroupedAttention) -> GroupedAttention:
    head_dim = fields.positive("global_head_dim", default=local.head_dim)
    shared = fields.flag("attention_k_eq_v")
    # Only layers with keys that serve as values have a head count of their own.
    key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    return replace(
        local,
        kv_heads=parts.checked_kv_heads(fields, key, local.heads) if fields.raw(key) is not None else local.kv_heads,
        head_dim=head_dim, value_dim=head_dim,
        rotary_dim=parts.rotary_dim(fields.section("rope_parameters").section("full_attention"), head_dim), window=0,
        shared_key_value=shared,
    )  # fmt: skip


def read_llama4(fields: parts.Fields) -> list[parts.Layer]:
    """Llama 4: attention in chunks where there are rotary positions, experts in every n-th layer."""
    layers = fields.layers
    rotated = fields.numbers("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(layers)]
    rotated = fields.a_layer("no_rope_layers", rotated)
    step = fields.positive("interleave_moe_layer_step", default=1)
    listed = fields.numbers("moe_layers")
    sparse_layers = set(range(step - 1, layers, step) if listed is None else listed)
    bias = fields.flag("attention_bias")
    attention = parts.grouped_attention(fields, qkv_bias=bias, output_bias=bias)
    everywhere = replace(attention, rotary_dim=0)
    window = parts.useful_window(fields, fields.count("attention_chunk_size", default=8192))
    chunked = replace(attention, window=window, qk_norm=fields.flag("use_qk_norm"), chunked=window > 0)
    inter = fields.positive("intermediate_size")
    sparse = parts.routed_experts(fields, "num_local_experts", "intermediate_size", shared_inter=inter)
    dense = DenseFeedForward(fields.positive("intermediate_size_mlp", default=inter))
    return [
        parts.Layer(chunked if rotated[index] else everywhere, sparse if index in sparse_layers else dense)
        for index in range(layers)
    ]


def read_mimo_v2_flash(fields: parts.Fields) -> list[parts.Layer]:
    """MiMo-V2-Flash: windowed layers with sinks and more key-value heads, values narrower than keys."""
    windowed = fields.a_layer("hybrid_layer_pattern", fields.numbers("hybrid_layer_pattern") or [0] * fields.layers)
    everywhere = _mimo_attention(fields, "", "add_full_attention_sink_bias", 0)
    sliding = _mimo_attention(fields, "swa_", "add_swa_attention_sink_bias", fields.positive("sliding_window"))
    halves = zip(windowed, parts.expert_networks(fields), strict=True)
    return [parts.Layer(sliding if window else everywhere, network) for window, network in halves]


def _mimo_attention(fields: parts.Fields, prefix: str, sinks: str, window: int) -> GroupedAttention:
    own = {key: fields.raw(f"{prefix}{key}", key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")}
    flags = {"qkv_bias": fields.flag("attention_bias"), "sinks": fields.flag(sinks)}
    attention = parts.grouped_attention(fields._replace(values={**fields.values, **own}), window=window, **flags)
    value_dim = fields.positive(f"{prefix}v_head_dim", "v_head_dim", default=attention.head_dim)
    return replace(attention, value_dim=value_dim)


def read_indexed(fields: Fields) -> list[Layer]:
    """DeepSeek-V3.2 and GLM-5: latent attention with an indexer, which layers of GLM-5.2 share."""
    sizes, topk = latent_sizes(fields), fields.positive("index_topk")
    indexer = Indexer(
        heads=fields.positive("index_n_heads"), head_dim=fields.positive("index_head_dim"), rope_dim=sizes["rope_dim"],
        query_rank=fields.positive("q_lora_rank"), topk=topk,
    )  # fmt: skip
    full = SparseLatentAttention(**sizes, topk=topk, indexer=indexer)
    shared = SparseLatentAttention(**sizes, topk=topk)
    pairs = zip(_has_indexer(fields), expert_networks(fields), strict=True)
    return [Layer(full if own else shared, network) for own, network in pairs]


def indexed_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layer of a head that predicts further tokens: it has an indexer, whatever the last layer of the model has."""
    return (layers[-1]._replace(mixer=layers[0].mixer),)


def _has_indexer(fields: Fields) -> list[bool]:
    """Whether each layer has an indexer: by letters, interval or kinds (vLLM 0.25, ``models/deepseek_v2.py``)."""
    layers = range(fields.layers)
    pattern = fields.word("index_topk_pattern")
    if pattern:
        # Layers beyond the pattern have an indexer of their own.
        own = [index >= len(pattern) or pattern[index] != "S" for index in layers]
    elif fields.raw("index_topk_freq") is None and fields.raw("indexer_types") is not None:
        own = [name != "shared" for name in fields.a_layer("indexer_types", fields.words("indexer_types"))]
    else:
        every, offset = fields.positive("index_topk_freq", default=1), fields.count("index_skip_topk_offset", default=2)
        own = [max(index - offset + 1, 0) % every == 0 for index in layers]
    if not own[0]:
        raise FileFormatError(fields.where, "the first layer has no indexer, and none before it to share")
    return own


def read_compressed(fields: Fields) -> list[Layer]:
    """Layers compress 0 tokens (the window alone), 4 or 128; the first choose experts by a table of the vocabulary."""
    ratios = fields.numbers("compress_ratios") or [0] * fields.layers
    kinds = {ratio: _compressed(fields, ratio) for ratio in set(fields.a_layer("compress_ratios", ratios))}
    experts, streams = usual_experts(fields), fields.positive("hc_mult", default=1)
    by_table = replace(experts, router_bias=False)
    first = fields.count("num_hash_layers")
    return [
        Layer(kinds[ratios[index]], by_table if index < first else experts, streams=streams)
        for index in range(fields.layers)
    ]


def compressed_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layer of a head that predicts further tokens compresses nothing."""
    return (layers[-1]._replace(mixer=_compressed(fields, 0)),)


def _compressed(fields: Fields, ratio: int) -> CompressedAttention:
    head_dim, rope_dim = fields.positive("head_dim"), fields.positive("qk_rope_head_dim")
    # fp8 and scales, and the rotated part in bf16.
    quantised = head_dim - rope_dim
    quantised_group = 64  # Values in fp8 that share a scale of one byte; there is room for one scale more
    entry = quantised + 2 * rope_dim + quantised // quantised_group + 1
    indexed = 4  # Layers that compress this many tokens to an entry have an indexer; others look at all entries
    return CompressedAttention(
        **fields.sizes(heads="num_attention_heads", q_lora_rank="q_lora_rank", o_lora_rank="o_lora_rank"),
        **fields.sizes(o_groups="o_groups", window="sliding_window"), head_dim=head_dim, rope_dim=rope_dim,
        entry_bytes=entry, compressor=Compressor(ratio, head_dim, entry) if ratio > 1 else None,
        indexer=_indexer(fields, ratio) if ratio == indexed else None,
    )  # fmt: skip


def _indexer(fields: Fields, ratio: int) -> Indexer:
    head_dim = fields.positive("index_head_dim")
    index_scale_bytes = 4
    return Indexer(
        **fields.sizes(heads="index_n_heads", rope_dim="qk_rope_head_dim", query_rank="q_lora_rank", topk="index_topk"),
        head_dim=head_dim,
        compressor=Compressor(ratio, head_dim, head_dim + index_scale_bytes),
    )


def read_minimax_m3(fields: Fields) -> list[Layer]:
    """Which layers have experts and which choose blocks are two lists; by default the first three have neither."""
    plain = grouped_attention(fields, qk_norm=fields.flag("use_qk_norm", True))
    settings = fields.section("sparse_attention_config")
    shared_sizes = ("heads", "kv_heads", "head_dim", "value_dim", "rotary_dim", "qk_norm")
    sparse = BlockSparseAttention(
        **{name: getattr(plain, name) for name in shared_sizes},
        index_heads=settings.positive("sparse_num_index_heads", default=plain.kv_heads),
        index_dim=settings.positive("sparse_index_dim", default=plain.head_dim),
        blocks=settings.positive("sparse_topk_blocks", default=16),
        block=settings.positive("sparse_block_size", default=128),
    )
    experts = usual_experts(fields, router_bias="use_routing_bias")
    dense = DenseFeedForward(fields.positive("dense_intermediate_size"))
    dense_layers = 3
    usual = [int(index >= dense_layers) for index in range(fields.layers)]
    chooses = fields.a_layer("sparse_attention_freq", settings.numbers("sparse_attention_freq") or usual)
    is_routed = fields.a_layer("moe_layer_freq", fields.numbers("moe_layer_freq") or usual)
    halves = zip(chooses, is_routed, strict=True)
    return [Layer(sparse if blocks else plain, experts if routed else dense) for blocks, routed in halves]
