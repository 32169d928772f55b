"""How a pipeline's stages divide a step."""

from __future__ import annotations

import numpy as np

from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import head_calls, step_calls
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_layers
from infercast.ops import Call
from infercast.predict.adjust.beside import felt_seconds
from infercast.predict.roofline import Predictor

TYPICAL_BATCH, TYPICAL_CONTEXT = 32, 1024
"""The decoding batch at which the head is weighed against the layers."""


def stage_shares(model: ModelConfig, layout: ParallelLayout, gpu: Gpu, predictor: Predictor) -> tuple[float, ...]:
    """The share of a step's GPU time that each stage takes; the head belongs to the last."""
    ones = np.ones(TYPICAL_BATCH, dtype=np.int64)
    keys = ones * TYPICAL_CONTEXT

    def seconds(calls: list[Call]) -> float:
        return sum(float(np.ravel(felt_seconds(call, predictor.seconds(call.op, gpu)))[0]) for call in calls)

    whole = seconds(step_calls(model, layout, ones, keys, sampled=TYPICAL_BATCH))
    head = seconds(head_calls(model, layout, TYPICAL_BATCH)) / whole
    counts = stage_layers(model.layers, layout.pipeline)
    shares = [(1 - head) * count / model.layers for count in counts]
    shares[-1] += head
    return tuple(shares)
