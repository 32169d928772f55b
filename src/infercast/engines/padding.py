"""Which attention kernels of a model pad decoding sequences beside prompts."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls
from infercast.models.mixers import GroupedAttention
from infercast.models.spec import ModelConfig
from infercast.ops import Attention
from infercast.predict.adjust.mixed import padded

ONE = np.array([1])


class Padding(NamedTuple):
    """What sequences that decode take at least beside prompts, in all launches of a step."""

    per_key: float = 0.0
    window: float = inf

    def seconds(self, sequences: int, keys: int) -> float:
        """So many sequences with so many keys together."""
        return self.per_key * min(keys, self.window * sequences) if self.per_key else 0.0


NOT_PADDED = Padding()


def padded_in(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> dict[str, Padding]:
    """By the names of kernels (`mixed.padded`).

    Attention with sinks runs another kernel on these chips (Triton's), which packs query heads in every launch.
    """
    if any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.sinks for stack in config.stacks):
        return {}
    found: dict[str, Padding] = {}
    for call in attention_calls(config, layout, ONE, ONE):
        if isinstance(call.op, Attention) and call.name not in found:
            found[call.name] = Padding(call.count * padded(call.op, gpu), call.op.window or inf)
    return found
