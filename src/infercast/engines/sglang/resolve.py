"""Defaults that SGLang chooses for a model on a GPU: attention backend, CUDA graphs, vision encoders.

Facts of SGLang 0.5.16 (``server_args.py``, ``adjust_mem_fraction_for_vlm``; ``configs/model_config.py``).

Facts of SGLang 0.5.16 (``server_args.py``, ``_generate_decode_cuda_graph_batch_sizes`` and its like for prompts;
``runner/prefill_cuda_graph_runner.py``).
"""

from __future__ import annotations

import bisect
from dataclasses import asdict
from typing import NamedTuple

from infercast.engines.host import Launch
from infercast.engines.sglang.kernels import EAGER_BACKENDS, attention_backend, check_backend, page_size
from infercast.engines.sglang.kv_cache import state_pool
from infercast.engines.sglang.memory import Reserved, budget, by_memory, tokens_that_fit
from infercast.engines.sglang.settings import PREFILL_GRAPHS, ResolvedSglang, SglangSettings, check
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import CompressedAttention, LatentAttention
from infercast.models.spec import ModelConfig

PREFILL_STRETCHES = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256),
)  # fmt: skip
"""First, last and distance of the sizes that steps of prompts are recorded for; by 512 beyond."""
LONG, LONG_STEP = 4608, 512
MOST_PADDING = 2
"""A step of prompts that the next size would make so many times as long runs without a graph."""


def decode_sizes(largest: int, *, padded: bool = True) -> tuple[int, ...]:
    """Sequences of the decode steps that are recorded; the largest is always among them."""
    if not padded:
        return tuple(range(1, largest + 1))
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32), largest}
    return tuple(sorted(size for size in sizes if size <= largest))


def prefill_sizes(largest: int) -> tuple[int, ...]:
    """Tokens of the steps of prompts that are recorded."""
    sizes = [size for first, last, step in PREFILL_STRETCHES for size in range(first, last + 1, step)]
    return tuple(size for size in (*sizes, *range(LONG, largest + 1, LONG_STEP)) if size <= largest)


def kept_sizes(sizes: tuple[int, ...], running: int, multiple: int = 1) -> tuple[int, ...]:
    """Of the sizes of decode steps, those that can come: as many as run at once, in multiples of a group's GPUs."""
    most = -(-running // multiple) * multiple
    wanted = {*sizes, most} if sizes and sizes[-1] > most else {*sizes}
    return tuple(sorted(size for size in wanted if size <= most and size % multiple == 0))


class SglangGraphs(NamedTuple):
    """The graphs an engine recorded at its start, of decode steps and of steps with prompts; no sizes: none."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.decode, *self.prefill}))

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of that many tokens is launched, and how many are then computed: the next recorded size."""
        sizes = self.decode if is_decode else self.prefill
        if not sizes or num_tokens > sizes[-1]:
            return Launch.EAGER, num_tokens
        padded = sizes[bisect.bisect_left(sizes, num_tokens)]
        if is_decode:
            return Launch.FULL_GRAPH, padded
        if padded > MOST_PADDING * num_tokens:
            return Launch.EAGER, num_tokens
        return Launch.PIECEWISE_GRAPHS, padded


USUAL_FACTOR, SENSITIVITY, LEAST, MOST = 0.95, 0.1, 0.8, 1.05
USUAL_LAYERS, USUAL_HIDDEN = 24, 1024
"""Of the encoder that the factor is for (ViT-L)."""
OTHER_NAMES = (
    "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Step3p7ForConditionalGeneration",
)  # fmt: skip
"""Architectures whose configs count layers under a name that SGLang does not look for, so that it takes the usual."""
GRAPHED = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
"""Architectures with an encoder whose steps of prompts have graphs all the same."""
COMPILED = (
    "Cohere2VisionForConditionalGeneration", "KimiK25ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
)  # fmt: skip
"""Those whose graphs are of another kind (``tc_piecewise``), which takes latents too, but no pipelines."""


def static_factor(model: ModelConfig) -> float:
    """What the static share of memory is multiplied by: less for a large encoder."""
    if model.vision is None:
        return 1.0
    layers = USUAL_LAYERS if model.architecture in OTHER_NAMES else model.vision.layers
    larger = layers * model.vision.hidden**2 / (USUAL_LAYERS * USUAL_HIDDEN**2) - 1.0
    return USUAL_FACTOR * max(LEAST, min(MOST, 1.0 - SENSITIVITY * larger))


def prompt_graphs(model: ModelConfig, *, is_latent: bool, pipeline: int) -> bool:
    """Whether steps of prompts may have graphs."""
    if model.architecture in COMPILED:
        return pipeline == 1
    return not is_latent and (model.vision is None or model.architecture in GRAPHED)


USUAL_SEQUENCES, MOST_SEQUENCES, CONTEXTS = 2048, 4096, 512
"""Sequences at once, by how many contexts of the longest length the pool holds."""
LATENT_GRAPH = 2048
"""Tokens of the largest graph of prompts where layers keep latents."""


def resolve(asked: SglangSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSglang:
    check(asked, model.max_positions)
    if model.has_mixer(CompressedAttention):
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
            is_latent=model.has_mixer(LatentAttention),
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
    latent = model.has_mixer(LatentAttention)
    off = layout.all_to_all or asked.enable_dp_attention or asked.cuda_graph_backend_prefill != PREFILL_GRAPHS[0]
    if off or gpu.vendor != "NVIDIA" or not prompt_graphs(model, is_latent=latent, pipeline=layout.pipeline):
        return ()
    # Without a limit of its own a graph is as large as a chunk, or as the whole cache; none is longer than a sequence.
    usual = LATENT_GRAPH if latent else chunk
    largest = asked.cuda_graph_max_bs_prefill or min(usual, asked.max_total_tokens or usual)
    return prefill_sizes(min(largest, asked.context_length or largest))
