"""Whose kernels multiply routed experts where the model decides, and not the format alone.

Facts of SGLang 0.5.16 (``arg_groups/overrides.py``): on Blackwell's datacentre chips it runs TensorRT-LLM's kernels for
the architectures below, in these formats, unless tokens are sent to experts; Nemotron's run CUTLASS's kernels where
there are none of TensorRT-LLM; ``kernels.toml`` has all others.
"""

from __future__ import annotations

from infercast.engines.sglang.backends import DATACENTER_BLACKWELL
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

QWEN = (
    "Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3NextForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip
DEEPSEEK = (
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM",
    "GlmMoeDsaForCausalLM", "LongcatFlashForCausalLM",
)  # fmt: skip
NEMOTRON = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
TRTLLM_FORMATS = {
    **dict.fromkeys((*QWEN, *DEEPSEEK, *NEMOTRON), ("bf16", "fp8", "fp8_block", "nvfp4")),
    "Glm4MoeForCausalLM": ("bf16", "nvfp4"),
    "Llama4ForConditionalGeneration": ("fp8",),
    "Llama4ForCausalLM": ("fp8",),
}


def experts_kernel(model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> str:
    """The kernel's name; empty where the format and the GPU decide, or the user did."""
    weights = model.weights
    if weights.experts_kernel or layout.all_to_all:
        return weights.experts_kernel
    if gpu.architecture not in DATACENTER_BLACKWELL:
        return "cutlass" if model.architecture in NEMOTRON and weights.experts in ("bf16", "fp8") else ""
    return "trtllm" if weights.experts in TRTLLM_FORMATS.get(model.architecture, ()) else ""
