"""How far kernels for mxfp4 experts (gpt-oss) pad what they hold, by the kernels that SGLang chooses for a GPU."""

from __future__ import annotations

from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.spec import ModelConfig

BY_ARCHITECTURE: dict[str, Multiples] = {"hopper": (1, 64), "blackwell": (256, 256), "blackwell-ultra": (256, 256)}
"""Triton's kernels on Hopper, TensorRT-LLM's on Blackwell (``layers/quantization/mxfp4.py``)."""
MARLIN: Multiples = (256, 128)


def expert_multiples(model: ModelConfig, gpu: Gpu) -> Multiples:
    """What the hidden size and the width of a model's experts are rounded up to on a GPU."""
    if model.weights.experts != "mxfp4":
        return UNPADDED
    return BY_ARCHITECTURE.get(gpu.architecture, MARLIN)
