"""How SGLang reads the sizes of a layout: copies of a server, groups of DP attention, and experts over all of them.

Facts of SGLang 0.5.16 (``server_args.py``; ``arg_groups/overrides.py``, ``_flashinfer_allreduce_fusion_auto_enable``).
Copies of data parallelism are servers of their own. Under DP attention the GPUs of ``tp_size`` are divided into
``dp_size`` groups instead: each has its own requests and cache, and all share the experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infercast.engines.sglang.settings import SglangSettings
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

FUSING_GPUS = ("hopper", "blackwell", "blackwell-ultra")
FUSING_MODELS = frozenset({
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GptOssForCausalLM", "GlmMoeDsaForCausalLM",
    "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "MistralLarge3ForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration", "Qwen3NextForCausalLM", "KimiK25ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "NemotronHForCausalLM",
})  # fmt: skip
"""Architectures whose all-reduces carry the norm that follows, unless the engine is told otherwise."""


def fuses_norms(model: ModelConfig, gpu: Gpu) -> bool:
    """Whether all-reduces of a tensor-parallel group carry norms by default."""
    return model.architecture in FUSING_MODELS and gpu.architecture in FUSING_GPUS


def spread(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ParallelLayout:
    """The layout of ``tp_size``, ``dp_size`` and ``ep_size``, which come as tensor, data and a setting."""
    tensor, data = layout.tensor, layout.data
    in_groups = asked.enable_dp_attention and data > 1
    if in_groups:
        _check_groups(model, tensor, data)
    elif layout.all_to_all:
        raise InputError(
            "moe_a2a_backend is modelled for groups of DP attention alone; add --enable-dp-attention and --dp-size, or "
            "leave it out"
        )
    expert_gpus = tensor if layout.all_to_all else asked.ep_size
    if expert_gpus not in (1, tensor):
        known = " or ".join(map(str, sorted({1, tensor})))
        raise InputError(f"ep_size {expert_gpus} is not modelled with tp_size {tensor}; use {known}")
    fused = layout.fused_norms and not in_groups
    if asked.enable_flashinfer_allreduce_fusion:
        fused = gpu.architecture in FUSING_GPUS
    if asked.enforce_disable_flashinfer_allreduce_fusion:
        fused = False
    return replace(
        layout,
        tensor=tensor // data if in_groups else tensor,
        experts=layout.experts or expert_gpus > 1,
        fused_norms=fused,
        apart=data > 1 and not in_groups,
    )


def _check_groups(model: ModelConfig, tensor: int, data: int) -> None:
    if not model.has_experts:
        raise InputError(
            f"enable_dp_attention is modelled for models with experts, and {model.name} has none; leave it out"
        )
    if tensor % data:
        raise InputError(
            f"enable_dp_attention divides the {tensor} GPUs of tp_size into dp_size groups, and {data} does not divide "
            "them; make tp_size a multiple of dp_size"
        )


def sizes_for(layout: ParallelLayout) -> dict[str, Any]:
    """What the engine is told to have a layout, by the names of options and settings."""
    in_groups = layout.data > 1 and not layout.apart
    tensor = layout.tensor * layout.data if in_groups else layout.tensor
    sizes = {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": layout.data,
    }
    return {
        **{name: size for name, size in sizes.items() if size > 1},
        **({"enable_dp_attention": True} if in_groups else {}),
        **({"ep_size": tensor} if layout.experts and tensor > 1 else {}),
    }
