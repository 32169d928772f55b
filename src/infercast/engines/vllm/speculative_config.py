"""vLLM's ``--speculative-config``, read and checked (``config/speculative.py`` of 0.25 and 0.32)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from infercast.engines.acceptance import Acceptance, by_length, by_position
from infercast.engines.speculation import DRAFT_MODEL, EAGLE, EAGLE_3, MTP, NGRAM, NGRAM_GPU
from infercast.errors import InputError, UnknownNameError
from infercast.models.spec import ModelConfig
from infercast.serve.speculation import MOST_DRAFTS

METHODS = (NGRAM, NGRAM_GPU, EAGLE, EAGLE_3, MTP, DRAFT_MODEL)
UNMODELLED = {
    "medusa": "heads that draft side by side",
    "mlp_speculator": "a small network that drafts",
    "suffix": "lookups in a tree of earlier answers",
    "dflash": "all drafts in one pass",
    "dspark": "all drafts in one pass",
    "custom_class": "code of your own",
    "extract_hidden_states": "no drafts at all",
}
"""Methods of vLLM that are refused, and what they do."""
READ = {
    "method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "quantization",
    "num_speculative_tokens_per_batch_size", "rejection_sample_method", "synthetic_acceptance_rates",
    "synthetic_acceptance_length", "prompt_lookup_max", "prompt_lookup_min",
}  # fmt: skip
UNREAD = {
    "revision", "code_revision", "draft_load_config", "max_model_len", "draft_sample_method", "attention_backend",
    "moe_backend", "use_local_argmax_reduction", "use_heterogeneous_vocab", "enforce_eager",
    "disable_padded_drafter_batch", "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "parallel_drafting",
}  # fmt: skip
"""Fields that change little or nothing here."""


class Asked(NamedTuple):
    """What a config asks for."""

    method: str
    num_drafts: int
    model: str | None
    tensor: int | None
    quantization: str | None
    by_batch: tuple[tuple[int, int], ...]
    acceptance: Acceptance | None


def read_config(text: str, target: ModelConfig) -> Asked:
    """The JSON of ``--speculative-config``."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InputError(f"--speculative-config must be a JSON object, not {text[:80]!r}")
    if strange := sorted({*values} - READ - UNREAD):
        raise UnknownNameError("field of --speculative-config", strange[0], READ | UNREAD, listed=False)
    if values.get("parallel_drafting"):
        raise InputError("parallel_drafting of --speculative-config is not modelled: all drafts in one pass")
    method = _method(values)
    by_batch = _by_batch(values.get("num_speculative_tokens_per_batch_size"))
    num_drafts = _count(values, "num_speculative_tokens")
    if num_drafts is None and method == MTP and target.prediction is not None:
        num_drafts = target.prediction.heads
    if num_drafts is None:
        raise InputError("--speculative-config needs num_speculative_tokens, the drafts of a sequence and step")
    return Asked(
        method,
        num_drafts,
        values.get("model"),
        _count(values, "draft_tensor_parallel_size"),
        values.get("quantization"),
        by_batch,
        _synthetic(values, num_drafts),
    )


def most_tokens(text: str | None) -> int:
    """Tokens that a step may yield of a sequence under a config, which may be none or wrong."""
    try:
        drafts = json.loads(text)["num_speculative_tokens"] if text else 0
    except (ValueError, TypeError, KeyError):
        return MOST_DRAFTS  # it is read, or refused, later
    return 1 + drafts if isinstance(drafts, int) else MOST_DRAFTS


def _method(values: Mapping[str, Any]) -> str:
    """The method, or what follows from a model without one."""
    method, model = values.get("method"), values.get("model")
    if method is None:
        method = NGRAM if model in (NGRAM, f"[{NGRAM}]") else DRAFT_MODEL
    method = str(method).strip("[]")
    if method != MTP and method.endswith("_mtp"):
        method = MTP
    if method in UNMODELLED:
        raise InputError(
            f"speculative method {method!r} is not modelled ({UNMODELLED[method]}); known: {', '.join(METHODS)}"
        )
    if method not in METHODS:
        raise UnknownNameError("speculative method", method, METHODS)
    if method in (EAGLE, EAGLE_3, DRAFT_MODEL) and not isinstance(model, str):
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
    """VLLM's (first, last, drafts) by sequences of a step, as (first, drafts)."""
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
    return tuple((first, drafts) for first, _, drafts in sorted(value))


def _synthetic(values: Mapping[str, Any], num_drafts: int) -> Acceptance | None:
    """The acceptance of vLLM's own synthetic mode, which a config holds itself."""
    rates, length = values.get("synthetic_acceptance_rates"), values.get("synthetic_acceptance_length")
    if values.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            raise InputError('synthetic acceptance needs "rejection_sample_method": "synthetic"')
        return None
    if isinstance(rates, list) and length is None and all(isinstance(rate, int | float) for rate in rates):
        return Acceptance(by_position(rates, num_drafts), "synthetic rates of the config")
    if isinstance(length, int | float) and rates is None:
        return Acceptance(by_length(float(length), num_drafts), "a synthetic length of the config")
    raise InputError("synthetic acceptance is one of synthetic_acceptance_rates and synthetic_acceptance_length")
