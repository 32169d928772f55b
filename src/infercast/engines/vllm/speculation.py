"""Parses ``--speculative-config`` of vLLM into drafts, model runner and scheduling.

Facts of vLLM 0.25 and 0.32: ``config/vllm.py``, ``v1/core/sched/scheduler.py`` (lookahead slots).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines import speculation as drafts
from infercast.engines.vllm.versions import EngineVersion, Rule
from infercast.errors import InputError, UnknownNameError, require
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_object
from infercast.models.spec import ModelConfig
from infercast.serve.speculation import MOST_DRAFTS

METHODS = (drafts.NGRAM, drafts.NGRAM_GPU, drafts.EAGLE, drafts.EAGLE_3, drafts.MTP, drafts.DRAFT_MODEL)
_DATA = read_data("engines/vllm/drafts.toml")
UNMODELLED: dict[str, str] = _DATA["unmodelled"]  # Methods of vLLM that are rejected, and what they do
READ, UNREAD = set(_DATA["read"]), set(_DATA["unread"])  # Fields of the config


class Asked(NamedTuple):
    method: str
    num_drafts: int
    model: str | None
    tensor: int | None
    quantization: str | None
    by_batch: tuple[tuple[int, int], ...]
    acceptance: drafts.Acceptance | None


def read_config(text: str, target: ModelConfig) -> Asked:
    values = read_object(text, "--speculative-config")
    if strange := sorted({*values} - READ - UNREAD):
        raise UnknownNameError("field of --speculative-config", strange[0], READ | UNREAD, listed=False)
    if values.get("parallel_drafting"):
        raise InputError("parallel_drafting of --speculative-config is not modelled: all drafts in one pass")
    method = _method(values)
    by_batch = _by_batch(values.get("num_speculative_tokens_per_batch_size"))
    num_drafts = _count(values, "num_speculative_tokens")
    if num_drafts is None and method == drafts.MTP and target.prediction is not None:
        num_drafts = target.prediction.heads
    if num_drafts is None:
        raise InputError("--speculative-config needs num_speculative_tokens, the drafts of a sequence and step")
    tensor, accepted = _count(values, "draft_tensor_parallel_size"), _synthetic(values, num_drafts)
    return Asked(method, num_drafts, values.get("model"), tensor, values.get("quantization"), by_batch, accepted)


def most_tokens(text: str | None) -> int:
    """Maximum tokens a step may yield per sequence under a config, which may be missing or invalid."""
    try:
        asked = json.loads(text)["num_speculative_tokens"] if text else 0
    except (ValueError, TypeError, KeyError):
        return MOST_DRAFTS  # parsed, or rejected, later
    return 1 + asked if isinstance(asked, int) else MOST_DRAFTS


def _method(values: Mapping[str, Any]) -> str:
    method, model = values.get("method"), values.get("model")
    if method is None:
        method = drafts.NGRAM if model in (drafts.NGRAM, f"[{drafts.NGRAM}]") else drafts.DRAFT_MODEL
    method = str(method).strip("[]")
    if method != drafts.MTP and method.endswith("_mtp"):
        method = drafts.MTP
    if method in UNMODELLED:
        raise InputError(
            f"speculative method {method!r} is not modelled: {UNMODELLED[method]}; known: {', '.join(METHODS)}"
        )
    if method not in METHODS:
        raise UnknownNameError("speculative method", method, METHODS)
    if method in (drafts.EAGLE, drafts.EAGLE_3, drafts.DRAFT_MODEL) and not isinstance(model, str):
        raise InputError(f"--speculative-config of method {method} needs model, what drafts: a name, id or folder")
    return method


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InputError(f"{name} of --speculative-config must be a whole number of at least 1, not {value!r}")
    return value


def _by_batch(value: Any) -> tuple[tuple[int, int], ...]:
    """VLLM's (first, last, drafts) by batch size, as (first, drafts)."""
    if value is None:
        return ()
    well = isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 3 and all(type(number) is int for number in each) for each in value
    )
    if not well or not value:
        raise InputError(
            "num_speculative_tokens_per_batch_size of --speculative-config must be a list of [first, last, drafts], "
            f"not {value!r}"
        )
    return tuple((first, count) for first, _, count in sorted(value))


def _synthetic(values: Mapping[str, Any], num_drafts: int) -> drafts.Acceptance | None:
    """The acceptance of vLLM's synthetic mode, which is part of the config."""
    rates, length = values.get("synthetic_acceptance_rates"), values.get("synthetic_acceptance_length")
    if values.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            raise InputError('synthetic acceptance needs "rejection_sample_method": "synthetic"')
        return None
    if isinstance(rates, list) and length is None and all(isinstance(rate, int | float) for rate in rates):
        return drafts.Acceptance(drafts.by_position(rates, num_drafts), "synthetic rates of the config")
    if isinstance(length, int | float) and rates is None:
        return drafts.Acceptance(drafts.by_length(float(length), num_drafts), "a synthetic length of the config")
    raise InputError("synthetic acceptance is one of synthetic_acceptance_rates and synthetic_acceptance_length")


def drafting_of(
    text: str, acceptance: str | None, target: ModelConfig, layout: ParallelLayout, version: EngineVersion, *,
    asynchronous: bool, v2_target: bool, dummy_weights: bool = False,
) -> drafts.Drafting:  # fmt: skip
    """What a release does with a config; ``acceptance`` as a user writes it, overriding the config's own."""
    asked = read_config(text, target)
    method, num_drafts = asked.method, asked.num_drafts
    is_sync = (method == drafts.NGRAM and not version.has(Rule.NGRAM_ASYNC)) or (
        method == drafts.DRAFT_MODEL and not version.has(Rule.V2_FOR_ALL)
    )
    if layout.pipeline > 1:
        _check_pipeline(method, is_sync=is_sync or not asynchronous)
    heads = target.prediction.heads if method == drafts.MTP and target.prediction is not None else 1
    if method == drafts.MTP and num_drafts > heads and num_drafts % heads:
        raise InputError(
            f"num_speculative_tokens {num_drafts} must be a multiple of the {heads} prediction heads of {target.name}"
        )
    draft, note = drafts.draft_of(method, asked.model, target, asked.quantization, dummy_weights=dummy_weights)
    tensor = asked.tensor or layout.tensor
    require(tensor in (1, layout.tensor), "draft_tensor_parallel_size", f"be 1 or the target's {layout.tensor}", tensor)
    accepted = drafts.read_acceptance(acceptance, num_drafts) if acceptance else asked.acceptance
    looked_up = method in (drafts.NGRAM, drafts.NGRAM_GPU)
    return drafts.Drafting(
        method,
        num_drafts,
        accepted or drafts.usual(target.name, method, num_drafts),
        draft,
        tensor,
        match=drafts.MATCH_SHARE if looked_up else 1.0,
        by_batch=asked.by_batch,
        v2_runner=version.has(Rule.V2_FOR_ALL)
        # The V2 model runner of 0.25 cannot capture MiMo's prediction heads.
        or (v2_target and method in drafts.BY_HEADS and target.architecture != "MiMoForCausalLM"),
        asynchronous=asynchronous and not is_sync,
        lookahead=0 if looked_up else num_drafts,
        drops_block=method in drafts.BY_HEADS,
        read_ahead=num_drafts if version.has(Rule.READS_AHEAD) and min(heads, num_drafts) > 1 else 0,
        slots_taken=1 if method == drafts.DRAFT_MODEL else 0,
        note=note,
    )


def _check_pipeline(method: str, *, is_sync: bool) -> None:
    """Reject what vLLM rejects or fails with in a pipeline (0.25: ``v1/worker/gpu/model_runner.py``, ``sched``)."""
    if method == drafts.EAGLE_3:
        raise InputError(
            "vLLM does not support eagle3 with pipeline parallelism: the last stage has no hidden states of layers "
            "before it; use tensor parallelism, or another method"
        )
    if is_sync:
        raise InputError(
            f"vLLM fails with method {method} in a pipeline: without asynchronous scheduling it plans a negative "
            "number of tokens for a sequence whose drafts are in flight; use tensor parallelism, or method eagle or mtp"
        )
