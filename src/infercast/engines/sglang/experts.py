"""Whose kernels multiply routed experts where the model decides, and not the format alone.

Facts of SGLang 0.5.16 (``arg_groups/overrides.py``): on Blackwell's datacentre chips it runs TensorRT-LLM's kernels for
the architectures below, in these formats, unless tokens are sent to experts; Nemotron's run CUTLASS's kernels where
there are none of TensorRT-LLM; ``kernels.toml`` has all others.

Shared experts are multiplied with the routed ones, as one more that every token goes to, in a few models
(``determine_num_fused_shared_experts`` in ``models/deepseek_v2.py`` and ``glm4_moe.py``).
"""

from __future__ import annotations

from infercast.engines.sglang.backends import DATACENTER_BLACKWELL
from infercast.hardware import Gpu
from infercast.models.feed_forward import ExpertFeedForward
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
JOINING = {"DeepseekV3ForCausalLM": 256, "GlmMoeDsaForCausalLM": 256, "Glm4MoeForCausalLM": 0}
"""Architectures whose shared expert joins the routed ones, and how many of these there must be; 0: any number."""
APART = ("trtllm", "cutlass")
"""Kernels that leave it out."""


def experts_kernel(model: ModelConfig, gpu: Gpu, layout: ParallelLayout) -> str:
    """The kernel's name; empty where the format and the GPU decide, or the user did."""
    weights = model.weights
    if weights.experts_kernel or layout.all_to_all:
        return weights.experts_kernel
    if gpu.architecture not in DATACENTER_BLACKWELL:
        return "cutlass" if model.architecture in NEMOTRON and weights.experts in ("bf16", "fp8") else ""
    return "trtllm" if weights.experts in TRTLLM_FORMATS.get(model.architecture, ()) else ""


def joined_experts(model: ModelConfig, spec: ExpertFeedForward, layout: ParallelLayout) -> int:
    """Shared experts that are multiplied with the routed ones: none where these are spread, or run other kernels."""
    weights = model.weights
    apart = layout.experts or layout.all_to_all or weights.experts_kernel in APART or weights.experts == "int4"
    wanted = JOINING.get(model.architecture)
    if apart or wanted is None or spec.experts != (wanted or spec.experts):
        return 0
    return 1 if spec.shared_inter == spec.inter and weights.experts == weights.feed_forward else 0
