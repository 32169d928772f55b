"""What one GPU of a layout holds of a model."""

from __future__ import annotations

from dataclasses import replace

from infercast.models.layout import ParallelLayout
from infercast.models.parameters import weight_bytes
from infercast.models.spec import LatentAttention, ModelConfig, Stack
from infercast.ops.dtypes import bytes_of


def fullest_stage(config: ModelConfig, layout: ParallelLayout) -> ModelConfig:
    """The model as the fullest stage of a pipeline sees it: its layers, every kind in proportion."""
    if layout.pipeline == 1:
        return config
    stacks = tuple(replace(stack, layers=layout.share_layers(stack.layers)) for stack in config.stacks)
    return replace(config, stacks=stacks)


def rank_weight_bytes(config: ModelConfig, layout: ParallelLayout) -> float:
    """Weights of the fullest GPU.

    Matrices are split over the tensor group, routed experts over the GPUs that share them; norms and routers, scarce
    key-value heads and the projections down to a latent are on every GPU. A pipeline has the embedding in its first
    stage and the head in its last.
    """
    parts = weight_bytes(fullest_stage(config, layout))
    if layout.replica_gpus == 1 and layout.expert_gpus == 1:
        return parts.total
    table = parts.embedding if config.tied_embedding else parts.head
    tables = max(parts.embedding, table) if layout.pipeline > 1 else parts.embedding + parts.head
    repeated = sum(
        layout.share_layers(stack.layers) * _repeated_values(config, stack, layout) for stack in config.stacks
    ) * bytes_of(config.weights.attention)
    split = (tables + parts.attention + parts.feed_forward) / layout.tensor
    experts = parts.experts / (layout.expert_gpus if layout.experts else layout.tensor)
    return split + experts + repeated + parts.other


def _repeated_values(config: ModelConfig, stack: Stack, layout: ParallelLayout) -> float:
    """Values of a layer's attention that a GPU holds beyond its even share."""
    attention = stack.attention
    if isinstance(attention, LatentAttention):
        return config.hidden * (attention.q_lora_rank + attention.latent_dim) * (1 - 1 / layout.tensor)
    beyond = layout.share_kv_heads(attention.kv_heads) - attention.kv_heads / layout.tensor
    values = 0 if attention.shared_key_value else attention.value_dim
    return config.hidden * (attention.head_dim + values) * beyond
