"""How SGLang divides GPU memory: a static share for weights and KV pools, the rest for activations and graphs.

Facts of SGLang 0.5.16 (``mem_cache/kv_cache_configurator.py``, ``_profile_available_bytes``): what is free after
loading, less the share of what was free before that is not static.

Facts of SGLang 0.5.16 (``models/deepseek_v2.py``): a group has attention and the embedding to itself. The head, dense
layers and, unless tokens are sent to experts, shared experts are split over the GPUs of all groups.

Facts of SGLang 0.5.16 (``server_args.py``, ``_handle_gpu_memory_settings``). All sizes are in MiB of what
``nvidia-smi`` shows, which is more than a program can have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.engines.memory import Memory
from infercast.engines.sglang.kernels import expert_multiples
from infercast.engines.sglang.kv_cache import cells, kv_layout, state_pool
from infercast.engines.sglang.settings import ResolvedSglang, SglangSettings
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig, stage_config, stage_weight_bytes
from infercast.units import GIB, MIB


def weight_bytes(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: SglangSettings, stage: int = 0
) -> float:
    """Weights of each GPU in one stage of a pipeline."""
    multiples = expert_multiples(model, gpu)
    whole = stage_weight_bytes(model, layout, stage, multiples)
    if not settings.enable_dp_attention or layout.sharing == 1:
        return whole
    joined = replace(layout, tensor=layout.tensor * layout.sharing, data=1)
    alone, together = model.shard(layout), model.shard(joined)
    for stack in stage_config(model, layout.pipeline, stage).stacks:
        if not (stack.feed_forward.experts and layout.all_to_all):
            held = stack.feed_forward.held_bytes
            whole -= stack.layers * (held(alone, multiples) - held(together, multiples))
    if stage == layout.pipeline - 1 and not model.tied_embedding:
        table = model.vocabulary * model.hidden * model.weights.stored_bytes(model.weights.head)
        whole -= table / layout.tensor - table / joined.tensor
    return whole


WIDE = 4
"""GPUs of a tensor-parallel group from which on graphs are larger."""
FIXED_MIB, TOKEN_MIB, GPU_MIB, GRAPH_MIB = 512, 1.5, 1024 / 8, 2
"""Reserved for metadata, for each token of a step, for each GPU of the replica, and for each sequence in a graph."""
LEAST_TOKENS, LEAST_MIB, LARGE_MIB = 2048, 10 * 1024, 60 * 1024
PREFILL_SIZE_MIB, LATENT_PREFILL_MIB = 8, 1536
DP_MIB, DP_LARGE_MIB, DP_LARGE = 3, 1.5, 300
DEEPEP_MIB = 2048


class ByMemory(NamedTuple):
    """Defaults of GPUs with less memory than ``below_gib``."""

    below_gib: float
    chunk: int
    sequences: int
    wide_sequences: int


@cache
def _tables() -> tuple[tuple[ByMemory, ...], dict[str, int]]:
    data = read_data("engines/sglang/memory.toml")
    return tuple(ByMemory(*row) for row in data["defaults"]), data["shown_mib"]


def shown_mib(gpu: Gpu) -> float:
    """What nvidia-smi shows as the memory of a GPU; where nobody has seen it, what programs see and a bit more."""
    shown = _tables()[1]
    return shown.get(gpu.name, gpu.driver_bytes / MIB + shown["others_more"])


def by_memory(gpu: Gpu, tensor: int) -> tuple[int, int]:
    """Tokens of a chunk, and sequences of the largest decode graph."""
    memory = shown_mib(gpu) * MIB / GIB
    row = next(row for row in _tables()[0] if memory < row.below_gib)
    return row.chunk, row.wide_sequences if tensor >= WIDE else row.sequences


def graph_bytes(decode_sizes: tuple[int, ...], prefill_sizes: tuple[int, ...]) -> float:
    return float(MIB * (GRAPH_MIB * max(decode_sizes, default=0) + PREFILL_SIZE_MIB * len(prefill_sizes)))


class Reserved(NamedTuple):
    """What the share of static memory depends on."""

    tokens: int
    """Of the largest step of prompts."""
    gpus: int
    """Of the whole deployment: tensor times pipeline."""
    largest_graph: int
    """Sequences of the largest decode graph, or of what it would be ..."""
    decode_graphs: bool
    """... without any."""
    num_prefill_sizes: int
    is_latent: bool
    dp_copies: int = 0
    """Groups of DP attention; 0 without it."""
    deepep: bool = False

    def static_share(self, gpu: Gpu) -> float:
        """The default of ``mem_fraction_static``."""
        shown = shown_mib(gpu)
        mib = FIXED_MIB + TOKEN_MIB * max(self.tokens, LEAST_TOKENS) + GPU_MIB * self.gpus
        mib += GRAPH_MIB * self.largest_graph * self.decode_graphs
        if self.dp_copies:
            sequences = self.largest_graph * self.dp_copies
            mib += sequences * (DP_MIB + (DP_LARGE_MIB if self.largest_graph > DP_LARGE else 0.0))
        if self.num_prefill_sizes:
            mib += LATENT_PREFILL_MIB if self.is_latent else PREFILL_SIZE_MIB * self.num_prefill_sizes
        if shown > LARGE_MIB:
            mib = max(mib, LEAST_MIB)
        mib += DEEPEP_MIB if self.deepep else 0
        return round((shown - mib) / shown, 3)


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
