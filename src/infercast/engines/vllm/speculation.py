"""What follows from a speculative config in a release of vLLM: what drafts, by which runner, and how it is scheduled.

Facts of vLLM 0.25 and 0.32: ``config/vllm.py`` (asynchronous scheduling, model runners), ``v1/core/sched/scheduler.py``
(slots ahead).
"""

from __future__ import annotations

import os

from infercast.engines.acceptance import Acceptance, by_rate, read_acceptance, usual
from infercast.engines.speculation import BY_HEADS, DRAFT_MODEL, MTP, NGRAM, NGRAM_GPU, Drafting
from infercast.engines.vllm.speculative_config import Asked, read_config
from infercast.engines.vllm.versions import EngineVersion
from infercast.errors import InputError
from infercast.models.draft import Draft
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_name
from infercast.models.read import read_model
from infercast.models.read_draft import eagle_draft, model_draft, prediction_draft, usual_head
from infercast.models.spec import ModelConfig

V2_FAILS = ("MiMoForCausalLM",)
"""Whose prediction heads the V2 model runner of 0.25 cannot record graphs of, so that they need the V1 runner."""
MATCH_SHARE = 0.5
"""Share of steps in which a lookup of n-grams finds anything, where nobody says: between prose and editing of code."""
FOUND_RATE = 0.5
"""Rate at which drafts are accepted that a lookup found, where nobody says."""


def drafting_of(
    text: str,
    acceptance: str | None,
    target: ModelConfig,
    layout: ParallelLayout,
    version: EngineVersion,
    *,
    asynchronous: bool,
    v2_target: bool,
    dummy_weights: bool = False,
) -> Drafting:
    """What a release does with a config; ``acceptance`` as a user writes it, where it is not the config's own."""
    asked = read_config(text, target)
    method, num_drafts = asked.method, asked.num_drafts
    if layout.pipeline > 1:
        raise InputError("speculative decoding over the stages of a pipeline is not modelled; use tensor parallelism")
    _check_heads(asked, target)
    draft, note = _draft_of(asked, target, dummy_weights=dummy_weights)
    tensor = asked.tensor or layout.tensor
    if tensor not in (1, layout.tensor):
        raise InputError(f"draft_tensor_parallel_size must be 1 or the target's {layout.tensor}, not {tensor}")
    accepted = read_acceptance(acceptance, num_drafts) if acceptance else asked.acceptance
    looked_up = method in (NGRAM, NGRAM_GPU)
    is_sync = method == NGRAM or (method == DRAFT_MODEL and not version.v2_for_all)
    return Drafting(
        method,
        num_drafts,
        accepted or _usual(target.name, method, num_drafts),
        draft,
        tensor,
        match=MATCH_SHARE if looked_up else 1.0,
        by_batch=asked.by_batch,
        v2_runner=version.v2_for_all or (v2_target and method in BY_HEADS and target.architecture not in V2_FAILS),
        asynchronous=asynchronous and not is_sync,
        lookahead=0 if looked_up else num_drafts,
        drops_block=method in BY_HEADS,
        read_ahead=num_drafts if version.reads_ahead and _num_heads(asked, target) > 1 else 0,
        slots_taken=1 if method == DRAFT_MODEL else 0,
        note=note,
    )


def _usual(target: str, method: str, num_drafts: int) -> Acceptance:
    """What is assumed where nobody says how many drafts are accepted."""
    if method in (NGRAM, NGRAM_GPU):
        return Acceptance(by_rate(FOUND_RATE, num_drafts), "half of what a lookup finds, a guess", is_assumed=True)
    return usual(target, method, num_drafts)


def _num_heads(asked: Asked, target: ModelConfig) -> int:
    """Prediction heads that draft one after the other."""
    return min(target.prediction.heads, asked.num_drafts) if asked.method == MTP and target.prediction else 1


def _check_heads(asked: Asked, target: ModelConfig) -> None:
    """Refuse numbers of drafts that prediction heads do not divide."""
    heads = target.prediction.heads if target.prediction is not None else 1
    if asked.method == MTP and asked.num_drafts > heads and asked.num_drafts % heads:
        raise InputError(
            f"num_speculative_tokens {asked.num_drafts} must be a multiple of the {heads} prediction heads of "
            f"{target.name}"
        )


def _draft_of(asked: Asked, target: ModelConfig, *, dummy_weights: bool) -> tuple[Draft | None, str]:
    """What drafts, and what had to be taken for granted of it."""
    if asked.method in (NGRAM, NGRAM_GPU):
        return None, ""
    if asked.method == MTP:
        return prediction_draft(target), ""
    model = str(asked.model)
    if asked.method == DRAFT_MODEL:
        return model_draft(read_model(model, quantization=asked.quantization), target), ""
    if os.path.exists(model) or bundled_name(model):
        return _known(eagle_draft(asked.method, model, target), target, dummy_weights), ""
    if model.endswith(".json") or model.startswith((".", "/")):
        raise InputError(f"draft {model!r} of --speculative-config: there is no such file or folder")
    note = f"{model} is not at hand: a head of one dense layer as wide as {target.name} stands for it"
    return _known(usual_head(asked.method, model, target), target, dummy_weights), note


def _known(draft: Draft, target: ModelConfig, dummy_weights: bool) -> Draft:
    """A head whose weights are made up has no table of its own, since no file was seen to hold one."""
    return draft.with_head_of(target) if dummy_weights else draft
