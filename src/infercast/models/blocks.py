"""Weights that are quantised in blocks of 128 x 128 can only be cut between blocks: an engine refuses other cuts.

Facts of vLLM 0.25 (``quantization/fp8.py``, ``quantization/utils/fp8_utils.py``): experts need whole blocks in any
layout, products that are split by their inputs (and the expansions of latent attention) once they are split. Joined
products (queries with keys and values, gate with up) may be cut inside a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infercast.models.spec import ModelConfig, Stack

BLOCKED, BLOCK = "fp8_block", 128


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
    weights, spec = config.weights, stack.feed_forward
    if weights.attention == BLOCKED:
        yield from (Cut(what, width, tensor) for what, width in stack.mixer.split_widths.items())
    if weights.experts == BLOCKED and spec.num_experts:
        yield Cut("experts", spec.inter, expert_gpus, always=True)
    if weights.feed_forward == BLOCKED:
        yield Cut("feed-forward", sum(spec.dense_widths), tensor)
