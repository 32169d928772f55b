"""Draft models of speculative decoding: heads on the target's hidden states or small models, and their configs.

A *pass* computes one draft of every sequence. The first one of a step is over all tokens of the step, later ones over
one token a sequence. Heads join the embedding of a token and a hidden state in one of two ways: by a product of twice
the hidden size (EAGLE, prediction heads), or by an attention that takes both side by side (EAGLE-3).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infercast.errors import InputError
from infercast.models.families import FAMILIES, Fields, architecture_of
from infercast.models.feed_forward import UNPADDED, DenseFeedForward, Multiples
from infercast.models.layout import ParallelLayout, unquantised, with_base
from infercast.models.lower import DRAFT_PREFIX, attention_calls, head_calls, token_calls, verify_calls
from infercast.models.mixers.mixer import GroupedAttention
from infercast.models.read import config_of, read_model
from infercast.models.spec import ModelConfig, Stack, layer_bytes
from infercast.ops import Call, Gemm
from infercast.ops.op import Lengths, Size, bytes_of, copy, likeliest, norm

CHOICE_SAVED = 18e-6
"""Seconds that the choice of a draft takes less than sampling of as many bytes: one kernel, and not several. Seen are
16 to 28 us for 32 rows of a whole vocabulary (EAGLE-3, prediction heads and a draft model on an H200)."""
JOINED = ("qkv_proj", "qkv_a_proj", "q_proj", "kv_a_proj")  # Products that take embedding and hidden state side by side
EAGLE, EAGLE_3 = "eagle", "eagle3"
AUX_STATES = 3  # Layers of the target that feed an EAGLE-3 head with hidden states, unless its config says otherwise
HEAD_DIM = 128
NESTED = "transformer_layer_config"  # Where checkpoints of the speculators library keep what a layer is like


@dataclass(frozen=True, slots=True)
class Draft:
    config: ModelConfig
    combined: int = 0  # Values of the target's hidden states that a product makes one state, once a step (EAGLE-3)
    joins: bool = False  # Whether a product joins embedding and hidden state in each pass ...
    side_by_side: bool = False  # ... or the first layer's attention takes both
    norms: int = 0  # Norms over the hidden size of a pass, those of its layers and the last left out
    own_embedding: int = 0  # Rows of an embedding of its own; 0: it uses the target's
    own_head: bool = True  # Whether its head is its own, and not the target's
    spread_over: int = 0  # Rows of the target's vocabulary that its smaller one is spread over before a choice; 0: none
    modules: int = 1  # Heads with weights and a cache of their own, of which the first is run for every draft

    def weight_bytes(self, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
        """What each GPU of a tensor-parallel group holds of it."""
        config, hidden = self.config, self.config.hidden
        weights, shard = config.weights, config.shard(layout)
        layers = sum(stack.layers * layer_bytes(shard, stack, multiples) for stack in config.stacks)
        whole = hidden * (self.combined + (2 * hidden if self.joins else 0) + self.norms + 1)
        if self.side_by_side:
            whole += hidden * sum(int(op.n) for op in self._joined(layout))
        each = layers + whole * weights.stored_bytes(weights.base)
        tables = self.own_embedding * hidden * weights.stored_bytes(weights.base)
        if self.own_head and not (config.tied_embedding and self.own_embedding):
            tables += config.vocabulary * hidden * weights.stored_bytes(weights.head)
        return self.modules * each + tables / layout.tensor

    def with_head_of(self, target: ModelConfig) -> Draft:
        return replace(self, config=replace(self.config, vocabulary=target.vocabulary), own_head=False)

    def with_target(self, target: ModelConfig) -> ModelConfig:
        """The target with the layers that draft behind its own, as its cache holds them."""
        first = len(target.stacks)
        stacks = tuple(replace(stack, layers=stack.layers * self.modules) for stack in self.config.stacks)
        behind = tuple(first + number for number in self.config.layer_stacks)
        return replace(target, stacks=(*target.stacks, *stacks), order=(*target.layer_stacks, *behind * self.modules))

    def combining_calls(self, tokens: Size) -> list[Call]:
        """What turns hidden states of several layers of the target into one; nothing where there is one."""
        base, hidden = self.config.weights.base, self.config.hidden
        if not self.combined:
            return []
        row = self.combined * bytes_of(base)
        product = Gemm(tokens, hidden, self.combined, dtype=base, weight_dtype=base)
        return [Call(f"{DRAFT_PREFIX}gather", copy(tokens, row)), Call(f"{DRAFT_PREFIX}combine", product)]

    def pass_calls(self, layout: ParallelLayout, tokens: Size) -> list[Call]:
        base, hidden = self.config.weights.base, self.config.hidden
        calls = []
        if self.joins:
            calls.append(Call("join", Gemm(tokens, hidden, 2 * hidden, dtype=base, weight_dtype=base)))
        if self.norms:
            calls.append(Call("input_norm", norm(tokens, hidden, residual=False, dtype=base), self.norms))
        return _named([*calls, *self._layer_calls(layout, tokens)])

    def _layer_calls(self, layout: ParallelLayout, tokens: Size) -> list[Call]:
        """Those of its layers; attention that takes two inputs has a product of twice the width."""
        calls = token_calls(self.config, layout, tokens)
        if not self.side_by_side:
            return calls
        wide = []
        for call in calls:
            if call.name in JOINED:
                deep = replace(call.op, k=2 * call.op.k) if isinstance(call.op, Gemm) else call.op
                wide.append(replace(call, op=deep, count=1))
            others = call.count - (call.name in JOINED)
            wide += [replace(call, count=others)] if others else []
        return wide

    def _joined(self, layout: ParallelLayout) -> list[Gemm]:
        calls = token_calls(self.config, layout, 1)
        return [call.op for call in calls if call.name in JOINED and isinstance(call.op, Gemm)]

    def attention_calls(
        self, layout: ParallelLayout, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        return _named(attention_calls(self.config, layout, queries, keys, sequences))

    def verify_calls(
        self, layout: ParallelLayout, width: int, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Attention of the first pass over sequences that verify ``width`` tokens each."""
        return _named(verify_calls(self.config, layout, width, keys, sequences))

    def head_calls(self, layout: ParallelLayout, rows: Size) -> list[Call]:
        calls = head_calls(self.config, layout, rows)
        if self.spread_over:
            value, own = bytes_of(self.config.weights.base), self.config.vocabulary
            filled = copy(rows, own * value, (own + self.spread_over) * value)
            calls.insert(-1, Call("spread", filled))
        chosen = likeliest(rows, self.spread_over or self.config.vocabulary, self.config.weights.base)
        return _named([*calls[:-1], Call("sampling", chosen, saved=CHOICE_SAVED)])


def _named(calls: list[Call]) -> list[Call]:
    return [replace(call, name=f"{DRAFT_PREFIX}{call.name}") for call in calls]


def prediction_draft(target: ModelConfig) -> Draft:
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
    config = replace(config, prediction=None, notes=())
    return Draft(config, joins=True, norms=part.norms - 1, own_head=part.own_table, modules=part.heads)


def model_draft(draft: ModelConfig, target: ModelConfig) -> Draft:
    if draft.vocabulary != target.vocabulary:
        raise InputError(
            f"draft model {draft.name} has a vocabulary of {draft.vocabulary} and {target.name} one of "
            f"{target.vocabulary}; a draft model has to have the target's"
        )
    return Draft(replace(draft, kv_dtype=target.kv_dtype, vision=None, prediction=None), own_embedding=draft.vocabulary)


def eagle_draft(method: str, source: str | os.PathLike[str] | Mapping[str, Any], target: ModelConfig) -> Draft:
    values, name, where, *_ = config_of(source)
    fields = Fields(values, where)
    layer = fields.raw(NESTED)
    if isinstance(layer, Mapping):
        values = {**layer, **{key: value for key, value in values.items() if key != NESTED}, "architectures": None}
        fields = Fields(values, where)
    named = fields.words("architectures")  # ``LlamaForCausalLMEagle3`` is made of Llama's layers
    plain = re.sub("Eagle3?", "", named[0]) if named else architecture_of(fields.word("model_type") or "llama")
    needed = {"vocab_size": target.vocabulary, "max_position_embeddings": target.max_positions}
    present = {key: value for key, value in values.items() if value is not None}
    known = plain if plain in FAMILIES else "LlamaForCausalLM"
    config = read_model({**needed, **present, "architectures": [known]}, name=name)
    return _eagle(method, config, target, fields)


def usual_head(method: str, name: str, target: ModelConfig) -> Draft:
    """A head as most are made for a target, where its config is not at hand: one dense layer as wide as the target."""
    mixer = target.stacks[0].mixer
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
    draft_vocabulary = 32_000  # Rows of the head of most published EAGLE-3 heads
    small = {"draft_vocab_size": min(draft_vocabulary, target.vocabulary)} if method == EAGLE_3 else {}
    return _eagle(method, config, target, Fields(small, name))


def _eagle(method: str, config: ModelConfig, target: ModelConfig, fields: Fields) -> Draft:
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
