"""What SGLang would choose on a GPU for a model where nobody asks for anything, and what it would refuse."""

from __future__ import annotations

from dataclasses import asdict

from infercast.engines.sglang.backends import EAGER_BACKENDS, attention_backend, check_backend, is_latent, page_size
from infercast.engines.sglang.checks import check
from infercast.engines.sglang.defaults import Reserved, by_memory
from infercast.engines.sglang.graphs import decode_sizes, kept_sizes, prefill_sizes
from infercast.engines.sglang.memory import budget, tokens_that_fit
from infercast.engines.sglang.settings import PREFILL_GRAPHS, ResolvedSglang, SglangSettings
from infercast.engines.sglang.states import state_pool
from infercast.engines.sglang.vision import prompt_graphs, static_factor
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import CompressedAttention
from infercast.models.spec import ModelConfig

USUAL_SEQUENCES, MOST_SEQUENCES, CONTEXTS = 2048, 4096, 512
"""Sequences at once, by how many contexts of the longest length the pool holds."""
LATENT_GRAPH = 2048
"""Tokens of the largest graph of prompts where layers keep latents."""


def resolve(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSglang:
    """Fill in every default."""
    check(asked, model.max_positions)
    if any(isinstance(stack.mixer, CompressedAttention) for stack in model.stacks):
        raise InputError(
            f"SGLang's caches of {model.name}, whose keys are compressed, are not modelled; use another engine"
        )
    backend = attention_backend(model, gpu, asked.attention_backend)
    check_backend(backend, gpu)
    page = page_size(model, backend, asked.page_size)
    context = asked.context_length or model.max_positions
    groups = layout.sharing if asked.enable_dp_attention else 1
    usual_chunk, largest_graph = by_memory(gpu, layout.tensor * groups)
    chunk = asked.chunked_prefill_size or usual_chunk
    without = asked.disable_cuda_graph or backend in EAGER_BACKENDS
    graphs = not (without or (layout.all_to_all and asked.deepep_mode == "normal"))
    decode = _decode_sizes(asked, largest_graph)
    replays = graphs and not asked.disable_decode_cuda_graph
    prefill = (
        _prefill_sizes(asked, model, layout, gpu, chunk) if graphs and not asked.disable_prefill_cuda_graph else ()
    )
    share = asked.mem_fraction_static
    if share is None:
        reserved = Reserved(
            tokens=chunk if chunk > 0 else asked.max_prefill_tokens,
            gpus=layout.tensor * groups * layout.pipeline,
            largest_graph=max(decode),
            decode_graphs=replays,
            num_prefill_sizes=len(prefill),
            is_latent=is_latent(model),
            dp_copies=groups if asked.enable_dp_attention else 0,
            deepep=layout.all_to_all,
        )
        share = reserved.static_share(gpu) * static_factor(model)
    states = state_pool(model, layout, asked)
    room = budget(model, layout, gpu, asked, share)
    tokens = tokens_that_fit(room, asked, page)
    running = _running(asked, tokens, context, groups)
    if states.state_bytes:
        running = min(running, room.states // states.per_request(asked))
    running = max(1, running)
    return ResolvedSglang(
        **{
            **asdict(asked),
            "mem_fraction_static": share,
            "max_running_requests": running,
            "chunked_prefill_size": chunk // groups if chunk > 0 else chunk,
            "context_length": context,
            "page_size": page,
            "attention_backend": backend,
            "disable_overlap_schedule": not states.overlaps,
            "mamba_radix_cache_strategy": states.strategy,
            "decode_sizes": kept_sizes(decode if replays else (), running, layout.tensor if groups > 1 else 1),
            "prefill_sizes": prefill,
            "longest": max(1, min(context, tokens)),
            "groups": groups,
        }
    )


def _running(asked: SglangSettings, tokens: int, context: int, groups: int) -> int:
    """Requests that run at once, at most as many as have room for two tokens."""
    usual = min(max(tokens * CONTEXTS // context, USUAL_SEQUENCES), MOST_SEQUENCES)
    return min(usual if asked.max_running_requests is None else asked.max_running_requests // groups, tokens // 2)


def _decode_sizes(asked: SglangSettings, default: int) -> tuple[int, ...]:
    if asked.cuda_graph_bs is not None:
        return tuple(sorted(set(asked.cuda_graph_bs)))
    return decode_sizes(asked.cuda_graph_max_bs or default, padded=not asked.disable_cuda_graph_padding)


def _prefill_sizes(
    asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, chunk: int
) -> tuple[int, ...]:
    """Graphs of steps of prompts, which the engine records for plain attention without exchanges of tokens, on CUDA."""
    latent = is_latent(model)
    off = layout.all_to_all or asked.enable_dp_attention or asked.cuda_graph_backend_prefill != PREFILL_GRAPHS[0]
    if off or gpu.vendor != "NVIDIA" or not prompt_graphs(model, is_latent=latent, pipeline=layout.pipeline):
        return ()
    # Without a limit of its own a graph is as large as a chunk, or as the whole cache; none is longer than a sequence.
    usual = LATENT_GRAPH if latent else chunk
    largest = asked.cuda_graph_max_bs_prefill or min(usual, asked.max_total_tokens or usual)
    return prefill_sizes(min(largest, asked.context_length or largest))
