"""Which layers each stage of a pipeline holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from infercast.models.spec import ModelConfig


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: equal numbers, what is left over one each from the last stage but one backwards."""
    counts = [layers // stages] * stages
    for position in range(layers % stages):
        counts[-2 - position] += 1
    return tuple(counts)


def stage_range(layers: int, stages: int, stage: int) -> range:
    """The layers of one stage, by their place in the model."""
    counts = stage_layers(layers, stages)
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def stage_config(config: ModelConfig, stages: int, stage: int) -> ModelConfig:
    """The model with the layers of one stage alone."""
    if stages == 1:
        return config
    order = config.layer_stacks
    counts = Counter(order[position] for position in stage_range(config.layers, stages, stage))
    stacks = tuple(replace(config.stacks[number], layers=count) for number, count in sorted(counts.items()))
    return replace(config, stacks=stacks, order=())
