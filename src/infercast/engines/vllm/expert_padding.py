"""How far kernels for mxfp4 experts (gpt-oss) pad what they hold, by the kernels that an engine chooses for a GPU.

Facts of vLLM 0.25 (``fused_moe/oracle/mxfp4.py``): TensorRT-LLM's kernels on Blackwell need multiples of 256, Triton's
on Hopper widths in multiples of 64, Marlin's elsewhere hidden sizes in multiples of 256 and widths of 128; whatever
runs on AMD is padded to 256.
"""

from __future__ import annotations

from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.spec import ModelConfig

# Multiples of the hidden size and of the width of each expert on one GPU.
BY_KERNEL: dict[str, Multiples] = {
    "trtllm": (256, 256),
    "triton": (1, 64),
    "cutlass": (128, 128),
    "marlin": (256, 128),
}
AUTOMATIC = {"hopper": "triton", "blackwell": "trtllm", "blackwell-ultra": "trtllm"}


def expert_multiples(model: ModelConfig, gpu: Gpu) -> Multiples:
    """What the hidden size and the width of a model's experts are rounded up to on a GPU."""
    if model.weights.experts != "mxfp4":
        return UNPADDED
    if gpu.vendor.lower() != "nvidia":
        return 256, 256
    return BY_KERNEL[model.weights.experts_kernel or AUTOMATIC.get(gpu.architecture, "marlin")]
