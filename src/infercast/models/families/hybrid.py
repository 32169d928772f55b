"""Families with recurrent layers: Qwen3-Next, Granite 4, Bamba, Falcon-H1, Nemotron, Kimi-Linear, LFM2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.families.attention import latent_sizes, plain_networks
from infercast.models.families.fields import (
    MOST_LAYERS,
    Fields,
    Layer,
    dense_feed_forward,
    expert_networks,
    grouped_attention,
    routed_experts,
    usual_experts,
)
from infercast.models.feed_forward import DenseFeedForward, FeedForward, NoFeedForward
from infercast.models.mixers.mixer import GroupedAttention, KimiLatentAttention, Mixer, NoMixer, SideBySide
from infercast.models.mixers.recurrent import GatedConvolution, GatedDeltaNet, KimiDeltaAttention, Mamba1, Mamba2

STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": ""}
RECURRENT, FULL = "linear_attention", "full_attention"
NEWER = {RECURRENT: "mamba", FULL: "attention", "sparse": "moe", "dense": "mlp"}
"""Kinds of layers as newer versions of the transformers library call them."""
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in ``hybrid_override_pattern``, as newer files call them in ``layers_block_type``."""


def state_dtype(fields: Fields, key: str, default: str = "auto") -> str:
    name = fields.word(key, default)
    if name not in STATE_DTYPES:
        raise fields.wrong(key, f"one of {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES[name]


def read_qwen_hybrid(fields: Fields) -> list[Layer]:
    """Qwen3-Next, Qwen3.5 and 3.6: gated delta nets, and gated attention in every fourth layer."""
    delta_net = GatedDeltaNet(
        heads=fields.positive("linear_num_value_heads"), key_heads=fields.positive("linear_num_key_heads"),
        key_dim=fields.positive("linear_key_head_dim"), value_dim=fields.positive("linear_value_head_dim"),
        taps=fields.positive("linear_conv_kernel_dim", default=4), state_dtype=state_dtype(fields, "mamba_ssm_dtype"),
    )  # fmt: skip
    if delta_net.heads % delta_net.key_heads:
        raise fields.wrong("linear_num_value_heads", f"a multiple of linear_num_key_heads = {delta_net.key_heads}")
    attention = grouped_attention(fields, qk_norm=True, qkv_bias=fields.answer("attention_bias"))
    if fields.flag("attn_output_gate", default=True):
        attention = replace(attention, gate_width=attention.value_dim)
    shared_gate = fields.count("shared_expert_intermediate_size") > 0
    has_experts = fields.count("num_experts") > 0
    networks = expert_networks(fields, shared_gate=shared_gate) if has_experts else plain_networks(fields)
    recurrent = recurrent_layers(fields, fields.positive("full_attention_interval", default=4))
    return [Layer(delta_net if here else attention, network) for here, network in zip(recurrent, networks, strict=True)]


def recurrent_layers(fields: Fields, interval: int) -> list[bool]:
    """Whether each layer is recurrent: as ``layer_types`` says, or all but every ``interval``-th."""
    names = fields.known_kinds(fields.words("layer_types"), (RECURRENT, FULL))
    if not names:
        return [(index + 1) % interval != 0 for index in range(fields.layers)]
    return [name == RECURRENT for name in fields.a_layer("layer_types", names)]


def last_attention(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """A head that predicts further tokens is a layer like the last one with attention."""
    return [next(layer for layer in reversed(layers) if isinstance(layer.mixer, GroupedAttention))]


def read_kimi_linear(fields: Fields) -> list[Layer]:
    """Layers are counted from one in the lists that say which are which."""
    settings = fields.section("linear_attn_config")
    delta = KimiDeltaAttention(
        heads=settings.positive("num_heads"), head_dim=settings.positive("head_dim"),
        taps=settings.positive("short_conv_kernel_size", default=4), full_rank_gate=settings.flag("use_full_rank_gate"),
    )  # fmt: skip
    latent = KimiLatentAttention(**latent_sizes(fields), gated=fields.flag("mla_use_output_gate"))
    recurrent = settings.numbers("kda_layers")
    if recurrent is None:
        raise FileFormatError(settings.where, "the field kda_layers is missing; a list of layers from 1 on is needed")
    streams = 0
    if block := fields.count("attn_res_block_size"):
        # Mean number of earlier sums that each norm weighs (Kimi-K3), one for each block of layers.
        streams = max(1, round(sum(-(-index // block) for index in range(fields.layers)) / fields.layers))
    experts = usual_experts(fields, router_bias=True, latent=fields.count("routed_expert_hidden_size"))
    experts = replace(experts, latent_norm=experts.latent > 0 and fields.flag("latent_moe_use_norm"))
    networks = enumerate(expert_networks(fields, experts), start=1)
    return [Layer(delta if place in recurrent else latent, each, residuals=streams) for place, each in networks]


def read_mamba(fields: Fields) -> list[Layer]:
    """Mamba, Falcon-Mamba and Mamba2: one state space a layer, and nothing else."""
    mixer = _mamba1(fields) if fields.raw("mamba_num_heads") is None else mamba2(fields)
    return [Layer(mixer, NoFeedForward(), 1)] * fields.layers


def read_jamba(fields: Fields) -> list[Layer]:
    """Jamba: Mamba, attention without positions once a period, and experts in every other layer."""
    period, offset = fields.positive("attn_layer_period", default=8), fields.count("attn_layer_offset", default=4)
    attention, mamba = replace(grouped_attention(fields), rotary_dim=0), _mamba1(fields)
    networks = expert_networks(fields) if fields.count("num_experts") > 1 else plain_networks(fields)
    return [Layer(attention if index % period == offset else mamba, network) for index, network in enumerate(networks)]


def _mamba1(fields: Fields) -> Mamba1:
    hidden = fields.positive("hidden_size")
    rank = fields.raw("mamba_dt_rank", "time_step_rank")
    return Mamba1(
        channels=int(hidden * fields.number("mamba_expand", fields.number("expand", 2))),
        state_size=fields.positive("mamba_d_state", "state_size", default=16),
        rank=-(-hidden // 16) if rank in (None, "auto") else fields.positive("mamba_dt_rank", "time_step_rank"),
        taps=fields.positive("mamba_d_conv", "conv_kernel", default=4),
        bias=fields.answer(["mamba_proj_bias", "use_bias"]),
        convolution_bias=fields.flag("mamba_conv_bias", fields.flag("use_conv_bias", default=True)),
    )


def read_lfm2(fields: Fields) -> list[Layer]:
    """LFM2: dense networks of two thirds of the width in the file, rounded up to a multiple."""
    return _lfm2_layers(fields, [_lfm2_network(fields)] * fields.layers)


def read_lfm2_moe(fields: Fields) -> list[Layer]:
    """LFM2-8B-A1B: the first layers dense, then experts."""
    return _lfm2_layers(fields, expert_networks(fields, router_bias="use_expert_bias"))


def _lfm2_layers(fields: Fields, networks: list[FeedForward]) -> list[Layer]:
    channels = fields.positive("conv_dim", "hidden_size")
    convolution = GatedConvolution(channels, fields.positive("conv_L_cache", default=3), bias=fields.flag("conv_bias"))
    attention = grouped_attention(fields, qk_norm=True)
    halves = zip(_attention_layers(fields), networks, strict=True)
    return [Layer(attention if here else convolution, network) for here, network in halves]


def _attention_layers(fields: Fields) -> list[bool]:
    names = fields.known_kinds(fields.words("layer_types"), ("conv", FULL))
    if not names:
        listed = set(fields.numbers("full_attn_idxs") or [])
        return [index in listed for index in range(fields.layers)]
    return [name == FULL for name in fields.a_layer("layer_types", names)]


def _lfm2_network(fields: Fields) -> DenseFeedForward:
    width = fields.positive("intermediate_size", "block_ff_dim")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        factor = fields.number("block_ffn_dim_multiplier", default=1.0)
        multiple = fields.positive("block_multiple_of", default=256)
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    return DenseFeedForward(width)


def read_granite_hybrid(fields: Fields) -> list[Layer]:
    """Granite 4: experts with a shared one, or that one alone; most models have no positions."""
    kinds = fields.a_layer("layer_types", fields.words("layer_types") or fields.words("layers_block_type"))
    kinds = fields.known_kinds([NEWER.get(kind, kind) for kind in kinds], ("mamba", "attention"))
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
    """Falcon-H1: attention and Mamba2 in parallel in every layer; most models do not norm its gate."""
    mixer = SideBySide(grouped_attention(fields), replace(_mamba(fields), normed=fields.flag("mamba_rms_norm")))
    return [Layer(mixer, network) for network in plain_networks(fields)]


def _layers(fields: Fields, attending: list[bool], networks: Sequence[FeedForward], rotated: bool) -> list[Layer]:
    attention, mamba = grouped_attention(fields), _mamba(fields)
    attention = attention if rotated else replace(attention, rotary_dim=0)
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
    kinds = [LETTERS.get(letter, letter) for letter in fields.word(pattern) or fields.words(names)]
    kinds = [NEWER.get(kind, kind) for kind in kinds]
    unknown = sorted({*kinds} - {*LETTERS.values()})
    if unknown:
        known = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
        raise UnsupportedModelError(f"{fields.where}: {unknown[0]!r} layers are not modelled; known: {known}")
    return kinds


def _half_layers(fields: Fields, kinds: Sequence[str]) -> list[Layer]:
    makers: dict[str, Callable[[], Mixer | FeedForward]] = {
        "mamba": lambda: mamba2(fields),
        "attention": lambda: replace(grouped_attention(fields), rotary_dim=0),
        "mlp": lambda: dense_feed_forward(fields, fields.flag("mlp_bias"), gated=False),
        "moe": lambda: usual_experts(fields, True, gated=False, latent=fields.count("moe_latent_size")),
    }
    halves = {kind: makers[kind]() for kind in dict.fromkeys(kinds)}
    return [
        Layer(half, NoFeedForward(), 1) if isinstance(half, Mixer) else Layer(NoMixer(), half, 1)
        for half in (halves[kind] for kind in kinds)
    ]


def mamba2(fields: Fields) -> Mamba2:
    """A state space from the keys of Nemotron-H; its state is kept in fp32 where the file does not say."""
    return Mamba2(
        **fields.sizes(heads="mamba_num_heads", head_dim="mamba_head_dim", state_size="ssm_state_size"),
        groups=fields.positive("n_groups", "mamba_n_groups", default=8), taps=fields.positive("conv_kernel", default=4),
        chunk=fields.positive("chunk_size", default=128),
        state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype", "float32"), bias=fields.flag("use_bias"),
        convolution_bias=fields.flag("use_conv_bias", default=True),
    )  # fmt: skip


def read_decilm(fields: Fields) -> list[Layer]:
    """Nemotron Super and Ultra of 2025: Llama with layers that lost their attention or a part of their feed-forward."""
    blocks = fields.a_layer("block_configs", fields.sections("block_configs"))
    return [_block(fields, block) for block in blocks]


def _block(fields: Fields, block: Fields) -> Layer:
    attention, network = block.section("attention"), block.section("ffn")
    for half in (attention, network):
        if half.flag("replace_with_linear"):
            raise UnsupportedModelError(f"{half.where}: halves replaced by one matrix are not modelled")
    mixer: Mixer = NoMixer()
    if not attention.flag("no_op"):
        plain = grouped_attention(fields)
        mixer = replace(plain, kv_heads=plain.heads // attention.positive("n_heads_in_group"))
    is_empty = network.flag("no_op")
    feed_forward = NoFeedForward() if is_empty else DenseFeedForward(_pruned_width(fields, network))
    return Layer(mixer, feed_forward, (not mixer.is_empty) + (not feed_forward.is_empty))


def _pruned_width(fields: Fields, block: Fields) -> int:
    """The width of a feed-forward from its share of the hidden size, in multiples of 256."""
    if block.raw("intermediate_size") is not None:
        return block.positive("intermediate_size")
    width = int(2 * block.number("ffn_mult") * fields.positive("hidden_size") / 3)
    return -(-width // 256) * 256
