"""How SGLang launches Triton's kernel for routed experts where its package has no tuned configuration for them.

Facts of SGLang 0.5.16 (``layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py``): small tiles up to as many
tokens as there are experts, and tiles of 64 rows, 64 columns and 32 deep beyond, which cost long prompts nearly twice
the time of good ones. Measured kernels, which estimates rest on, were launched with good ones.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.kernels import is_modelled
from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.ops import MoE
from infercast.predict.physics.expert_launch import time_tiles
from infercast.predict.physics.expert_tiles import Tiles
from infercast.predict.profile import kernel_profile

GOOD = (
    (16, 64, 128, 1, 4, 4), (32, 64, 128, 1, 4, 3), (64, 128, 64, 1, 4, 3), (64, 128, 64, 1, 8, 3),
    (128, 128, 64, 16, 8, 3),
)  # fmt: skip
"""Rows, columns, depth, group, warps and stages that measured kernels were launched with, by tokens."""
FEW, MANY = (16, 32, 64, 1, 4, 3), (64, 64, 32, 8, 4, 3)
"""SGLang's own, for as many tokens as experts and for more."""
TRITON = "triton"
SIZES = tuple(1 << power for power in range(0, 16))
_tuned = cache(partial(read_data, "engines/sglang/tuned_experts.toml"))


def has_tuned_file(experts: int, inter: int, dtype: str, gpu: Gpu) -> bool:
    """Whether the package has a configuration for this layer; of a GPU whose name in files is unknown, it has none."""
    name = next((alias.replace(" ", "_") for alias in gpu.aliases if " " in alias), "")
    return inter in _tuned().get(name, {}).get(dtype, {}).get(str(experts), [])


@lru_cache
def untuned_factors(
    model: ModelConfig, spec: ExpertFeedForward, gpu: Gpu, layout: ParallelLayout
) -> tuple[tuple[float, float], ...]:
    """Numbers of tokens and how many times as long the experts take there; nothing where a tuned file is at hand."""
    weights = model.weights
    kernel = weights.experts_kernel or kernel_profile("sglang").experts.get(gpu.kernels, {}).get(weights.experts, "")
    if kernel != TRITON or weights.experts != "bf16" or not is_modelled(gpu):
        return ()  # blocks of fp8 have tiles that are as good by default
    experts = -(-spec.experts // layout.expert_gpus) if layout.experts else spec.experts + spec.joined
    inter = layout.share_expert_width(spec.inter)
    if has_tuned_file(experts, inter, weights.experts, gpu):
        return ()
    sizes = sorted({*SIZES, experts, experts + 1})
    return tuple((float(tokens), _factor(tokens, experts, inter, model.hidden, spec, gpu)) for tokens in sizes)


def _factor(tokens: int, experts: int, inter: int, hidden: int, spec: ExpertFeedForward, gpu: Gpu) -> float:
    op = MoE(np.array([tokens]), hidden=hidden, inter=inter, experts=experts, topk=spec.topk, gated=spec.gated)
    configurations = np.array([FEW if tokens <= experts else MANY, *GOOD], dtype=float)
    seconds = time_tiles(op, gpu, Tiles(*configurations.T)).seconds
    return float(max(1.0, seconds[0] / seconds[1:].min()))
