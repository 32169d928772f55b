"""The feed-forward half of a layer, lowered to kernels."""

from __future__ import annotations

import numpy as np

from infercast.models.layout import ParallelLayout
from infercast.models.linear import linear
from infercast.models.spec import DenseFeedForward, ExpertFeedForward, ModelConfig, Stack
from infercast.ops import Call, Collective, Gemm, MoE
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import gated_activation, plain_activation, quantise, routing, weighted_sum
from infercast.ops.op import Size


def feed_forward_calls(config: ModelConfig, stack: Stack, layout: ParallelLayout, tokens: Size) -> list[Call]:
    """Dense feed-forward, or router, experts and whatever runs beside them."""
    spec = stack.feed_forward
    if isinstance(spec, DenseFeedForward):
        return _dense_calls(config, "", spec.inter, spec.gated, layout, tokens, stack.layers)
    calls = _expert_calls(config, spec, layout, tokens, stack.layers)
    beside = 0
    for prefix, inter in (("shared_", spec.shared_inter), ("dense_", spec.dense_inter)):
        if inter:
            calls += _dense_calls(config, prefix, inter, True, layout, tokens, stack.layers)
            beside += 1
    if beside:
        op = weighted_sum(tokens, config.hidden, terms=1 + beside, dtype=config.weights.base)
        calls.append(Call("expert_sum", op, stack.layers))
    return calls


def _dense_calls(
    config: ModelConfig, prefix: str, inter: int, gated: bool, layout: ParallelLayout, tokens: Size, layers: int
) -> list[Call]:
    """Gate and up in one product, the activation, then down."""
    weights = config.weights
    width = layout.share(inter)
    formats = (weights.feed_forward, weights.activation_feed_forward)
    activation = gated_activation if gated else plain_activation
    up_name = f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj"
    # The norm before and the activation between quantise what they write: the engine's compiler fuses it into them.
    up_width = width * (2 if gated else 1)
    up = linear(up_name, tokens, up_width, config.hidden, formats, weights.base, layers, quantised=True)
    down = linear(f"{prefix}down_proj", tokens, config.hidden, width, formats, weights.base, layers, quantised=True)
    written = activation(tokens, width, weights.base, weights.activation_feed_forward)
    return [*up, Call(f"{prefix}activation", written, layers), *down]


def _expert_calls(
    config: ModelConfig, spec: ExpertFeedForward, layout: ParallelLayout, tokens: Size, layers: int
) -> list[Call]:
    """Router and fused experts: each expert's width split over the GPUs, or whole experts spread over them."""
    weights = config.weights
    router = Gemm(tokens, spec.experts, config.hidden, weights.base)
    calls = [Call("router", router, layers)]
    calls.append(Call("routing", routing(tokens, spec.experts, spec.topk, weights.base), layers))
    if weights.activation_experts != weights.base:
        op = quantise(tokens, config.hidden, weights.base, weights.activation_experts)
        calls.append(Call("experts_quantise", op, layers))
    chosen = spec.reached or spec.experts
    hidden, inter = _padded(config, layout.share_expert_width(spec.inter))
    experts = MoE(
        hottest_load(tokens, spec, layout),
        hidden=hidden,
        inter=inter,
        experts=chosen,
        topk=spec.topk,
        local_experts=-(-chosen // layout.expert_gpus) if layout.experts else None,
        dtype=weights.activation_experts,
        weight_dtype=weights.experts,
        kernel=weights.experts_kernel,
        routing=spec.routing,
    )
    calls.append(Call("experts", experts, layers))
    if layout.data > 1:
        calls += _exchange_calls(config, spec, layout, tokens, layers)
    return calls


def hottest_load(tokens: Size, spec: ExpertFeedForward, layout: ParallelLayout) -> Size:
    """Tokens that would load every GPU as the hottest one is loaded.

    Copies bring as many tokens each. Where every GPU holds a share of each expert, all are loaded alike. With spread
    experts and uniform routing the rows of a GPU are close to a Poisson count; the largest of n such counts lies about
    sqrt(2 ln n) deviations above their mean, and no GPU gets more than all rows.
    """
    together = tokens * layout.data if layout.data > 1 else tokens
    if layout.expert_gpus == 1:
        return together
    gpus = layout.expert_gpus
    rows = together * spec.topk / gpus
    above = np.sqrt(2 * np.log(gpus) * (1 - 1 / gpus) / np.maximum(rows, 1e-9))
    return np.asarray(together * np.minimum(1 + above, gpus))


def _padded(config: ModelConfig, inter: int) -> tuple[int, int]:
    """Hidden size and width as kernels for 4-bit experts need them: multiples of 256 and 128."""
    weights = config.weights
    if weights.experts != "mxfp4" or (weights.experts_kernel != "marlin" and weights.activation_experts != "fp8"):
        return config.hidden, inter
    return -(-config.hidden // 256) * 256, -(-inter // 128) * 128


def combines_experts(stack: Stack, layout: ParallelLayout) -> bool:
    """Whether what brings results back to several copies also adds up what the GPUs of one copy have computed."""
    return layout.experts and layout.data > 1 and isinstance(stack.feed_forward, ExpertFeedForward)


def _exchange_calls(
    config: ModelConfig, spec: ExpertFeedForward, layout: ParallelLayout, tokens: Size, layers: int
) -> list[Call]:
    """Tokens of all copies to the GPUs of their experts, and results back.

    By default an engine gathers all tokens everywhere and scatters the sums. Otherwise each GPU sends its tokens to the
    GPUs that hold one of their ``topk`` experts, fewer than ``topk`` where several lie on the same.
    """
    gpus = layout.exchanging_gpus
    sent, returned = (
        int(config.hidden * bytes_of(dtype)) for dtype in (config.weights.activation_experts, config.weights.base)
    )
    if layout.all_to_all:
        reached = gpus * (1 - (1 - 1 / gpus) ** spec.topk)
        copies = np.asarray(tokens * reached / layout.tensor)  # GPUs of one copy send a share of its tokens each
        dispatch = Collective("all_to_all", copies * sent, gpus)
        combine = Collective("all_to_all", copies * returned, gpus)
    else:
        together = tokens * layout.data
        dispatch = Collective("all_gather", together * sent, gpus)
        combine = Collective("reduce_scatter", together * returned, gpus)
    return [Call("experts_dispatch", dispatch, layers), Call("experts_combine", combine, layers)]
