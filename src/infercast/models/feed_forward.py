"""Feed-forward halves of layers: dense networks, routed experts, and none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from infercast.lazy_classes import dataclass
from infercast.models.layout import ParallelLayout, Shard
from infercast.ops import Call, Collective, Gemm, MoE
from infercast.ops.op import (
    Quantity,
    Size,
    bytes_of,
    copy,
    gated_activation,
    norm,
    output_gate,
    plain_activation,
    quantise,
    routing,
    weighted_sum,
)

Multiples = tuple[int, int]  # What kernels pad the hidden size and the width of experts to
UNPADDED: Multiples = (1, 1)
MODULES = ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj", "mixer.up_proj")


class FeedForward(ABC):
    """The half of a layer that treats every token by itself; a kind leaves out the methods of what it has not."""

    __slots__ = ()

    inter: int  # Its width, or that of each routed expert
    experts: int  # Routed experts; 0: none
    shared_inter: int  # Width of all shared experts together, which serve every token; 0: none
    is_empty: ClassVar[bool] = False  # No feed-forward at all: no kernels, no norm before, no all-reduce after it
    takes_quantised: ClassVar[bool] = False  # Whether the norm before it also quantises, if activations are quantised

    @property
    def has_plain_groups(self) -> bool:
        """Whether routed experts are chosen from groups by plain scores, for which engines have no kernel."""
        return False

    @property
    @abstractmethod
    def description(self) -> str:
        """A few words for the page of one model."""

    @property
    def modules(self) -> Mapping[str, list[tuple[str, ...]]]:
        """Linear modules in a checkpoint by part, from the layer's name on: what different families call each."""
        return {}

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """Widths of what computes every token, which the GPUs of a tensor-parallel group split."""
        return ()

    def matrices(self, hidden: int) -> int:
        return 0

    def expert_values(self, hidden: int, *, active: bool = False) -> tuple[int, int]:
        """Weights of the routed experts, or of those that one token meets: in matrices, and in biases."""
        return 0, 0

    def vectors(self, hidden: int) -> int:
        """Routers, gates and biases, those of the experts left out: on every GPU, in the base format."""
        return 0

    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        return 0.0

    def live_values(self, shard: Shard) -> float:
        """Values a token that are alive at once while it is computed."""
        return 0.0

    def calls(self, shard: Shard, tokens: Size) -> list[Call]:
        return []


def hottest_load(tokens: Size, topk: int, layout: ParallelLayout) -> Size:
    """Tokens that would load every GPU as the hottest one is loaded; all are loaded alike unless experts are spread.
    With uniform routing the largest of n Poisson counts lies about sqrt(2 ln n) deviations above their mean.
    """
    together = tokens * layout.sharing if layout.sharing > 1 else tokens
    if layout.expert_gpus == 1:
        return together
    gpus = layout.expert_gpus
    rows = together * topk / gpus
    above = np.sqrt(2 * np.log(gpus) * (1 - 1 / gpus) / np.maximum(rows, 1e-9))
    return np.asarray(together * np.minimum(1 + above, gpus))


def exchange_calls(shard: Shard, topk: int, tokens: Size, width: int) -> list[Call]:
    """Tokens of all copies, ``width`` values each, to the GPUs of their experts, and results back."""
    layout, weights = shard.layout, shard.weights
    # With spread experts all GPUs bring tokens together, a share of a copy's each; otherwise one GPU of every copy.
    gpus = layout.expert_gpus if layout.experts else layout.sharing
    sent, returned = (int(width * bytes_of(dtype)) for dtype in (weights.activation_experts, weights.base))
    if layout.all_to_all:
        reached = gpus * (1 - (1 - 1 / gpus) ** topk)
        copies = np.asarray(tokens * reached / layout.tensor)  # GPUs of one copy send a share of its tokens each
        dispatch = Collective("all_to_all", copies * sent, gpus)
        combine = Collective("all_to_all", copies * returned, gpus)
    else:
        together = tokens * layout.sharing
        dispatch = Collective("all_gather", together * sent, gpus)
        combine = Collective("reduce_scatter", together * returned, gpus)
    return [Call("experts_dispatch", dispatch), Call("experts_combine", combine)]


@dataclass(frozen=True, slots=True)
class DenseFeedForward(FeedForward):
    """An ordinary feed-forward network, gated (three matrices) or not (two)."""

    inter: int
    gated: bool = True
    bias: bool = False
    squared: bool = True  # Without a gate: a squared ReLU, for which vLLM has no kernel: one cuts, one squares

    takes_quantised = True
    experts = shared_inter = 0

    @property
    def description(self) -> str:
        return f"feed-forward of {self.inter:,}"

    @property
    def modules(self) -> dict[str, list[tuple[str, ...]]]:
        """One stands for all: published checkpoints treat them alike."""
        return {"feed_forward": [MODULES]}

    @property
    def dense_widths(self) -> tuple[int, ...]:
        return (self.inter,)

    def matrices(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.inter

    def vectors(self, hidden: int) -> int:
        return (2 if self.gated else 1) * self.inter + hidden if self.bias else 0

    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        weights = shard.weights
        return self.matrices(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.feed_forward)

    def live_values(self, shard: Shard) -> float:
        """Gate and up, and the activation between them and down."""
        return 3 * shard.layout.share(self.inter)

    def calls(self, shard: Shard, tokens: Size) -> list[Call]:
        return dense_calls(shard, "", self.inter, self.gated, tokens, self.squared)


def dense_calls(shard: Shard, prefix: str, inter: int, gated: bool, tokens: Size, squared: bool = True) -> list[Call]:
    """Gate and up in one product, the activation, then down."""
    weights, width = shard.weights, shard.layout.share(inter)
    activation = gated_activation if gated else plain_activation
    up_name = f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj"
    # The norm before and the activation between quantise what they write: the engine's compiler fuses it into them.
    up = shard.linear(up_name, tokens, width * (2 if gated else 1), shard.hidden, "feed_forward", quantised=True)
    down = shard.linear(f"{prefix}down_proj", tokens, shard.hidden, width, "feed_forward", quantised=True)
    handed_on = weights.base if weights.quantised_apart else weights.activation_feed_forward
    written = activation(tokens, width, weights.base, handed_on)
    return [*up, Call(f"{prefix}activation", written, 2 if squared and not gated else 1), *down]


@dataclass(frozen=True, slots=True)
class NoFeedForward(FeedForward):
    """The missing half of a layer of Nemotron-H, or of one that pruning left without feed-forward (DeciLM)."""

    inter = experts = shared_inter = 0
    is_empty = True
    description = "no feed-forward"


SHARED = (
    "mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "block_sparse_moe.shared_experts",
    "mixer.shared_experts", "ffn.shared_experts",
)  # fmt: skip
ROUTED = ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts", "ffn.experts")
WHOLE_SHARED_EXPERTS = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration", "NemotronHForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip
"""Where GPUs compute shared experts whole, for a share of the tokens each, once experts are spread over copies."""

WEIGHED_ROWS = 128  # Rows that multiplying takes as long for as reading the weights of an expert does, about


@dataclass(frozen=True, slots=True)
class ExpertFeedForward(FeedForward):
    experts: int
    topk: int
    inter: int
    shared_inter: int = 0
    shared_gate: bool = False  # A learned scalar gate on the shared experts (Qwen2-MoE)
    router_bias: bool = False
    expert_bias: bool = False
    dense_inter: int = 0  # Width of a dense feed-forward that runs in parallel with the experts (Gemma 4); 0: none
    gated: bool = True  # Whether experts, shared ones too, have a gate (not in Nemotron 3)
    latent: int = 0
    """Width that tokens are projected down to around the routed experts; 0: none (Nemotron 3 Super, Ultra, Kimi-K3)."""
    latent_norm: bool = False  # What comes out of the experts is normed before it is projected up (Kimi-K3)
    grouped_choice: bool = False  # Experts are chosen from groups (DeepSeek), by scores in the router's own format
    reached: int | None = None
    """How many experts tokens go to at all: fewer without training, or where others are for images (ERNIE 4.5 VL)."""
    routing: str = "uniform"  # How tokens spread over experts: ``uniform``, ``balanced`` or ``power_law_`` and exponent
    wide_router: bool = False  # The router multiplies in fp32 (GLM-5) ...
    router_slower: tuple[tuple[float, float], ...] = ((1.0, 1.0),)  # ... and of it what `slower` is of experts
    slower: tuple[tuple[float, float], ...] = ()
    """Numbers of tokens, and how many times as long the experts take there because of how an engine launches them."""
    routing_slower: tuple[tuple[float, float], ...] = ()  # The same of the choice of experts
    joined: int = 0  # Shared experts that an engine multiplies with the routed ones, as experts of every token
    beside: int = 0  # Up to so many tokens shared experts run on a stream of their own while the routed ones do

    @property
    def has_plain_groups(self) -> bool:
        """Whether the choice is from groups by plain scores (DeepSeek-V2), not by corrected ones."""
        return self.grouped_choice and not self.router_bias

    @property
    def description(self) -> str:
        shared = f" and {self.shared_inter:,} shared" if self.shared_inter else ""
        latent = f" behind {self.latent:,}" if self.latent else ""
        return f"{self.topk} of {self.experts} experts of {self.inter:,}{latent}{shared}"

    @property
    def modules(self) -> dict[str, list[tuple[str, ...]]]:
        """One matrix stands for each of dense, shared and routed experts."""
        beside: list[tuple[str, ...]] = [MODULES] if self.dense_inter else []
        beside += [tuple(f"{home}.up_proj" for home in SHARED)] if self.shared_inter else []
        beside_dense = ("experts", "moe.experts")  # Experts beside a dense feed-forward that is called mlp (Gemma 4)
        homes = beside_dense if self.dense_inter else ROUTED
        routed = tuple(f"{home}.0.{matrix}" for home in homes for matrix in ("up_proj", "w1"))
        return {"feed_forward": beside, "experts": [routed]}

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """What runs in parallel with the routed experts: shared ones, and a dense network."""
        return self.shared_inter, self.dense_inter

    @property
    def _products(self) -> int:
        return 3 if self.gated else 2

    def matrices(self, hidden: int) -> int:
        """What runs in parallel with the routed experts, and before and after them."""
        return hidden * (self._products * sum(self.dense_widths) + 2 * self.latent)

    def expert_values(self, hidden: int, *, active: bool = False) -> tuple[int, int]:
        """Gate, up and down of each, and biases where they have them."""
        count, width = self.topk if active else self.experts, self.latent or hidden
        biases = count * ((self._products - 1) * self.inter + width) if self.expert_bias else 0
        return count * self._products * width * self.inter, biases

    def vectors(self, hidden: int) -> int:
        """The router, its bias, and the gate of the shared experts."""
        router = self.experts * (hidden + (1 if self.router_bias else 0))
        return router + (hidden if self.shared_gate else 0) + (self.latent if self.latent_norm else 0)

    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        """A share of the width of each expert or whole experts, as their kernels pad them."""
        weights, layout, hidden = shard.weights, shard.layout, shard.hidden
        whole = layout.experts and layout.sharing > 1 and shard.architecture in WHOLE_SHARED_EXPERTS
        dense = self.shared_inter / (1 if whole else layout.tensor) + self.dense_inter / layout.tensor
        beside = hidden * (self._products * dense + 2 * self.latent)
        return beside * weights.stored_bytes(weights.feed_forward) + self.routed_bytes(shard, multiples)

    def routed_bytes(self, shard: Shard, multiples: Multiples) -> float:
        """Of these the routed experts, copies among them."""
        weights, layout = shard.weights, shard.layout
        padded = _rounded(self.latent or shard.hidden, multiples[0])
        inter = _rounded(layout.share_expert_width(self.inter), multiples[1])
        local = (self.experts + layout.redundant) / layout.expert_gpus
        biases = ((self._products - 1) * inter + padded) * local if self.expert_bias else 0.0
        matrices = self._products * padded * inter * local
        return matrices * weights.stored_bytes(weights.experts) + biases * weights.stored_bytes(weights.base)

    def live_values(self, shard: Shard) -> float:
        layout, hidden = shard.layout, self.latent or shard.hidden
        inter = layout.share_expert_width(self.inter)
        # The fused experts keep one buffer for both products' outputs and one for the activation between them.
        routed = self.topk * (max((self._products - 1) * inter, hidden) + inter)
        beside = self._products * layout.share(sum(self.dense_widths))
        # Where copies share experts, every GPU sees the tokens of all copies.
        return (routed + hidden) * layout.sharing + beside

    def calls(self, shard: Shard, tokens: Size) -> list[Call]:
        calls = self._routed_calls(shard, tokens)
        beside = 0
        for prefix, inter in (("shared_", 0 if self.joined else self.shared_inter), ("dense_", self.dense_inter)):
            if inter:
                dense = dense_calls(shard, prefix, inter, self.gated, tokens)
                calls += [replace(call, beside=tokens <= self.beside) for call in dense] if self.beside else dense
                beside += 1
        if self.shared_gate and self.shared_inter and not self.joined:
            calls += self._gate_calls(shard, tokens)
        if beside:
            op = weighted_sum(tokens, shard.hidden, terms=1 + beside, dtype=shard.weights.base)
            calls.append(Call("expert_sum", op))
        return calls

    def _gate_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """The scalar that shared experts are multiplied by: a product of one column, its sigmoid, the multiplying."""
        base = shard.weights.base
        return [
            Call("shared_gate", Gemm(tokens, 1, shard.hidden, base)),
            Call("shared_sigmoid", plain_activation(tokens, 1, base)),
            Call("shared_gating", output_gate(tokens, shard.hidden, 1, base)),
        ]

    def _slower(self, tokens: Size) -> Quantity:
        """By steps: a configuration holds up to a number of tokens; and by what shared experts add."""
        # A shared expert among the routed ones, as a share of these: its weights, and a row for every token.
        count = np.asarray(tokens, dtype=float)
        hit = self.experts * (1.0 - (1.0 - 1.0 / self.experts) ** (count * self.topk))
        beside = 1.0 + self.joined * np.asarray((WEIGHED_ROWS + count) / (WEIGHED_ROWS * hit + self.topk * count))
        if not self.slower:
            return beside
        sizes, factors = np.array(self.slower).T
        return np.asarray(np.interp(np.log2(tokens), np.log2(sizes), factors)) * beside

    def _router_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """The scores of all experts, in the base format or in fp32."""
        base, hidden = shard.weights.base, shard.hidden
        if not self.wide_router:
            return [Call("router", Gemm(tokens, self.experts, hidden, base))]
        widen = copy(tokens, bytes_of(base) * hidden, 4.0 * hidden)
        wide = Gemm(tokens, self.experts, hidden, "fp32", out_dtype="fp32")
        rows, slower = np.array(self.router_slower).T
        return [Call("router_widen", widen), Call("router", wide, slower=np.interp(tokens, rows, slower))]

    def _routed_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Router and fused experts: each expert's width split over the GPUs, or whole experts spread over them."""
        weights, layout = shard.weights, shard.layout
        calls = self._router_calls(shard, tokens)
        slower = np.interp(tokens, *np.array(self.routing_slower).T) if self.routing_slower else 1.0
        calls.append(Call("routing", routing(tokens, self.experts, self.topk, weights.base), slower=slower))
        width = self.latent or shard.hidden
        if self.latent:
            calls += shard.linear("latent_down", tokens, width, shard.hidden, "feed_forward")
        if weights.activation_experts != weights.base:
            op = quantise(tokens, width, weights.base, weights.activation_experts)
            calls.append(Call("experts_quantise", op))
        held = (chosen := self.reached or self.experts) + layout.redundant
        is_moved = layout.balanced and self.routing.startswith("power_law_")
        hidden, inter = _padded(shard, width, layout.share_expert_width(self.inter))
        experts = MoE(
            hottest_load(tokens, self.topk, layout),
            hidden=hidden,
            inter=inter,
            experts=held if layout.balanced else chosen,  # copies that nothing was moved to stay idle
            topk=self.topk,
            local_experts=-(-held // layout.expert_gpus) if layout.experts else None,
            dtype=weights.activation_experts,
            weight_dtype=weights.experts,
            gated=self.gated,
            kernel=weights.experts_kernel,
            routing=f"{self.routing}/eplb{layout.redundant}" if is_moved else self.routing,
        )
        calls.append(Call("experts", experts, slower=self._slower(tokens * layout.sharing)))
        if layout.sharing > 1:
            calls += exchange_calls(shard, self.topk, tokens, width)
        if self.latent_norm:
            normed = norm(tokens, width, residual=False, dtype=weights.base, out_dtype=weights.base)
            calls.append(Call("latent_norm", normed))
        if self.latent:
            calls += shard.linear("latent_up", tokens, shard.hidden, width, "feed_forward")
        return calls


def _padded(shard: Shard, hidden: int, inter: int) -> Multiples:
    """Hidden size and width as kernels for mxfp4 experts have them: no kernel computes a width that 64 does not divide,
    and Marlin's and those with activations in 8 bits need multiples of 256 and 128.
    """
    weights = shard.weights
    if weights.experts != "mxfp4":
        return hidden, inter
    if weights.experts_kernel != "marlin" and weights.activation_experts != "fp8":
        return hidden, _rounded(inter, 64)
    return _rounded(hidden, 256), _rounded(inter, 128)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
