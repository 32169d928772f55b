"""What a GPU holds of a model's weights where groups of DP attention divide the GPUs.

Facts of SGLang 0.5.16 (``models/deepseek_v2.py``): a group has attention and the embedding to itself. The head, dense
layers and, unless tokens are sent to experts, shared experts are split over the GPUs of all groups.
"""

from __future__ import annotations

from dataclasses import replace

from infercast.engines.sglang.padding import expert_multiples
from infercast.engines.sglang.settings import SglangSettings
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.rank import stage_weight_bytes
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_config


def weight_bytes(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: SglangSettings, stage: int = 0
) -> float:
    """Weights of each GPU in one stage of a pipeline."""
    multiples = expert_multiples(model, gpu)
    whole = stage_weight_bytes(model, layout, stage, multiples)
    if not settings.enable_dp_attention or layout.sharing == 1:
        return whole
    joined = replace(layout, tensor=layout.tensor * layout.sharing, data=1)
    alone, together = model.shard(layout), model.shard(joined)
    for stack in stage_config(model, layout.pipeline, stage).stacks:
        if not (stack.feed_forward.experts and layout.all_to_all):
            held = stack.feed_forward.held_bytes
            whole -= stack.layers * (held(alone, multiples) - held(together, multiples))
    if stage == layout.pipeline - 1 and not model.tied_embedding:
        table = model.vocabulary * model.hidden * model.weights.stored_bytes(model.weights.head)
        whole -= table / layout.tensor - table / joined.tensor
    return whole
