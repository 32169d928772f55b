"""How SGLang divides GPU memory, and the shape of its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines.memory import KvLayout, Memory, host_link, slots_bytes
from infercast.engines.sglang.kernels import expert_multiples
from infercast.engines.sglang.settings import ARCHITECTURES, WRITE_POLICIES, ResolvedSglang, SglangSettings
from infercast.engines.speculation import EAGLE, EAGLE_3, Drafting
from infercast.errors import InputError, UnsupportedModelError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import Cache, GroupedAttention
from infercast.models.mixers.sparse import CompressedAttention
from infercast.models.spec import ModelConfig, known_weight_bytes, stage_config, stage_range
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.tiers import Offload
from infercast.units import GIB, GIGA, MIB

KEPT = 3  # States per running request, so that prefixes can be reused
BUFFERS = {"extra_buffer": 2, "extra_buffer_lazy": 1, "no_buffer": 0}
FIXED_MIB, TOKEN_MIB, GPU_MIB, GRAPH_MIB = 512, 1.5, 1024 / 8, 2  # In all, per token of a step, GPU and graphed row
LEAST_TOKENS, LEAST_MIB, LARGE_MIB = 2048, 10 * 1024, 60 * 1024
PREFILL_SIZE_MIB, LATENT_PREFILL_MIB = 8, 1536
DP_MIB, DP_LARGE_MIB, DP_LARGE = 3, 1.5, 300


class Cells(NamedTuple):
    full: float  # Per token in layers that keep all tokens
    windowed: float  # Per token in sliding window layers, which have a smaller pool
    state: float  # Per sequence in recurrent layers
    fixed: float = 0.0  # Whatever the number of tokens

    def token(self, ratio: float) -> float:
        return self.full + ratio * self.windowed if self.full else self.windowed


COMPRESSED_SEQUENCES, COMPRESSED_RATIO, STATE_BYTES = 256, 0.1, 4  # Bytes: of a number that waits to be compressed
RINGS = {4: 8, 128: 128}  # Tokens that wait, by how many make an entry; twice as many with drafts


def compressed_defaults(asked: SglangSettings) -> SglangSettings:
    """What the engine sets for DeepSeek-V4 (``arg_groups/overrides.py``, ``arg_groups/deepseek_v4_hook.py``)."""
    ratio = {SglangSettings().swa_full_tokens_ratio: COMPRESSED_RATIO}.get(asked.swa_full_tokens_ratio)
    running = asked.max_running_requests or COMPRESSED_SEQUENCES
    return replace(asked, max_running_requests=running, swa_full_tokens_ratio=ratio or asked.swa_full_tokens_ratio)


def _compressed(mixers: Sequence[Any], drafts: int, slots: int) -> Cells:
    """Pools of DeepSeek-V4 (``model_executor/pool_configurator.py``); tokens wait in rings until they make an entry."""
    full = windowed = fixed = 0.0
    for mixer in mixers:
        windowed += mixer.entry_bytes
        if made := mixer.compressor:
            full += (made.entry_bytes + (mixer.indexer.entry_bytes if mixer.indexer else 0)) / made.tokens
            width, ring = 2 * made.spans * STATE_BYTES, drafts * RINGS[made.tokens]
            if mixer.indexer:
                windowed += ring / mixer.window * width * (made.head_dim + mixer.indexer.head_dim)
            else:  # rings of requests
                fixed += -(-((slots + 2) * ring + 1) // made.tokens) * made.tokens * width * made.head_dim
    return Cells(full, windowed, 0.0, fixed)


def cells(model: ModelConfig, layout: ParallelLayout, settings: SglangSettings, stage: int = 0) -> Cells:
    shard = model.shard(layout)
    held = stage_range(model.layers, layout, stage)
    unsplit = settings.disable_hybrid_swa_memory or model.architecture not in ARCHITECTURES["split_windows"]
    kept: list[Cache] = []
    if model.has_mixer(CompressedAttention):
        mixers = [model.stacks[number].mixer for at, number in enumerate(model.layer_stacks) if at in held]
        slots = (settings.max_running_requests or 0) // (layout.sharing if settings.enable_dp_attention else 1)
        return _compressed(mixers, 2 if settings.speculative_algorithm else 1, slots)
    for position, number in enumerate(model.layer_stacks):
        if position in held:
            mixer = model.stacks[number].mixer
            # Pools have room for layers that read what earlier ones cached, too.
            kept += (replace(mixer, borrows=False) if isinstance(mixer, GroupedAttention) else mixer).caches(shard)
    if not any(cache.bytes_per_token for stack in model.stacks for cache in stack.mixer.caches(shard)):
        raise UnsupportedModelError(f"{model.name} has no KV cache, for which this engine is not modelled; use another")
    return Cells(
        full=sum(cache.bytes_per_token for cache in kept if unsplit or not cache.window),
        windowed=sum(cache.bytes_per_token for cache in kept if cache.window and not unsplit),
        state=sum(cache.bytes_per_sequence for cache in kept),
    )


def kv_layout(token_bytes: float, page_size: int) -> KvLayout:
    """Pages as seen by the scheduler: one pool, with the window pool's bytes spread over its tokens."""
    return KvLayout(KvShape(page_size), round(token_bytes * page_size))


class StatePool(NamedTuple):
    """How a model's states are kept; a model without any is not limited by them."""

    state_bytes: float
    strategy: str
    overlaps: bool

    def per_request(self, settings: SglangSettings) -> int:
        if settings.disable_radix_cache:
            return 1
        buffers = BUFFERS[self.strategy]
        return KEPT + (min(buffers, 1) if settings.disable_overlap_schedule else buffers)

    def fit(self, kv_bytes: float, settings: SglangSettings, copies: int, width: int = 0) -> int:
        """States that fit in the memory left for them and the KV cache, with drafts also one per verified token."""
        if not self.state_bytes:
            return 0
        if settings.max_mamba_cache_size is not None:
            return settings.max_mamba_cache_size // copies
        if settings.disable_radix_cache and settings.max_running_requests is not None:
            return settings.max_running_requests // copies
        ratio = settings.mamba_full_memory_ratio
        each = self.state_bytes * (1.0 + width / self.per_request(settings))
        return int(max(kv_bytes, 0.0) * ratio / (1.0 + ratio) // each)


def state_pool(model: ModelConfig, layout: ParallelLayout, asked: SglangSettings) -> StatePool:
    """How the engine keeps states, and whether that rules out overlap scheduling."""
    shard = model.shard(layout)
    caches = [(stack.layers, cache) for stack in model.stacks for cache in stack.mixer.caches(shard)]
    size = sum(layers * cache.bytes_per_sequence for layers, cache in caches)
    overlaps = not asked.disable_overlap_schedule and layout.pipeline == 1
    if not size or asked.disable_radix_cache:
        return StatePool(size, "no_buffer", overlaps)
    strategy = asked.mamba_radix_cache_strategy or "auto"
    if strategy == "auto":
        buffered = model.architecture in ARCHITECTURES["buffered"] and not asked.disable_overlap_schedule
        strategy = "extra_buffer" if buffered else "no_buffer"
    return StatePool(size, strategy, overlaps and strategy != "no_buffer")


def offload_of(
    settings: ResolvedSglang, memory: Memory, layers: int, layout: ParallelLayout, gpu: Gpu
) -> Offload | None:
    if not settings.enable_hierarchical_cache:
        return None
    shape, page_bytes, num_pages = memory.kv.shape, memory.kv.block_bytes, memory.request_blocks
    if shape.states or shape.state_blocks or any(shape.windows):
        raise InputError(
            "enable_hierarchical_cache is not modelled for models with windows or recurrent layers; leave it out"
        )
    size = settings.hicache_size
    pages = int(size * GIGA // page_bytes) if size else int(num_pages * settings.hicache_ratio)
    link = host_link(gpu, layout.tensor * layout.pipeline, 0.0, 0.0)
    return Offload(
        num_blocks=pages, block_bytes=page_bytes, block_pieces=layers, load=link, store=link, prompts_only=False,
        store_threshold=1 + WRITE_POLICIES.index(settings.hicache_write_policy),
    )  # fmt: skip


def weight_bytes(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: SglangSettings, stage: int = 0
) -> float:
    multiples = expert_multiples(model, gpu)
    whole = known_weight_bytes(model, layout, stage, multiples)
    if not settings.enable_dp_attention or layout.sharing == 1:
        return whole
    joined = replace(layout, tensor=layout.tensor * layout.sharing, data=1)
    alone, together = model.shard(layout), model.shard(joined)
    for stack in stage_config(model, layout, stage).stacks:
        if not (stack.feed_forward.experts and layout.all_to_all):
            held = stack.feed_forward.held_bytes
            whole -= stack.layers * (held(alone, multiples) - held(together, multiples))
    if stage == layout.pipeline - 1 and not model.tied_embedding:
        table = model.vocabulary * model.hidden * model.weights.stored_bytes(model.weights.head)
        whole -= table / layout.tensor - table / joined.tensor
    return whole


class ByMemory(NamedTuple):
    """Defaults for GPUs with less memory than ``below_gib``."""

    below_gib: float
    chunk: int
    sequences: int
    wide_sequences: int


@cache
def _tables() -> tuple[tuple[ByMemory, ...], dict[str, int]]:
    data = read_data("engines/sglang/memory.toml")
    return tuple(ByMemory(*row) for row in data["defaults"]), data["shown_mib"]


def shown_mib(gpu: Gpu) -> float:
    """GPU memory as shown by nvidia-smi; if unknown, what programs see plus a little."""
    shown = _tables()[1]
    return shown.get(gpu.name, gpu.driver_bytes / MIB + shown["others_more"])


def by_memory(gpu: Gpu, tensor: int) -> tuple[int, int]:
    """Chunk size in tokens, and sequences of the largest decode graph."""
    memory = shown_mib(gpu) * MIB / GIB
    row = next(row for row in _tables()[0] if memory < row.below_gib)
    wide = 4  # Tensor parallel size from which on graphs are larger
    return row.chunk, row.wide_sequences if tensor >= wide else row.sequences


def graph_bytes(decode_sizes: tuple[int, ...], prefill_sizes: tuple[int, ...]) -> float:
    return float(MIB * (GRAPH_MIB * max(decode_sizes, default=0) + PREFILL_SIZE_MIB * len(prefill_sizes)))


class Reserved(NamedTuple):
    tokens: int
    gpus: int  # Of the whole deployment: tensor times pipeline
    largest_graph: int  # Sequences of the largest decode graph, or of what it would be ...
    decode_graphs: bool  # ... without graphs.
    num_prefill_sizes: int
    is_latent: bool
    dp_copies: int = 0  # DP attention groups; 0 without them
    deepep: bool = False

    def static_share(self, gpu: Gpu) -> float:
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
        mib += 2048 if self.deepep else 0
        return round((shown - mib) / shown, 3)


class Budget(NamedTuple):
    """What is left for KV pools on the GPU with the least room."""

    free_before: float
    weights: float
    kv_bytes: float
    token_bytes: float
    states: int = 0  # Recurrent states, not included in `kv_bytes` ...
    state_bytes: float = 0.0  # ... and their total bytes.
    stage: int = 0


def draft_weights(drafting: Drafting | None, layout: ParallelLayout, gpu: Gpu) -> float:
    """Weights of the drafter, which is loaded with an embedding even where it then uses the target's."""
    if drafting is None or (draft := drafting.draft) is None:
        return 0.0
    if drafting.method in (EAGLE, EAGLE_3):
        draft = replace(draft, own_embedding=draft.own_embedding or draft.spread_over or draft.config.vocabulary)
    return draft.weight_bytes(layout, expert_multiples(draft.config, gpu))


def budget(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: SglangSettings, static_share: float,
    drafting: Drafting | None = None, stage: int | None = None,
) -> Budget:  # fmt: skip
    """The pipeline stage with room for the fewest tokens, or the one that is asked for."""
    draft = None if drafting is None else drafting.draft
    width = 0 if drafting is None else drafting.width
    found = []
    for number in range(layout.pipeline) if stage is None else (stage,):
        # Free memory after creating the CUDA context and process groups.
        known = read_data("engines/sglang/memory.toml")
        peers = layout.tensor * layout.sharing - 1
        free = gpu.at(number).driver_bytes - MIB * float(known["context_mib"] + known["peer_mib"] * peers)
        weights = weight_bytes(model, layout, gpu, settings, number) + slots_bytes(model, layout, number)
        weights += draft_weights(drafting, layout, gpu)
        each = cells(model, layout, settings, number)
        left = static_share * free - weights
        pool = state_pool(model, layout, settings)
        states = pool.fit(left, settings, layout.sharing if settings.enable_dp_attention else 1, width)
        token = each.token(settings.swa_full_tokens_ratio)
        if draft is not None:  # layers that draft are taken to be like the target's
            token *= 1.0 + draft.config.layers * draft.modules / model.layers
        taken = states * each.state + each.fixed
        if width and states:  # and a state after each verified token
            taken += each.state * width * min(settings.max_running_requests or 1, states // pool.per_request(settings))
        found.append(Budget(free, weights, left - taken, token, states, taken, number))
    return min(found, key=lambda one: (one.kv_bytes / max(one.token_bytes, 1.0), -one.weights))


def tokens_that_fit(room: Budget, settings: SglangSettings, page_size: int) -> int:
    tokens = int(max(room.kv_bytes, 0.0) // room.token_bytes) if room.token_bytes else 0
    return min(tokens, settings.max_total_tokens or tokens) // page_size * page_size


def plan_memory(
    model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSglang, stage: int | None = None
) -> Memory:
    """The memory of one GPU, as the engine divides it at its start. ``num_blocks`` may be 0."""
    room = budget(model, layout, gpu, settings, settings.mem_fraction_static, settings.drafting, stage)
    gpu = gpu.at(room.stage)
    reserved = room.free_before * (1.0 - settings.mem_fraction_static)
    graphs = min(reserved, graph_bytes(settings.decode_sizes, settings.prefill_sizes))
    pages = tokens_that_fit(room, settings, settings.page_size) // settings.page_size
    parts = room.weights, reserved - graphs, graphs, gpu.driver_bytes - room.free_before
    kv = kv_layout(room.token_bytes, settings.page_size)
    return Memory(gpu.driver_bytes, gpu.driver_bytes, *parts, kv, pages, states=room.state_bytes)
