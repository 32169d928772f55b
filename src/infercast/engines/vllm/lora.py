"""LoRA adapters under vLLM's settings (``config/lora.py``): how many in a step, of which rank, and what they take."""

from __future__ import annotations

from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings
from infercast.errors import InputError
from infercast.models.adapters import AdapterSlots, adapter_bytes
from infercast.models.layout import ParallelLayout
from infercast.models.lower import token_calls
from infercast.models.spec import ModelConfig

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What ``--max-lora-rank`` may be."""


def adapter_slots(settings: EngineSettings, model: ModelConfig, layout: ParallelLayout) -> AdapterSlots | None:
    """Room for adapters, if any are asked for; what is not modelled is refused."""
    if not settings.enable_lora:
        if settings.max_loras != 1 or settings.max_lora_rank != 16:
            raise InputError("max_loras and max_lora_rank need enable_lora; say --enable-lora")
        return None
    if settings.max_loras < 1:
        raise InputError(f"max_loras must be at least 1, not {settings.max_loras}")
    if settings.max_lora_rank not in RANKS:
        ranks = ", ".join(map(str, RANKS))
        raise InputError(f"max_lora_rank must be one of {ranks}, not {settings.max_lora_rank}")
    if model.has_experts:
        raise InputError(
            f"enable_lora is not modelled for {model.name}: adapters of experts have kernels of their own; "
            "use a model without experts"
        )
    if layout.pipeline > 1:
        raise InputError("enable_lora is not modelled in a pipeline; set pipeline_parallel_size to 1")
    return AdapterSlots(settings.max_loras, settings.max_lora_rank)


def slots_bytes(config: ModelConfig, layout: ParallelLayout) -> float:
    """What adapters take of a GPU."""
    if config.adapters is None:
        return 0.0
    return adapter_bytes(token_calls(config, layout, 1), config.adapters, config.weights.base)


def most_adapters(settings: ResolvedSettings) -> int | None:
    """Different adapters that may be in a step; None where there are none."""
    return settings.max_loras if settings.enable_lora else None
