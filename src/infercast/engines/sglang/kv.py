"""The KV pools of a model: how many bytes a token takes, and how many tokens fit.

Facts of SGLang 0.5.16 (``model_executor/pool_configurator.py``, ``mem_cache/kv_cache_configurator.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.memory import KvLayout
from infercast.engines.sglang.settings import SglangSettings
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import Cache
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_range
from infercast.serve.cache.shape import KvShape

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
