"""Weights that are quantised in blocks of 128 x 128 can only be cut between blocks: an engine refuses other cuts.

Facts of vLLM 0.25 (``quantization/fp8.py``, ``quantization/utils/fp8_utils.py``): experts need whole blocks in any
layout, products that are split by their inputs (and the expansions of latent attention) once they are split. Joined
products (queries with keys and values, gate with up) may be cut inside a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infercast.models.spec import ExpertFeedForward, LatentAttention, ModelConfig, Stack

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Cut:
    """A matrix that GPUs split."""

    what: str
    size: int
    gpus: int
    always: bool = False
    """Even one GPU needs whole blocks."""

    @property
    def width(self) -> float:
        """What one GPU gets."""
        return self.size / self.gpus

    @property
    def is_inside_a_block(self) -> bool:
        """Whether an engine refuses it."""
        return (self.gpus > 1 or self.always) and self.width % BLOCK != 0


def cut_block(config: ModelConfig, tensor: int, expert_gpus: int) -> Cut | None:
    """The first cut inside a block, with matrices split over ``tensor`` GPUs and each expert over ``expert_gpus``."""
    cuts = (cut for stack in config.stacks for cut in _cuts(config, stack, tensor, expert_gpus))
    return next((cut for cut in cuts if cut.is_inside_a_block), None)


def _cuts(config: ModelConfig, stack: Stack, tensor: int, expert_gpus: int) -> Iterator[Cut]:
    """Every cut through weights in blocks."""
    weights, attention, spec = config.weights, stack.attention, stack.feed_forward
    if weights.attention == "fp8_block":
        yield Cut("attention output", attention.heads * attention.value_dim, tensor)
        if isinstance(attention, LatentAttention):
            yield Cut("queries", attention.heads * (attention.nope_dim + attention.rope_dim), tensor)
            yield Cut("keys and values", attention.heads * (attention.nope_dim + attention.value_dim), tensor)
    if isinstance(spec, ExpertFeedForward):
        if weights.experts == "fp8_block":
            yield Cut("experts", spec.inter, expert_gpus, always=True)
        beside = spec.shared_inter + spec.dense_inter
    else:
        beside = spec.inter
    if weights.feed_forward == "fp8_block":
        yield Cut("feed-forward", beside, tensor)
