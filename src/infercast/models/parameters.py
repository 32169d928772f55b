"""How many parameters a model has, how many serve one token, and how much memory they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from infercast.models.spec import DenseFeedForward, ExpertFeedForward, LatentAttention, ModelConfig, Stack


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of the whole model's weights by part, as an engine holds them in memory."""

    embedding: float
    attention: float
    feed_forward: float
    """Dense feed-forward and shared experts."""
    experts: float
    head: float
    """0 where the head shares the embedding's memory."""
    other: float
    """Norms, routers, biases and sinks."""
    vision: float = 0.0

    @property
    def total(self) -> float:
        """Everything together."""
        return float(sum(getattr(self, part.name) for part in fields(self)))


def parameter_count(config: ModelConfig) -> int:
    """All stored parameters of the language model; a tied head counts once, with the embedding."""
    tables = config.vocabulary * config.hidden * (1 if config.tied_embedding else 2)
    return tables + config.hidden + sum(stack.layers * _layer(stack, config.hidden) for stack in config.stacks)


def active_parameter_count(config: ModelConfig) -> int:
    """Parameters that one token is multiplied with.

    The embedding is looked up, not multiplied, and does not count; the head does. gpt-oss and others count this way.
    """
    head = config.vocabulary * config.hidden + config.hidden
    return head + sum(stack.layers * _layer(stack, config.hidden, active=True) for stack in config.stacks)


def weight_bytes(config: ModelConfig) -> WeightBytes:
    """Memory of all weights on one GPU, quantised parts with their scales."""
    weights, hidden = config.weights, config.hidden
    bytes_of = weights.stored_bytes
    table = config.vocabulary * hidden

    def over_layers(count: Callable[[Stack, int], int]) -> int:
        return sum(stack.layers * count(stack, hidden) for stack in config.stacks)

    return WeightBytes(
        embedding=table * bytes_of(weights.base),
        attention=over_layers(_attention_matrices) * bytes_of(weights.attention),
        feed_forward=over_layers(_dense_matrices) * bytes_of(weights.feed_forward),
        experts=over_layers(_expert_matrices) * bytes_of(weights.experts),
        head=0.0 if config.tied_embedding else table * bytes_of(weights.head),
        other=(over_layers(_vectors) + hidden) * bytes_of(weights.base),
        vision=config.vision.parameters * bytes_of(weights.base) if config.vision else 0.0,
    )


def _layer(stack: Stack, hidden: int, active: bool = False) -> int:
    """All parameters of one layer, or those that one token meets."""
    routed = _expert_matrices(stack, hidden) + _expert_biases(stack, hidden)
    rest = _vectors(stack, hidden) - _expert_biases(stack, hidden)
    feed_forward = stack.feed_forward
    if active and isinstance(feed_forward, ExpertFeedForward):
        routed = routed // feed_forward.experts * feed_forward.topk
    return _attention_matrices(stack, hidden) + _dense_matrices(stack, hidden) + routed + rest


def _attention_matrices(stack: Stack, hidden: int) -> int:
    attention = stack.attention
    if isinstance(attention, LatentAttention):
        query_dim = attention.heads * (attention.nope_dim + attention.rope_dim)
        rank = attention.q_lora_rank
        queries = rank * (hidden + query_dim) if rank else hidden * query_dim
        expansion = attention.kv_lora_rank * attention.heads * (attention.nope_dim + attention.value_dim)
        output = attention.heads * attention.value_dim * hidden
        return queries + hidden * attention.latent_dim + expansion + output
    keys = attention.kv_heads * attention.head_dim
    values = 0 if attention.shared_key_value else attention.kv_heads * attention.value_dim
    return hidden * (attention.heads * (attention.head_dim + attention.value_dim) + keys + values)


def _dense_matrices(stack: Stack, hidden: int) -> int:
    """The dense feed-forward, or what runs beside the routed experts."""
    feed_forward = stack.feed_forward
    if isinstance(feed_forward, DenseFeedForward):
        return (3 if feed_forward.gated else 2) * hidden * feed_forward.inter
    return 3 * hidden * (feed_forward.shared_inter + feed_forward.dense_inter)


def _expert_matrices(stack: Stack, hidden: int) -> int:
    feed_forward = stack.feed_forward
    return 3 * hidden * feed_forward.inter * feed_forward.experts if isinstance(feed_forward, ExpertFeedForward) else 0


def _expert_biases(stack: Stack, hidden: int) -> int:
    feed_forward = stack.feed_forward
    if isinstance(feed_forward, ExpertFeedForward) and feed_forward.expert_bias:
        return feed_forward.experts * (2 * feed_forward.inter + hidden)
    return 0


def _vectors(stack: Stack, hidden: int) -> int:
    """Norms, routers, biases and sinks: what stays in the base format."""
    return (
        stack.norms * hidden
        + attention_vectors(stack, hidden)
        + feed_forward_vectors(stack, hidden)
        + _expert_biases(stack, hidden)
    )


def attention_vectors(stack: Stack, hidden: int) -> int:
    """Norms, biases and sinks of a layer's attention."""
    attention = stack.attention
    if isinstance(attention, LatentAttention):
        return attention.q_lora_rank + attention.kv_lora_rank
    queries = attention.heads * attention.head_dim
    key_values = attention.kv_heads * (attention.head_dim + attention.value_dim)
    return (
        (2 * attention.head_dim if attention.qk_norm else 0)
        + (queries + key_values if attention.qkv_bias else 0)
        + (hidden if attention.output_bias else 0)
        + (attention.heads if attention.sinks else 0)
    )


def feed_forward_vectors(stack: Stack, hidden: int) -> int:
    """Routers, gates and biases of a layer's feed-forward, those of its experts left out."""
    feed_forward = stack.feed_forward
    if isinstance(feed_forward, DenseFeedForward):
        wide = 2 if feed_forward.gated else 1
        return wide * feed_forward.inter + hidden if feed_forward.bias else 0
    router = feed_forward.experts * (hidden + (1 if feed_forward.router_bias else 0))
    return router + (hidden if feed_forward.shared_gate else 0)
