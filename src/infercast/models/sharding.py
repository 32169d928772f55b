"""What a parallel layout makes of a model: divisibility, pipeline stages, and the weights of each GPU.

Weights that are quantised in blocks of 128 x 128 can only be cut between blocks. Facts of vLLM 0.25
(``quantization/fp8.py``, ``quantization/utils/fp8_utils.py``): experts need whole blocks in any layout, products that
are split by their inputs (and the expansions of latent attention) once they are split. Joined products (queries with
keys and values, gate with up) may be cut inside a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from infercast.errors import InputError
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.layout import ParallelLayout, Shard
from infercast.models.spec import ModelConfig, Stack, common_vectors

MOST_TENSOR = 64
"""Sizes that a refusal looks at for alternatives."""
BLOCKED, BLOCK = "fp8_block", 128


def copies_sharing_experts(config: ModelConfig, layout: ParallelLayout) -> int:
    """Copies whose tokens meet in each layer of experts, so that they step together: all, if the model has experts."""
    return layout.sharing if config.has_experts else 1


def talking_gpus(config: ModelConfig, layout: ParallelLayout) -> int:
    """GPUs that exchange something in every layer or between stages."""
    return layout.replica_gpus * copies_sharing_experts(config, layout)


def check_layout(config: ModelConfig, layout: ParallelLayout) -> None:
    """Refuse a layout that the model's dimensions do not allow, naming the ones that they do."""
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name}_parallel_size must be at least 1, not {size}")
    if not divides(config, layout.tensor, split_experts=not layout.experts):
        valid = [size for size in range(1, MOST_TENSOR + 1) if divides(config, size, split_experts=not layout.experts)]
        raise InputError(
            f"tensor_parallel_size {layout.tensor} does not divide the heads and widths of {config.name}; "
            f"valid: {', '.join(map(str, valid))}"
        )
    if not divides(config, layout.tensor, split_experts=not layout.experts, copies=layout.sharing):
        raise InputError(
            f"data_parallel_size {layout.data} splits the experts of {config.name} over "
            f"{layout.tensor * layout.data} GPUs (tensor x data parallel size), which does not divide their width; use "
            "another, or enable_expert_parallel"
        )
    _check_blocks(config, layout)
    if layout.pipeline > config.layers:
        raise InputError(
            f"pipeline_parallel_size {layout.pipeline} is more than the {config.layers} layers of {config.name}; use "
            f"1 to {config.layers}"
        )
    if layout.experts:
        _check_experts(config, layout)


def _check_blocks(config: ModelConfig, layout: ParallelLayout) -> None:
    """Weights in blocks are cut between blocks only."""
    cut = cut_block(config, layout.tensor, layout.gpus_per_expert)
    if cut is None:
        return
    valid = [
        size
        for size in range(1, MOST_TENSOR + 1)
        if divides(config, size, split_experts=not layout.experts, copies=layout.sharing)
        and cut_block(config, size, 1 if layout.experts else size * layout.sharing) is None
    ]
    remedies = [f"tensor_parallel_size {' or '.join(map(str, valid))}"] if valid else []
    if cut.what == "experts" and not layout.experts and cut_block(config, layout.tensor, 1) is None:
        remedies.append("enable_expert_parallel")
    raise InputError(
        f"layout {layout} cuts the {cut.size:,} columns of the {cut.what} of {config.name} to "
        f"{cut.size / cut.gpus:g} per GPU, and an engine does not cut fp8 weights inside their blocks of {BLOCK}; "
        f"what works: {', or '.join(remedies) or 'nothing'}"
    )


def _check_experts(config: ModelConfig, layout: ParallelLayout) -> None:
    """Experts are spread in equal numbers, and there must be some."""
    counts = [count for stack in config.stacks if (count := stack.feed_forward.experts)]
    if not counts:
        raise InputError(f"enable_expert_parallel needs a model with experts, and {config.name} has none; leave it out")
    if any(count % layout.expert_gpus for count in counts):
        most = min(counts)
        valid = ", ".join(str(size) for size in range(1, most + 1) if not any(count % size for count in counts))
        raise InputError(
            f"enable_expert_parallel spreads the {most} experts of {config.name} over {layout.expert_gpus} GPUs "
            f"(tensor x data parallel size), which does not divide them; valid: {valid}"
        )


def divides(config: ModelConfig, tensor: int, *, split_experts: bool = True, copies: int = 1) -> bool:
    """Whether heads, key-value heads and feed-forward widths split evenly over ``tensor`` GPUs.

    The width of routed experts is split over those of all ``copies``, unless whole experts are spread.
    """
    expert_gpus = tensor * copies if split_experts else 1
    halves = [(stack.mixer, stack.feed_forward) for stack in config.stacks]
    return all(
        mixer.divides(tensor)
        and all(width % tensor == 0 for width in feed_forward.dense_widths)
        and (not feed_forward.experts or feed_forward.inter % expert_gpus == 0)
        for mixer, feed_forward in halves
    )


class Cut(NamedTuple):
    """A matrix that GPUs split."""

    what: str
    size: int
    gpus: int


def cut_block(config: ModelConfig, tensor: int, expert_gpus: int) -> Cut | None:
    """The first cut inside a block, with matrices split over ``tensor`` GPUs and each expert over ``expert_gpus``."""
    cuts = (cut for stack in config.stacks for cut in _cuts(config, stack, tensor, expert_gpus))
    # Experts need whole blocks even on one GPU.
    cuts = (cut for cut in cuts if cut.gpus > 1 or cut.what == "experts")
    return next((cut for cut in cuts if cut.size / cut.gpus % BLOCK != 0), None)


def _cuts(config: ModelConfig, stack: Stack, tensor: int, expert_gpus: int) -> Iterator[Cut]:
    """Every cut through weights in blocks."""
    weights, spec = config.weights, stack.feed_forward
    if getattr(weights, stack.mixer.part) == BLOCKED:
        yield from (Cut(what, width, tensor) for what, width in stack.mixer.split_widths.items())
    if weights.experts == BLOCKED and spec.experts:
        yield Cut("experts", spec.inter, expert_gpus)
    if weights.feed_forward == BLOCKED:
        yield Cut("feed-forward", sum(spec.dense_widths), tensor)


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


def rank_weight_bytes(config: ModelConfig, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
    return max(stage_weight_bytes(config, layout, stage, multiples) for stage in range(layout.pipeline))


def stage_weight_bytes(
    config: ModelConfig, layout: ParallelLayout, stage: int, multiples: Multiples = UNPADDED
) -> float:
    """Weights of each GPU in one stage of a pipeline (stage 0 without one).

    Matrices are split over the tensor group, routed experts over the GPUs that share them; norms and routers, scarce
    key-value heads and the projections down to a latent are on every GPU. The first stage has the embedding, the last
    one the head (a tied head is the embedding once more), and every stage the encoder of images.
    """
    weights = config.weights
    table = config.vocabulary * config.hidden / layout.tensor
    is_last = stage == layout.pipeline - 1
    total = table * weights.stored_bytes(weights.base) if stage == 0 else 0.0
    if is_last and not (config.tied_embedding and stage == 0):
        total += table * weights.stored_bytes(weights.base if config.tied_embedding else weights.head)
    values: float = config.hidden if is_last else 0
    if config.vision:
        values += config.vision.split / layout.tensor + config.vision.whole
    total += values * weights.stored_bytes(weights.base)
    shard = config.shard(layout)
    for stack in stage_config(config, layout.pipeline, stage).stacks:
        total += stack.layers * layer_bytes(shard, stack, multiples)
    return total


def layer_bytes(shard: Shard, stack: Stack, multiples: Multiples) -> float:
    vectors = common_vectors(stack, shard.hidden) * shard.weights.stored_bytes(shard.weights.base)
    return stack.mixer.held_bytes(shard) + vectors + stack.feed_forward.held_bytes(shard, multiples)
