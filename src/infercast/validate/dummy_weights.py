"""Engines that were measured with dummy weights: what an untrained router does to experts, and an untrained indexer.

vLLM's dummy weights are about 1e-3 in size, so all scores of a router are equal but for tiny differences. Routers that
rank scores in single precision still tell experts apart, and tokens spread evenly. Those that choose from groups rank
softmax scores in bf16, where nearly all are equal: ties go to the same few experts for every token (12 of 64 in
DeepSeek-V2-Lite, twice its topk). With a correction bias, the dummy bias alone decides: the same topk experts for all.
SGLang ranks the scores of groups in single precision, too.
Scores of an indexer are as equal, and what searches for the best of them counts them one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.mixers import CompressedAttention, Mixer, SparseLatentAttention
from infercast.models.spec import ModelConfig


def with_dummy_weights(model: ModelConfig, *, ties_groups: bool = True) -> ModelConfig:
    """The model as an engine runs it whose weights were never trained; ``ties_groups`` as `Engine` has it."""
    stacks = (replace(stack, mixer=_searching(stack.mixer)) for stack in model.stacks)
    return replace(model, stacks=tuple(stacks)).with_experts(partial(_tied, ties_groups=ties_groups))


def _searching(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, SparseLatentAttention | CompressedAttention) or mixer.indexer is None:
        return mixer
    return replace(mixer, indexer=replace(mixer.indexer, tied=True))


def _tied(spec: ExpertFeedForward, *, ties_groups: bool) -> ExpertFeedForward:
    if not ((spec.grouped_choice and ties_groups) or spec.router_bias):
        return spec
    return replace(spec, reached=min(spec.experts, spec.topk * (1 if spec.router_bias else 2)))
