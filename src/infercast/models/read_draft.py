"""Drafts of speculative decoding: heads of a config.json (EAGLE, EAGLE-3), a target's own prediction heads, models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infercast.errors import InputError
from infercast.models.draft import Draft
from infercast.models.families import FAMILIES, Fields, architecture_of
from infercast.models.feed_forward import DenseFeedForward
from infercast.models.formats import unquantised, with_base
from infercast.models.mixers import GroupedAttention
from infercast.models.read import config_of, read_model
from infercast.models.spec import ModelConfig, Stack

EAGLE, EAGLE_3 = "eagle", "eagle3"
AUX_STATES = 3
"""Layers of the target whose hidden states an EAGLE-3 head is fed with, unless its config says otherwise."""
DRAFT_VOCABULARY = 32_000
"""Rows of the head of most published EAGLE-3 heads."""
HEAD_DIM = 128
NESTED = "transformer_layer_config"
"""Where checkpoints of the speculators library keep what a layer is like."""


def prediction_draft(target: ModelConfig) -> Draft:
    """The heads of the target's own checkpoint that predict further tokens."""
    part = target.prediction
    if part is None:
        raise InputError(
            f"{target.name} has no heads that predict further tokens (its config counts none), which method mtp needs; "
            "use eagle3 or draft_model with a model of its own"
        )
    base = target.weights.base
    weights = target.weights if part.quantised else replace(unquantised(base), head=target.weights.head)
    config = replace(
        target, name=f"{target.name} prediction head", stacks=part.stacks, order=(), weights=weights, vision=None
    )
    return Draft(
        replace(config, prediction=None, notes=()),
        joins=True,
        norms=part.norms - 1,
        own_head=part.own_table,
        modules=part.heads,
    )


def model_draft(draft: ModelConfig, target: ModelConfig) -> Draft:
    """A small model of its own, which shares the target's vocabulary."""
    if draft.vocabulary != target.vocabulary:
        raise InputError(
            f"draft model {draft.name} has a vocabulary of {draft.vocabulary} and {target.name} one of "
            f"{target.vocabulary}; a draft model has to have the target's"
        )
    return Draft(replace(draft, kv_dtype=target.kv_dtype, vision=None, prediction=None), own_embedding=draft.vocabulary)


def eagle_draft(method: str, source: str | os.PathLike[str] | Mapping[str, Any], target: ModelConfig) -> Draft:
    """A head that a config.json describes."""
    values, name, where = config_of(source)
    fields = Fields(values, where)
    layer = fields.raw(NESTED)
    if isinstance(layer, Mapping):
        values = {**layer, **{key: value for key, value in values.items() if key != NESTED}, "architectures": None}
        fields = Fields(values, where)
    architecture = _plain_architecture(fields)
    needed = {"vocab_size": target.vocabulary, "max_position_embeddings": target.max_positions}
    config = read_model({**needed, **_present(values), "architectures": [architecture]}, name=name)
    return _eagle(method, config, target, fields)


def usual_head(method: str, name: str, target: ModelConfig) -> Draft:
    """A head as most are made for a target, where its config is not at hand: one dense layer as wide as the target."""
    first = target.stacks[0]
    mixer = first.mixer
    if isinstance(mixer, GroupedAttention):
        mixer = GroupedAttention(mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.value_dim, mixer.head_dim)
    else:
        heads = max(1, target.hidden // HEAD_DIM)
        mixer = GroupedAttention(heads, max(1, heads // 4), HEAD_DIM, HEAD_DIM, HEAD_DIM)
    dense = next(
        (stack.feed_forward for stack in target.stacks if isinstance(stack.feed_forward, DenseFeedForward)), None
    )
    stack = Stack(1, mixer, dense or DenseFeedForward(4 * target.hidden))
    config = replace(target, name=name, stacks=(stack,), order=(), weights=unquantised(target.weights.base))
    config = replace(config, vision=None, prediction=None, notes=(), tied_embedding=False)
    small = {"draft_vocab_size": min(DRAFT_VOCABULARY, target.vocabulary)} if method == EAGLE_3 else {}
    return _eagle(method, config, target, Fields(small, name))


def _eagle(method: str, config: ModelConfig, target: ModelConfig, fields: Fields) -> Draft:
    """The head of one of the two kinds, from its layers."""
    own_embedding = target.vocabulary if config.hidden != target.hidden else 0
    config = replace(config, kv_dtype=target.kv_dtype, weights=with_base(config.weights, target.weights.base))
    if method == EAGLE:
        config = replace(config, vocabulary=target.vocabulary)
        return Draft(config, joins=True, own_embedding=own_embedding, own_head=config.hidden != target.hidden)
    inner = fields.raw("eagle_config")
    layers = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
    aux = len(layers) if isinstance(layers, list) and layers else AUX_STATES
    rows = fields.positive("draft_vocab_size", default=target.vocabulary)
    return Draft(
        replace(config, vocabulary=rows, tied_embedding=False),
        combined=fields.positive("num_aux_hidden_states", default=aux)
        * fields.positive("target_hidden_size", default=target.hidden),
        side_by_side=True,
        norms=1,
        own_embedding=own_embedding,
        spread_over=target.vocabulary,
    )


def _plain_architecture(fields: Fields) -> str:
    """The architecture that a head's layers are of: ``LlamaForCausalLMEagle3`` is made of Llama's."""
    named = fields.words("architectures")
    plain = re.sub("Eagle3?", "", named[0]) if named else architecture_of(fields.word("model_type") or "llama")
    return plain if plain in FAMILIES else "LlamaForCausalLM"


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
