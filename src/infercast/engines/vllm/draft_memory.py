"""What speculative decoding takes of a GPU's memory: what drafts, its graphs and what it holds of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infercast.engines.vllm.expert_padding import expert_multiples
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.engines.vllm.verify_graphs import VerifyGraphs
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.ops.dtypes import bytes_of


def cached_model(config: ModelConfig, settings: ResolvedSettings) -> ModelConfig:
    """The layers whose keys and values are cached: the target's, and those that draft behind them."""
    drafting = settings.drafting
    return config if drafting is None or drafting.draft is None else drafting.draft.with_target(config)


def draft_weights(layout: ParallelLayout, gpu: Gpu, settings: ResolvedSettings) -> float:
    """Weights of what drafts, on each GPU."""
    drafting = settings.drafting
    if drafting is None or drafting.draft is None:
        return 0.0
    draft = drafting.draft
    return draft.weight_bytes(replace(layout, tensor=drafting.tensor), expert_multiples(draft.config, gpu))


def draft_buffers(config: ModelConfig, settings: ResolvedSettings) -> float:
    """Hidden states that are kept for what drafts: one of each token of a step, and those that EAGLE-3 combines."""
    drafting = settings.drafting
    if drafting is None or drafting.draft is None:
        return 0.0
    values = drafting.draft.config.hidden + drafting.draft.combined
    return settings.max_num_batched_tokens * values * bytes_of(config.weights.base)


def draft_graphs(layout: ParallelLayout, settings: ResolvedSettings) -> tuple[int, int]:
    """Kernels of a pass, and graphs that are recorded of passes: the first as the target's, later ones whole."""
    drafting, graphs = settings.drafting, settings.graphs
    if drafting is None or drafting.draft is None or not isinstance(graphs, VerifyGraphs):
        return 0, 0
    one = np.array([1])
    draft = drafting.draft
    calls = [
        *draft.pass_calls(layout, 1),
        *draft.attention_calls(layout, one, one),
        *draft.head_calls(layout, 1),
    ]
    sizes = graphs.sizes
    first = len(sizes) + (graphs.num_full if drafting.v2_runner else 0)
    later = sum(size <= settings.max_num_seqs for size in sizes) if drafting.v2_runner and drafting.passes > 1 else 0
    return sum(call.count for call in calls), first + later
