"""What one GPU of a layout holds of a model."""

from __future__ import annotations

from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.formats import unquantised
from infercast.models.layout import ParallelLayout
from infercast.models.parameters import common_vectors
from infercast.models.shard import Shard
from infercast.models.spec import ModelConfig, Stack
from infercast.models.stages import stage_config


def rank_weight_bytes(config: ModelConfig, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
    """Weights of the GPU that holds most of them."""
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


def prediction_bytes(config: ModelConfig, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
    """What each GPU holds of the heads that predict further tokens once speculative decoding loads them.

    Layers are split as the model's are; the product that joins their two inputs is on every GPU, in the base format.
    """
    part = config.prediction
    if part is None:
        return 0.0
    weights = config.weights if part.quantised else unquantised(config.weights.base)
    shard = config.shard(layout)._replace(weights=weights)
    whole = config.hidden * (2 * config.hidden + part.norms)
    table = config.vocabulary * config.hidden / layout.tensor if part.own_table else 0.0
    layers = sum(stack.layers * layer_bytes(shard, stack, multiples) for stack in part.stacks)
    return part.heads * (layers + (whole + table) * config.weights.stored_bytes(config.weights.base))


def layer_bytes(shard: Shard, stack: Stack, multiples: Multiples) -> float:
    """One layer on one GPU."""
    vectors = common_vectors(stack, shard.hidden) * shard.weights.stored_bytes(shard.weights.base)
    return stack.mixer.held_bytes(shard) + vectors + stack.feed_forward.held_bytes(shard, multiples)
