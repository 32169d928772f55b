"""The feed-forward half of a layer, lowered to kernels."""

from __future__ import annotations

from infercast.models.layout import ParallelLayout
from infercast.models.linear import linear
from infercast.models.spec import DenseFeedForward, ExpertFeedForward, ModelConfig, Stack
from infercast.ops import Call, Gemm, MoE
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
    """Router and fused experts; each expert's width is split over the GPUs."""
    weights = config.weights
    router = Gemm(tokens, spec.experts, config.hidden, weights.base)
    calls = [Call("router", router, layers)]
    calls.append(Call("routing", routing(tokens, spec.experts, spec.topk, weights.base), layers))
    if weights.activation_experts != weights.base:
        op = quantise(tokens, config.hidden, weights.base, weights.activation_experts)
        calls.append(Call("experts_quantise", op, layers))
    experts = MoE(
        tokens,
        hidden=config.hidden,
        inter=layout.share(spec.inter),
        experts=spec.reached or spec.experts,
        topk=spec.topk,
        dtype=weights.activation_experts,
        weight_dtype=weights.experts,
    )
    return [*calls, Call("experts", experts, layers)]
