"""How vLLM divides GPU memory: weights, LoRA adapters, drafts, activations, CUDA graphs, and KV blocks in the rest.

Facts of vLLM 0.25 (``layers/sparse_attn_indexer.py``, ``backends/mla/indexer.py``, ``flashmla_sparse.py``,
``layers/attention/mla_attention.py``, ``models/deepseek_v4/nvidia/flashmla.py``): buffers for the longest sequences are
reserved at the start, in a workspace that all layers share with their experts; the rest is allocated in the profiling
step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.memory import LINK_SHARE, Memory, host_link, slots_bytes, slots_of
from infercast.engines.tables import Table
from infercast.engines.vllm.host import compiles_kernels
from infercast.engines.vllm.kernels import INDEXED, expert_multiples
from infercast.engines.vllm.kv_cache import States, kv_layout, runs_v2
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings
from infercast.engines.vllm.versions import MEASURED, Rule, engine_version
from infercast.errors import DoesNotFitError, InputError, require
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple
from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.layout import ParallelLayout
from infercast.models.lower import lora_calls, step_calls
from infercast.models.mixers.sparse import CompressedAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig, known_weight_bytes, layer_bytes, stage_range
from infercast.ops.op import PACKED_LATENT, bytes_of
from infercast.units import GIB, KIB, MIB

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
GATHERED_SEQUENCES, WIDENED_SEQUENCES, WIDENED_PROMPTS = 40, 5, 4
"""Maximum-length sequences with buffer space to gather index keys, and to widen a packed cache, compressed or not."""
EXPANDED_SEQUENCES, EXPANDED_TOKENS = 8, 64 * 1024  # Latents with room to expand, though sparse attention expands none


def draft_weights(layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> float:
    drafting = settings.drafting
    if drafting is None or drafting.draft is None:
        return 0.0
    draft = drafting.draft
    multiples = expert_multiples(draft.config, gpu)
    return draft.weight_bytes(replace(layout, tensor=drafting.tensor, pipeline=1), multiples)


def draft_buffers(config: ModelConfig, settings: ResolvedSettings) -> float:
    """Hidden states kept for the drafter: one per token of a step, and those that EAGLE-3 combines."""
    drafting = settings.drafting
    if drafting is None or drafting.draft is None:
        return 0.0
    values = drafting.draft.config.hidden + drafting.draft.combined
    return settings.max_num_batched_tokens * values * bytes_of(config.weights.base)


def draft_graphs(layout: ParallelLayout, settings: ResolvedSettings) -> tuple[int, int]:
    """Kernels per draft pass, and captured graphs of passes: the first like the target's, later ones full."""
    drafting, graphs = settings.drafting, settings.graphs
    if drafting is None or drafting.draft is None:
        return 0, 0
    one = np.array([1])
    draft, layout = drafting.draft, replace(layout, pipeline=1)
    calls = [*draft.pass_calls(layout, 1), *draft.attention_calls(layout, one, one), *draft.head_calls(layout, 1)]
    sizes = graphs.sizes
    first = len(sizes) + (graphs.num_full if drafting.v2_runner else 0)
    later = sum(size <= settings.max_num_seqs for size in sizes) if drafting.v2_runner and drafting.passes > 1 else 0
    return sum(call.count for call in calls), first + later


def with_adapters(settings: EngineSettings, model: ModelConfig) -> ModelConfig:
    if not settings.enable_lora:
        if settings.max_loras != 1 or settings.max_lora_rank != 16:
            raise InputError("max_loras and max_lora_rank need enable_lora; say --enable-lora")
        return model
    require(settings.max_loras >= 1, "max_loras", "be at least 1", settings.max_loras)
    rank = settings.max_lora_rank
    require(rank in RANKS, "max_lora_rank", f"be one of {', '.join(map(str, RANKS))}", rank)
    return replace(model, adapters=slots_of(settings.max_loras, settings.max_lora_rank, model))


class SparseMemory(NamedTuple):
    kept: float  # The selected positions, and the workspace
    beside: float  # Live in a layer's attention during the engine's profiling step


def sparse_memory(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> SparseMemory | None:
    mixers = [stack.mixer for stack in config.stacks]
    sparse = [mixer for mixer in mixers if isinstance(mixer, SparseLatentAttention | CompressedAttention)]
    indexers = [mixer.indexer for mixer in sparse if mixer.indexer]
    if not indexers:
        return None
    longest, tokens = settings.max_model_len, settings.max_num_batched_tokens
    shard = config.shard(layout)
    gathered = GATHERED_SEQUENCES * longest * indexers[0].caches()[0].bytes_per_token
    value, beside, copied = bytes_of(config.weights.base), float(512 * MIB), 0.0
    for mixer in sparse:
        if isinstance(mixer, CompressedAttention):
            entries = -(-longest // mixer.compressor.tokens) if mixer.compressor else 0
            room = WIDENED_PROMPTS * (entries + mixer.window + tokens) * mixer.head_dim * value
        else:
            heads = shard.layout.share(mixer.heads)
            room = tokens * heads * mixer.latent_dim * value if mixer.joins_queries else 0.0
            if config.cache_dtype == PACKED_LATENT:
                room += WIDENED_SEQUENCES * longest * mixer.latent_dim * value
            pages = settings.max_num_seqs * INDEXED
            expanded = max(min(max(EXPANDED_SEQUENCES * longest, 4 * pages), EXPANDED_TOKENS), pages)
            beside = max(beside, expanded * heads * mixer.expanded_dim * value)
        copied = max(copied, room)
    return SparseMemory(max(gathered, copied) + 4.0 * tokens * indexers[0].topk, beside)


# Weights in host memory. Kernels read them there (`cpu_offload_gb`), or layers are copied to the GPU ahead of their use
# (`offload_group_size`). Of what kernels read, an H200 got 50.7 GB/s in bf16 GEMMs of four shapes and up to 128 rows,
# where copies had 55; with more rows, a weight is read again about every 256 rows, 32 times with 8,192.
READ_SHARE, ROWS_A_READ = 0.80, 256
"""Share of the link's bandwidth that kernels reach, and rows of a step for which they read a weight once more."""


def layers_in_host(settings: ResolvedSettings, layers: list[float]) -> list[float]:
    """Of the bytes of each layer of a stage, those in host memory."""
    if group := settings.offload_group_size:
        kept = group - settings.offload_num_in_group
        return [size if number % group >= kept else 0.0 for number, size in enumerate(layers)]
    return np.diff(np.minimum(np.cumsum([0.0, *layers]), settings.cpu_offload_gb * GIB)).tolist()  # type: ignore[no-any-return]


def bytes_saved(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings, stage: int) -> float:
    """GPU memory that weights in host memory leave free, less the buffers that layers and moving experts take."""
    taken = 0.0
    if layout.balanced:  # vLLM, eplb_state.py: experts that move to this GPU, room for those of one layer
        networks, shard = (stack.feed_forward for stack in config.stacks), config.shard(layout)
        routed = (each for each in networks if isinstance(each, ExpertFeedForward))
        taken = max(each.routed_bytes(shard, expert_multiples(config, gpu)) for each in routed)
    if not (settings.offload_group_size or settings.cpu_offload_gb):
        return -taken
    moved = layers_in_host(settings, [size for size, *_ in _layers(config, layout, gpu, stage)])
    taken += settings.offload_prefetch_step * max(moved) if settings.offload_group_size else 0.0
    return sum(moved) - taken


def _layers(config: ModelConfig, layout: ParallelLayout, gpu: Gpu, stage: int) -> list[tuple[float, float, float]]:
    """Bytes of each layer of a stage, of these of experts, and the share of the experts that a token goes to."""
    shard, multiples, kinds = config.shard(layout), expert_multiples(config, gpu), []
    for stack in config.stacks:
        routed = stack.feed_forward if isinstance(stack.feed_forward, ExpertFeedForward) else None
        experts = (routed.held_bytes(shard, multiples), routed.topk / routed.experts) if routed else (0.0, 1.0)
        kinds.append((layer_bytes(shard, stack, multiples), *experts))
    return [kinds[config.layer_stacks[number]] for number in stage_range(config.layers, layout, stage)]


def _bytes_read(layer: tuple[float, float, float], tokens: Table) -> Table:
    """By kernels of steps of this many tokens: all but experts that no token goes to, again for every few rows."""
    size, experts, chosen = layer
    met = experts * (1.0 - (1.0 - chosen) ** tokens) * np.maximum(1.0, chosen * tokens / ROWS_A_READ)
    return np.asarray(met + (size - experts) * np.maximum(1.0, tokens / ROWS_A_READ))


def weight_waits(deployment: Deployment, tokens: Table, seconds: Table) -> Table | None:
    settings, layout, config, gpu = deployment.settings, deployment.layout, deployment.model, deployment.gpu
    assert isinstance(settings, ResolvedSettings)
    if not (settings.offload_group_size or settings.cpu_offload_gb):
        return None
    rate, waits = host_link(gpu, layout.replica_gpus, 0.0, 0.0).rate, np.zeros(np.shape(seconds))
    for stage in range(layout.pipeline):
        layers = _layers(config, layout, gpu, stage)
        sizes, own = [size for size, *_ in layers], seconds * len(layers) / config.layers
        moved = layers_in_host(settings, sizes)
        if settings.offload_group_size:
            copies = [size / rate for size in moved]
            waits += _prefetch_waits(copies, own / len(layers), settings.offload_prefetch_step)
        else:
            part = sum(moved) / sum(sizes)
            read = sum(count * _bytes_read(layer, tokens) for layer, count in Counter(layers).items())
            waits += np.maximum(0.0, part * (read / (rate * READ_SHARE / LINK_SHARE) - own))
    return waits


def _prefetch_waits(copies: list[float], a_layer: Table, ahead: int) -> Table:
    """Waits of steps with layers of these times; copies follow each other, each ``ahead`` layers before its own."""
    moved = [number for number, copy in enumerate(copies) if copy]
    now = free = np.zeros(np.shape(a_layer))
    done: list[Table] = [now] * ahead  # loaded by the step before
    for place, number in enumerate(moved):
        now = np.maximum(now + a_layer * (number - (moved[place - 1] + 1 if place else 0)), done[place]) + a_layer
        free = np.maximum(now, free) + copies[moved[(place + ahead) % len(moved)]]
        done.append(free)
    end = np.maximum(now + a_layer * (len(copies) - 1 - moved[-1]), free) if moved else now
    return np.asarray(end - a_layer * len(copies) if moved else now)


# Memory per kernel in a captured graph, and of libraries outside torch's allocator. Derived from the block counts of
# vLLM 0.25 on an H200 for five models: see docs/engine.md.
GRAPH_BYTES_A_KERNEL = 16 * KIB
# What the V2 model runner reserves per graph since it profiles them: at least this much, or by kernels. A model of 24
# layers and 220 kernels lost 105 MiB for 102 graphs to the V1 runner's profile, which has the same minimum (vLLM 0.26
# on an RTX PRO 6000, issue 50159 of vLLM): none of its graphs takes more.
LEAST_PROFILED_BYTES = 1 * MIB
LIBRARY_BYTES, LATER_LIBRARY_BYTES = 100 * MIB, 256 * MIB  # The latter beside the sampler's own buffers
SAMPLER_BYTES = 4 + 1 / 8  # For each sequence and token of the vocabulary: counts of answers, a mask of prompts
# Additional memory with recurrent and sparse layers, whose kernels are compiled and tuned while older engines profile
# their memory (0.33 gives it back: Qwen3.5-4B). Such engines have 1.9, 1.8 and 1.7 GiB less for blocks than the rest
# explains (Qwen3.5-35B-A3B, Nemotron 3 Nano, and six layers of GLM-5).
COMPILED_BYTES = 1.8 * GIB


def plan_memory(
    config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings, stage: int | None = None
) -> Memory:
    """The memory of one GPU of a stage, or of the one with the least room, as the engine divides it."""
    activations = peak_activation_bytes(config, layout, settings)
    all_graphs = graph_bytes(config, layout, settings)
    multiples = expert_multiples(config, gpu)
    if _samples_apart(config, settings):
        libraries = LATER_LIBRARY_BYTES + settings.max_num_seqs * config.vocabulary * SAMPLER_BYTES
    else:
        libraries = LIBRARY_BYTES + (COMPILED_BYTES if compiles_kernels(config, layout) else 0.0)
    plans = []
    unbound = 1 + settings.max_num_seqs * -(-settings.max_model_len // settings.block_size)
    drafting = settings.drafting  # the drafter's layers with a KV cache follow the target's
    cached = config if drafting is None or drafting.draft is None else drafting.draft.with_target(config)
    for number in range(layout.pipeline) if stage is None else (stage,):
        device = gpu.at(number)
        usable = device.driver_bytes * settings.gpu_memory_utilization
        graphs = all_graphs * (layout.cut[number] * layout.pipeline / config.layers if layout.cut else 1.0)
        weights = known_weight_bytes(config, layout, number, multiples) + slots_bytes(config, layout, number)
        weights -= bytes_saved(config, layout, gpu, settings, number)
        if number == layout.pipeline - 1:
            weights += draft_weights(layout, gpu, settings)
        num_drafting = cached.layers - config.layers
        kv = kv_layout(cached, layout, settings.block_size, number, settings.state_blocks, num_drafting)
        left = settings.kv_cache_memory_bytes or usable - weights - activations - graphs - libraries
        blocks = max(0, int(left // kv.block_bytes)) if kv.block_bytes else unbound if left > 0 else 0
        parts = weights, activations, graphs, libraries, kv, blocks
        plans.append(Memory(device.driver_bytes, usable, *parts, spare_blocks=1))  # the null block
    plan = min(plans, key=lambda memory: (memory.num_blocks, -memory.weights))
    return plan._replace(num_blocks=settings.num_gpu_blocks_override or plan.num_blocks)


def check_state_blocks(config: ModelConfig, settings: ResolvedSettings, memory: Memory) -> None:
    """Reject KV blocks beyond the GPU's memory, and too few for full graphs of sequences that each need a state."""
    if settings.kv_cache_memory_bytes and memory.needed + memory.kv_bytes > memory.total:
        left = int(memory.total - memory.needed)
        raise DoesNotFitError(f"kv_cache_memory_bytes is above the {left:,} that {config.name} leaves of a GPU")
    records_full = settings.capture_sizes and settings.cudagraph_mode != "piecewise"
    if States.of(config).kept and records_full and settings.max_num_seqs > memory.num_blocks:
        raise DoesNotFitError(
            f"max_num_seqs {settings.max_num_seqs} is above the {memory.num_blocks} KV blocks of {config.name}, whose "
            f"recurrent layers need one for the state of every sequence; lower max_num_seqs to {memory.num_blocks}"
        )


def image_bytes(config: ModelConfig, settings: ResolvedSettings) -> float:
    """What an encoder computed for a full step of images, and a step's inputs for each layer that images feed."""
    encoder = None if config.vision is None else config.vision.images
    if encoder is None:
        return 0.0
    fed = encoder.projector.count(encoder.projector[0])  # Layers; each has a projector of its own
    tokens = fed * max(settings.max_num_batched_tokens, encoder.most_embeds) + fed * settings.max_num_batched_tokens
    return tokens * encoder.projector[-1][1] * bytes_of(config.weights.base)


def peak_activation_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """Peak of activations: the widest layer of a full step, or the logits of a full batch."""
    value = bytes_of(config.weights.base)
    tokens = settings.max_num_batched_tokens
    shard = config.shard(layout)
    widest = max(stack.feed_forward.live_values(shard) for stack in config.stacks)
    kept_for_drafts = draft_buffers(config, settings)
    kept_for_images = image_bytes(config, settings)
    # A buffer keeps the embeddings of single layers beside those in use.
    in_layers = tokens * (2 * config.hidden + widest + 2 * config.layer_inputs) * value + kept_for_drafts
    # Logits in the model's format and in fp32, which the V2 runner samples from a copy of, and their hidden states.
    apart = _samples_apart(config, settings)
    rows = settings.max_num_seqs * (1 if apart else settings.width)  # profiled without drafts by the V2 runner
    in_head = (
        rows * config.vocabulary * (value + (8 if apart else 4)) + tokens * config.hidden * value + kept_for_drafts
    )
    sparse = sparse_memory(config, layout, settings)
    if sparse is None:
        return max(in_layers, in_head) + kept_for_images
    # Experts and sparse attention share a persistent buffer.
    kept = max(sparse.kept, tokens * widest * value)
    streams = 1 + max(stack.streams for stack in config.stacks)
    return kept + max(tokens * streams * config.hidden * value + sparse.beside, in_head) + kept_for_images


def graph_bytes(config: ModelConfig, layout: ParallelLayout, settings: ResolvedSettings) -> float:
    """Memory of the captured CUDA graphs, which grows with their number and their kernels."""
    sizes = settings.capture_sizes
    if not sizes:
        return 0.0
    num_kernels = _num_kernels(config, layout)
    num_full = settings.graphs.num_full
    num_graphs = {"full_decode_only": num_full, "piecewise": len(sizes)}.get(
        settings.cudagraph_mode, len(sizes) + num_full
    )
    if config.adapters is not None:
        # Every size is captured twice: with adapters, and without for steps that have none.
        num_kernels = 2 * num_kernels + sum(call.count for call in lora_calls(config, layout, 1))
    recorded = float(GRAPH_BYTES_A_KERNEL * num_kernels * num_graphs) / layout.pipeline
    draft_kernels, num_draft_graphs = draft_graphs(layout, settings)
    recorded += GRAPH_BYTES_A_KERNEL * draft_kernels * num_draft_graphs
    # The release with measured memory profiled the graphs of its V1 runner, but not those of V2.
    if not (settings.version.has(Rule.RESERVES_GRAPHS) and runs_v2(config, engine_version(MEASURED))):
        return recorded
    profiled_bytes_a_kernel = 4.7 * KIB
    a_graph = max(LEAST_PROFILED_BYTES, profiled_bytes_a_kernel * num_kernels / layout.pipeline)
    profiled_share = 1.4  # What it reserves of what these add up to: vLLM 0.33 with Qwen3-14B in fp8
    return profiled_share * (recorded + (num_graphs + num_draft_graphs) * a_graph)


def _samples_apart(config: ModelConfig, settings: ResolvedSettings) -> bool:
    """Releases with a V2 runner that keeps counts of tokens, and that were seen to count it all."""
    return settings.version.has(Rule.RESERVES_GRAPHS) and runs_v2(config, settings.version)


@lru_cache
def _num_kernels(config: ModelConfig, layout: ParallelLayout) -> int:
    """Kernels of a step: the same for all settings that a plan tries."""
    one = np.array([1])
    return sum(call.count for call in step_calls(config, layout, one, one, sampled=1))
