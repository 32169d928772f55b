"""States of recurrent layers: how many the engine keeps, and how many of them a running request takes.

Facts of SGLang 0.5.16 (``mem_cache/kv_cache_configurator.py``, ``_handle_max_mamba_cache`` and
``_calculate_mamba_ratio``; ``arg_groups/overrides.py``, ``_mamba_radix_cache_resolution``).
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.sglang.settings import SglangSettings
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

BUFFERED = frozenset({
    "KimiLinearForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM",
    "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM",
})  # fmt: skip
"""Architectures whose states are copied while the next step is planned; others plan one step after the other."""
KEPT = 3
"""States for each running request, so that prefixes can be found again."""
BUFFERS = {"extra_buffer": 2, "extra_buffer_lazy": 1, "no_buffer": 0}


class StatePool(NamedTuple):
    """How a model's states are kept; a model without any has no limits by them."""

    state_bytes: float
    """Of one sequence on one GPU."""
    strategy: str
    overlaps: bool
    """Whether a step is planned while another runs."""

    def per_request(self, settings: SglangSettings) -> int:
        """States that a running request stands for."""
        if settings.disable_radix_cache:
            return 1
        buffers = BUFFERS[self.strategy]
        return KEPT + (min(buffers, 1) if settings.disable_overlap_schedule else buffers)

    def fit(self, kv_bytes: float, settings: SglangSettings, copies: int) -> int:
        """States that there is room for, of what is left for them and for tokens."""
        if not self.state_bytes:
            return 0
        if settings.max_mamba_cache_size is not None:
            return settings.max_mamba_cache_size // copies
        if settings.disable_radix_cache and settings.max_running_requests is not None:
            return settings.max_running_requests // copies
        ratio = settings.mamba_full_memory_ratio
        return int(max(kv_bytes, 0.0) * ratio / (1.0 + ratio) // self.state_bytes)


def state_pool(model: ModelConfig, layout: ParallelLayout, asked: SglangSettings) -> StatePool:
    """How the engine keeps states, or why it plans step by step."""
    shard = model.shard(layout)
    caches = [(stack.layers, cache) for stack in model.stacks for cache in stack.mixer.caches(shard)]
    size = sum(layers * cache.bytes_per_sequence for layers, cache in caches)
    overlaps = not asked.disable_overlap_schedule and layout.pipeline == 1
    if not size or asked.disable_radix_cache:
        return StatePool(size, "no_buffer", overlaps)
    strategy = asked.mamba_radix_cache_strategy
    if strategy == "auto":
        buffered = model.architecture in BUFFERED and not asked.disable_overlap_schedule
        strategy = "extra_buffer" if buffered else "no_buffer"
    return StatePool(size, strategy, overlaps and strategy != "no_buffer")
