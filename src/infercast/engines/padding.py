"""Which attention kernels of a model pad decoding sequences beside prompts."""

from __future__ import annotations

import numpy as np

from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls
from infercast.models.mixers import GroupedAttention
from infercast.models.spec import ModelConfig
from infercast.predict.adjust.mixed import padded

ONE = np.array([1])


def padded_in(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> dict[str, float]:
    """How many times longer each kernel takes for decoding sequences beside prompts, by name (`mixed.padded`).

    Attention with sinks runs another kernel on these chips (Triton's), which packs query heads in every launch.
    """
    if any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.sinks for stack in config.stacks):
        return {}
    return {call.name: padded(call.op, gpu) for call in attention_calls(config, layout, ONE, ONE)}
