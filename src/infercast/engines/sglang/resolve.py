"""What SGLang would choose on a GPU for a model where nobody asks for anything, and what it would refuse."""

from __future__ import annotations

from dataclasses import asdict

from infercast.engines.sglang.backends import EAGER_BACKENDS, attention_backend, check_backend, is_latent, page_size
from infercast.engines.sglang.defaults import Reserved, by_memory
from infercast.engines.sglang.graphs import decode_sizes, prefill_sizes
from infercast.engines.sglang.memory import budget, tokens_that_fit
from infercast.engines.sglang.settings import PREFILL_GRAPHS, ResolvedSglang, SglangSettings, check
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

USUAL_SEQUENCES, MOST_SEQUENCES, CONTEXTS = 2048, 4096, 512
"""Sequences at once, by how many contexts of the longest length the pool holds."""


def resolve(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSglang:
    """Fill in every default."""
    check(asked, model.max_positions)
    backend = attention_backend(model, gpu, asked.attention_backend)
    check_backend(backend, gpu)
    page = page_size(backend, asked.page_size)
    context = asked.context_length or model.max_positions
    chunk, largest_graph = by_memory(gpu, layout.tensor)
    chunk = asked.chunked_prefill_size or chunk
    graphs = not asked.disable_cuda_graph and backend not in EAGER_BACKENDS
    decode = _decode_sizes(asked, largest_graph) if graphs else ()
    prefill = _prefill_sizes(asked, model, layout, chunk) if graphs else ()
    reserved = Reserved(
        tokens=chunk if chunk > 0 else asked.max_prefill_tokens,
        gpus=layout.replica_gpus,
        largest_graph=max(decode, default=0),
        num_prefill_sizes=len(prefill),
        is_latent=is_latent(model),
        deepep=layout.all_to_all,
    )
    share = asked.mem_fraction_static or reserved.static_share(gpu)
    tokens = tokens_that_fit(budget(model, layout, gpu, asked, share), asked, page)
    running = asked.max_running_requests or min(max(tokens * CONTEXTS // context, USUAL_SEQUENCES), MOST_SEQUENCES)
    running = max(1, min(running, tokens // 2))
    decode = tuple(size for size in decode if size <= running) + ((running,) if decode and running < decode[-1] else ())
    return ResolvedSglang(
        **{
            **asdict(asked),
            "mem_fraction_static": share,
            "max_running_requests": running,
            "chunked_prefill_size": chunk,
            "context_length": context,
            "page_size": page,
            "attention_backend": backend,
            "decode_sizes": tuple(dict.fromkeys(decode)),
            "prefill_sizes": prefill,
        }
    )


def _decode_sizes(asked: SglangSettings, default: int) -> tuple[int, ...]:
    if asked.cuda_graph_bs is not None:
        return tuple(sorted(set(asked.cuda_graph_bs)))
    return decode_sizes(asked.cuda_graph_max_bs or default, padded=not asked.disable_cuda_graph_padding)


def _prefill_sizes(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, chunk: int) -> tuple[int, ...]:
    """Graphs of steps of prompts, which the engine records for plain attention without exchanges of tokens."""
    off = is_latent(model) or layout.all_to_all or asked.enable_dp_attention or chunk < 1
    if off or asked.cuda_graph_backend_prefill != PREFILL_GRAPHS[0]:
        return ()
    largest = min(chunk, asked.max_total_tokens or chunk, asked.context_length or chunk)
    return prefill_sizes(largest)
