"""How far kernels for mxfp4 experts (gpt-oss) pad what they hold, by the kernels that SGLang chooses for a GPU."""

from __future__ import annotations

from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.spec import ModelConfig

BY_KERNELS: dict[str, Multiples] = {"blackwell": (256, 256), "blackwell-rtx": (256, 128)}
"""TensorRT-LLM's on Blackwell, Marlin's on its RTX chips (``layers/quantization/mxfp4.py``)."""
TRITON: Multiples = (1, 64)
AMD: Multiples = (256, 256)


def expert_multiples(model: ModelConfig, gpu: Gpu) -> Multiples:
    """What the hidden size and the width of a model's experts are rounded up to on a GPU."""
    if model.weights.experts != "mxfp4":
        return UNPADDED
    return BY_KERNELS.get(gpu.kernels, TRITON) if gpu.vendor.lower() == "nvidia" else AMD
