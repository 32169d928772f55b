"""The KV cache of SGLang: pools of tokens, states of recurrent layers, and the hierarchical cache in host memory.

Facts of SGLang 0.5.16 (``model_executor/pool_configurator.py``, ``mem_cache/kv_cache_configurator.py``).

Facts of SGLang 0.5.16 (``mem_cache/kv_cache_configurator.py``, ``_handle_max_mamba_cache`` and
``_calculate_mamba_ratio``; ``arg_groups/overrides.py``, ``_mamba_radix_cache_resolution``).

Facts of SGLang 0.5.16: ``mem_cache/hiradix_cache.py``, ``mem_cache/memory_pool_host.py``,
``managers/cache_controller.py``. Kernels of the GPU copy pages, layer by layer; how fast, nobody measured here, so they
are taken to reach what large copies reach.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.memory import KvLayout, host_link
from infercast.engines.sglang.settings import WRITE_POLICIES, ResolvedSglang, SglangSettings
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import Cache
from infercast.models.spec import ModelConfig, stage_range
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tiers import Offload
from infercast.units import GIGA

SPLIT_WINDOWS = (
    "GptOssForCausalLM", "Llama4ForConditionalGeneration", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
)  # fmt: skip
"""Architectures whose layers with windows have a pool of their own; those of others keep every token
(``configs/model_config.py``, ``is_hybrid_swa_model``)."""


class Cells(NamedTuple):
    """Bytes on one GPU of one stage."""

    full: float
    """A token in the layers that keep all of them."""
    windowed: float
    """A token in the layers with windows, whose pool is smaller."""
    state: float
    """A sequence in recurrent layers."""

    def token(self, ratio: float) -> float:
        """What one token of capacity costs where the pool of windows has ``ratio`` times as many tokens."""
        return self.full + ratio * self.windowed if self.full else self.windowed


def cells(model: ModelConfig, layout: ParallelLayout, settings: SglangSettings, stage: int = 0) -> Cells:
    """What a token and a sequence cost in one stage of a pipeline."""
    shard = model.shard(layout)
    held = stage_range(model.layers, layout.pipeline, stage)
    unsplit = settings.disable_hybrid_swa_memory or model.architecture not in SPLIT_WINDOWS
    kept: list[Cache] = []
    for position, number in enumerate(model.layer_stacks):
        if position in held:
            kept += model.stacks[number].mixer.caches(shard)
    return Cells(
        full=sum(cache.bytes_per_token for cache in kept if unsplit or not cache.window),
        windowed=sum(cache.bytes_per_token for cache in kept if cache.window and not unsplit),
        state=sum(cache.bytes_per_sequence for cache in kept),
    )


def kv_layout(token_bytes: float, page_size: int) -> KvLayout:
    """Pages as a scheduler sees them: one pool, in which a token of the smaller one is a part of the other's."""
    return KvLayout(KvShape(page_size), round(token_bytes * page_size))


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


def offload_of(
    settings: ResolvedSglang,
    shape: KvShape,
    page_bytes: int,
    num_pages: int,
    layers: int,
    layout: ParallelLayout,
    gpu: Gpu,
) -> Offload | None:
    if not settings.enable_hierarchical_cache:
        return None
    if shape.states or shape.state_blocks or any(shape.windows):
        raise InputError(
            "enable_hierarchical_cache is not modelled for models with windows or recurrent layers; leave it out"
        )
    size = settings.hicache_size
    pages = int(size * GIGA // page_bytes) if size else int(num_pages * settings.hicache_ratio)
    link = host_link(gpu, layout.tensor * layout.pipeline, 0.0, 0.0)
    return Offload(
        num_blocks=pages,
        block_bytes=page_bytes,
        block_pieces=layers,
        load=link,
        store=link,
        prompts_only=False,
        store_threshold=1 + WRITE_POLICIES.index(settings.hicache_write_policy),
    )
