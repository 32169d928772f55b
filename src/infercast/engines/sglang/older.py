"""What SGLang did by default before the release that is modelled, as far as published runs need to know.

Prompts have had CUDA graphs by default since 0.5.10 (pull request 16331 of sgl-project/sglang; issue 18267 still has
them as an option), and all-reduces carry norms without being told since about then for more than a few models. Experts
in bf16 ran Triton's kernel on Blackwell before that: TensorRT-LLM's came for blocks of fp8 (pull requests 11816 and
13489, 2025), and for bf16 in 2026 (20214). States of recurrent layers had no buffers of their own, so that steps were
not planned ahead: its page of server arguments said so, and pull request 26127 of May 2026 asked for another default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercast.engines.engine import Version
from infercast.models.spec import ModelConfig

PREFILL_GRAPHS, BUFFERED_STATES = (0, 5, 10), (0, 5, 13)
TUNED_SINCE: Mapping[str, Version] = {"cdna3": (0, 5, 10), "cdna4": (0, 5, 7)}
"""Kernels of AMD's GPUs: decode steps of DeepSeek-R1 with four clients took 18.5 ms on MI355X in December 2025, 14.5 at
the beginning of January and 9.9 from its end on; on MI300X 21 to 27 ms up to 0.5.9 and 14.6 with 0.5.12 (published by
InferenceX)."""

FUSED_EARLY = ("deepseek", "gpt-oss", "kimi")
"""How the names of models begin whose all-reduces carried norms before."""


def before(version: Version, model: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy`; none of a version that is unknown."""
    if not version or version >= BUFFERED_STATES:
        return {}, {}
    settings: dict[str, Any] = {"mamba_radix_cache_strategy": "no_buffer"}
    if version >= PREFILL_GRAPHS:
        return settings, {}
    name = model.name.lower().rpartition("/")[2]
    options: dict[str, Any] = {} if name.startswith(FUSED_EARLY) else {"fuse_allreduce_rms": False}
    if model.has_experts and model.weights.experts == "bf16":
        options["moe_backend"] = "triton"
    return {**settings, "cuda_graph_backend_prefill": "disabled"}, options
