"""What a model is, once its config.json has been read: the facts that decide its kernels and its memory.

A model is an embedding, a few *stacks* of equal layers and a head. Layers of one stack have the same attention
and the same feed-forward, so everything is counted once a stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from infercast.ops.dtypes import bytes_of


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rotary_dim: int
    window: int = 0
    """A query sees the last ``window`` tokens; 0: all of them."""
    qk_norm: bool = False
    """Norms over each query and key head (Qwen3, Gemma 3)."""
    norm_across: bool = False
    """Those norms are over all heads together (MiniMax-M2), so GPUs that split the heads must add up squares."""
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    """A learned sink logit for each head (gpt-oss)."""
    shared_key_value: bool = False
    """Values are the keys: one projection serves both (Gemma 4 global layers); the cache still holds both."""
    chunked: bool = False
    """``window`` is a chunk (Llama 4): a query sees its own chunk from its first token on, not the last tokens."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): one compressed vector a token is cached for all heads."""

    heads: int
    kv_lora_rank: int
    q_lora_rank: int
    """0: queries are projected directly."""
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def latent_dim(self) -> int:
        """Values cached a token: the compressed key-value vector and the shared rotary key."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """An ordinary feed-forward network, gated (three matrices) or not (two)."""

    inter: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertFeedForward:
    """Routed experts, with shared ones beside them where the model has them."""

    experts: int
    topk: int
    inter: int
    shared_inter: int = 0
    """Width of all shared experts together; 0: none."""
    shared_gate: bool = False
    """A learned scalar gate on the shared experts (Qwen2-MoE)."""
    router_bias: bool = False
    expert_bias: bool = False
    dense_inter: int = 0
    """Width of a dense feed-forward that runs in parallel with the experts (Gemma 4); 0: none."""
    grouped_choice: bool = False
    """Experts are chosen from groups (DeepSeek), by scores in the router's own format."""
    reached: int | None = None
    """How many experts tokens go to at all, where a router without training leaves most of them out."""
    routing: str = "uniform"
    """How tokens spread over the experts: ``uniform``, ``balanced``, or ``power_law_`` and its exponent."""


Attention = GroupedAttention | LatentAttention
FeedForward = DenseFeedForward | ExpertFeedForward


@dataclass(frozen=True, slots=True)
class Stack:
    """``layers`` equal layers, not necessarily next to each other in the model."""

    layers: int
    attention: Attention
    feed_forward: FeedForward
    norms: int = 2
    """Norms over the hidden size in each layer: 2 before the halves; 4 where the halves' outputs are normed too."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights are stored and multiplied, by part of the model.

    Names are dtypes of `infercast.ops.dtypes`. ``activation_*`` is what the inputs of a product are turned into
    before it: the weight's own format (fp8 with dynamic scales), or ``base`` where weights alone are quantised.
    """

    base: str = "bf16"
    """Embedding, norms, router and whatever is not named below."""
    attention: str = "bf16"
    feed_forward: str = "bf16"
    """Dense feed-forward and shared experts."""
    experts: str = "bf16"
    head: str = "bf16"
    activation_attention: str = "bf16"
    activation_feed_forward: str = "bf16"
    activation_experts: str = "bf16"
    experts_kernel: str = ""
    """Whose kernels multiply the experts, where it is not the engine's own choice: ``marlin``, ``triton``, ..."""
    name: str = "bf16"
    """What people call it: ``bf16``, ``fp8``, ``int4``, ``nvfp4``, ..."""
    int4_scale_bytes: float = 2 / 128
    """Bytes of scale and zero point for each 4-bit integer: by default one bf16 scale for 128 of them."""

    def stored_bytes(self, dtype: str) -> float:
        """Bytes that a weight takes in memory in one of these formats, its share of the scales included."""
        return 0.5 + self.int4_scale_bytes if dtype == "int4" else bytes_of(dtype)


@dataclass(frozen=True, slots=True)
class VisionPart:
    """The encoder of images beside a language model: what it takes in memory. Its time is not modelled."""

    split: int
    """Parameters that the GPUs of a tensor-parallel group share."""
    whole: int
    """Parameters that every GPU holds."""

    @property
    def parameters(self) -> int:
        """All of them, each counted once."""
        return self.split + self.whole


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model as published, ready to be lowered to operators."""

    name: str
    architecture: str
    hidden: int
    vocabulary: int
    max_positions: int
    stacks: tuple[Stack, ...]
    weights: WeightFormat = field(default_factory=WeightFormat)
    kv_dtype: str = "auto"
    """KV-cache format that the checkpoint or the user asks for; ``auto``: that of the activations."""
    tied_embedding: bool = False
    """The head reuses the embedding table."""
    order: tuple[int, ...] = ()
    """The stack of each layer, first layer first; empty: one stack after the other."""
    vision: VisionPart | None = None
    notes: tuple[str, ...] = ()
    """What was left out, in words: ``vision tower left out``."""

    @property
    def cache_dtype(self) -> str:
        """The format keys and values are cached in."""
        return self.weights.base if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def layers(self) -> int:
        """Layers in all."""
        return sum(stack.layers for stack in self.stacks)

    @property
    def layer_stacks(self) -> tuple[int, ...]:
        """The stack of each layer, first layer first."""
        return self.order or tuple(number for number, stack in enumerate(self.stacks) for _ in range(stack.layers))

    @property
    def has_experts(self) -> bool:
        """Whether any layer has routed experts."""
        return any(isinstance(stack.feed_forward, ExpertFeedForward) for stack in self.stacks)


def with_base(weights: WeightFormat, base: str) -> WeightFormat:
    """The same format with another dtype for all that is not quantised."""
    changed: dict[str, Any] = {name: base for name in weights.__match_args__ if getattr(weights, name) == weights.base}
    return replace(weights, **changed)


def with_routing(config: ModelConfig, routing: str) -> ModelConfig:
    """The same model with another spread of tokens over its experts."""
    stacks = tuple(
        replace(stack, feed_forward=replace(stack.feed_forward, routing=routing))
        if isinstance(stack.feed_forward, ExpertFeedForward)
        else stack
        for stack in config.stacks
    )
    return replace(config, stacks=stacks)
