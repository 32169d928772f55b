"""How many parameters a model has, how many serve one token, and how much memory they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from infercast.models.spec import ModelConfig, Stack


class WeightBytes(NamedTuple):
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
        return float(sum(self))


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


def prediction_parameter_count(config: ModelConfig) -> int:
    """Parameters of the heads that predict further tokens, which `parameter_count` leaves out; 0 without any."""
    part, hidden = config.prediction, config.hidden
    if part is None:
        return 0
    layers = sum(stack.layers * _layer(stack, hidden) for stack in part.stacks)
    table = config.vocabulary * hidden if part.own_table else 0
    return part.heads * (layers + 2 * hidden * hidden + part.norms * hidden + table)


def weight_bytes(config: ModelConfig) -> WeightBytes:
    """Memory of all weights on one GPU, quantised parts with their scales."""
    weights, hidden = config.weights, config.hidden
    bytes_of = weights.stored_bytes
    table = config.vocabulary * hidden

    def over_layers(count: Callable[[Stack], int]) -> int:
        return sum(stack.layers * count(stack) for stack in config.stacks)

    return WeightBytes(
        embedding=table * bytes_of(weights.base),
        attention=sum(
            stack.layers * stack.mixer.matrices(hidden) * bytes_of(getattr(weights, stack.mixer.part))
            for stack in config.stacks
        ),
        feed_forward=over_layers(lambda stack: stack.feed_forward.matrices(hidden)) * bytes_of(weights.feed_forward),
        experts=over_layers(lambda stack: stack.feed_forward.expert_values(hidden)[0]) * bytes_of(weights.experts),
        head=0.0 if config.tied_embedding else table * bytes_of(weights.head),
        other=(over_layers(lambda stack: _vectors(stack, hidden)) + hidden) * bytes_of(weights.base),
        vision=config.vision.parameters * bytes_of(weights.base) if config.vision else 0.0,
    )


def common_vectors(stack: Stack, hidden: int) -> int:
    """Norms, hyper-connections, routers, biases and sinks of a layer, on every GPU; not the experts'."""
    # What weighs earlier sums is a norm and a row for each norm.
    norms = stack.norms * (3 if stack.residuals else 1)
    between = (norms + 2 * stack.mixing_values) * hidden
    return between + stack.mixer.vectors(hidden) + stack.feed_forward.vectors(hidden)


def _vectors(stack: Stack, hidden: int) -> int:
    """All of one layer that stays in the base format."""
    return common_vectors(stack, hidden) + stack.feed_forward.expert_values(hidden)[1]


def _layer(stack: Stack, hidden: int, active: bool = False) -> int:
    """All parameters of one layer, or those that one token meets."""
    mixer, feed_forward = stack.mixer, stack.feed_forward
    matrices = mixer.matrices(hidden) + feed_forward.matrices(hidden)
    return matrices + common_vectors(stack, hidden) + sum(feed_forward.expert_values(hidden, active=active))
