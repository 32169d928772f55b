"""Ways to quantise weights, by the names that engines and tools give them."""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    """One way to quantise: the format of the weights, and that of what they are multiplied with ("" : base)."""

    weights: str
    activations: str = ""
    experts_only: bool = False
    int4_scale_bytes: float = 2 / 128


FP8, FP8_BLOCK = Scheme("fp8", "fp8"), Scheme("fp8_block", "fp8_block")
INT8, INT4, INT4_FP8 = Scheme("int8", "int8"), Scheme("int4"), Scheme("int4", "fp8")
NVFP4, MXFP4 = Scheme("nvfp4", "nvfp4"), Scheme("mxfp4", experts_only=True)

# What ``--quantization`` may be, with vLLM's meaning.
OVERRIDES: dict[str, Scheme] = {
    "fp8": FP8,
    "fp8_block": FP8_BLOCK,
    "int8": INT8,
    "int4": INT4,
    "awq": INT4,
    "gptq": INT4,
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    # vLLM's further names for the same: by kernel, by tool and by the size of a scale's group.
    "awq_marlin": INT4,
    "gptq_marlin": INT4,
    "auto_awq": INT4,
    "auto_gptq": INT4,
    "moe_wna16": INT4,
    "modelopt": FP8,
    "modelopt_fp4": NVFP4,
    "fbgemm_fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_channel": FP8,
    "fp8_per_block": FP8_BLOCK,
    "gpt_oss_mxfp4": MXFP4,
    "int8_per_channel_weight_only": Scheme("int8"),
    "experts_int8": Scheme("int8", experts_only=True),
}
# These say that a checkpoint is quantised, and its config.json says how.
AS_STORED = ("compressed-tensors", "modelopt_mixed", "quark", "torchao", "auto-round", "inc")
FAMILY_OF = {"fp8_block": "fp8"}

# NVIDIA Model Optimizer's names (modelopt, ``quant_algo``).
MODELOPT: dict[str, Scheme] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": FP8_BLOCK,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": Scheme("nvfp4"),
    "W4A16_AWQ": INT4,
    "W4A8_AWQ": INT4_FP8,
    "INT8_SQ": INT8,
    "W8A16": Scheme("int8"),
}
