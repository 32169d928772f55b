"""How SGLang divides memory: a static share for weights and KV pools, the rest for activations and graphs.

Facts of SGLang 0.5.16 (``mem_cache/kv_cache_configurator.py``, ``_profile_available_bytes``): what is free after
loading, less the share of what was free before that is not static.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.engines.memory import Memory
from infercast.engines.sglang.defaults import graph_bytes
from infercast.engines.sglang.held import weight_bytes
from infercast.engines.sglang.kv import cells, kv_layout
from infercast.engines.sglang.settings import ResolvedSglang, SglangSettings
from infercast.engines.sglang.states import state_pool
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.units import MIB


@cache
def _constants() -> tuple[float, float]:
    data = read_data("engines/sglang/memory.toml")
    return data["context_mib"] * MIB, data["peer_mib"] * MIB


class Budget(NamedTuple):
    """What is left for KV pools on the GPU with least room."""

    free_before: float
    """Memory that is free before weights are loaded."""
    weights: float
    kv_bytes: float
    token_bytes: float
    states: int = 0
    """Of recurrent layers, whose memory is not in `kv_bytes` ..."""
    state_bytes: float = 0.0
    """... and is so much together."""


def free_before_loading(gpu: Gpu, layout: ParallelLayout) -> float:
    """What a process of the engine finds once it has a CUDA context and groups of peers."""
    context, peer = _constants()
    return gpu.driver_bytes - context - peer * (layout.tensor * layout.sharing - 1)


def budget(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: SglangSettings, static_share: float
) -> Budget:
    """The stage of a pipeline whose pools have room for the fewest tokens."""
    free = free_before_loading(gpu, layout)
    found = []
    for stage in range(layout.pipeline):
        weights = weight_bytes(model, layout, gpu, settings, stage)
        each = cells(model, layout, settings, stage)
        left = static_share * free - weights
        pool = state_pool(model, layout, settings)
        states = pool.fit(left, settings, layout.sharing if settings.enable_dp_attention else 1)
        token = each.token(settings.swa_full_tokens_ratio)
        taken = states * each.state
        found.append(Budget(free, weights, left - taken, token, states, taken))
    return min(found, key=lambda one: (one.kv_bytes / max(one.token_bytes, 1.0), -one.weights))


def tokens_that_fit(room: Budget, settings: SglangSettings, page_size: int) -> int:
    """``max_total_num_tokens``: whole pages."""
    tokens = int(max(room.kv_bytes, 0.0) // room.token_bytes) if room.token_bytes else 0
    return min(tokens, settings.max_total_tokens or tokens) // page_size * page_size


def plan_memory(model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSglang) -> Memory:
    """The memory of one GPU, as the engine divides it at its start. ``num_blocks`` may come out as 0."""
    room = budget(model, layout, gpu, settings, settings.mem_fraction_static)
    reserved = room.free_before * (1.0 - settings.mem_fraction_static)
    graphs = min(reserved, graph_bytes(settings.decode_sizes, settings.prefill_sizes))
    return Memory(
        total=gpu.driver_bytes,
        usable=gpu.driver_bytes,
        weights=room.weights,
        activations=reserved - graphs,
        graphs=graphs,
        libraries=gpu.driver_bytes - room.free_before,
        kv=kv_layout(room.token_bytes, settings.page_size),
        states=room.state_bytes,
        num_blocks=tokens_that_fit(room, settings, settings.page_size) // settings.page_size,
    )
