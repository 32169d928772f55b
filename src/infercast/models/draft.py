"""What drafts tokens for speculative decoding: a head fed with the target's hidden states, or a small model.

A *pass* computes one draft of every sequence. The first one of a step is over all tokens of the step, later ones over
one token a sequence. Heads join the embedding of a token and a hidden state in one of two ways: by a product of twice
the hidden size (EAGLE, prediction heads), or by an attention that takes both side by side (EAGLE-3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.lower import DRAFT_PREFIX, attention_calls, head_calls, token_calls, verify_calls
from infercast.models.rank import layer_bytes
from infercast.models.spec import ModelConfig
from infercast.ops import Call, Gemm
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import copy, likeliest, norm
from infercast.ops.op import Op, Size

CHOICE_SAVED = 18e-6
"""Seconds that the choice of a draft takes less than sampling of so many bytes: one kernel, and not several. Seen are
16 to 28 us for 32 rows of a whole vocabulary (EAGLE-3, prediction heads and a draft model on an H200)."""
JOINED = ("qkv_proj", "qkv_a_proj", "q_proj", "kv_a_proj")
"""Products that take embedding and hidden state side by side."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Layers that draft, with the vocabulary of their head."""

    config: ModelConfig
    combined: int = 0
    """Values of the target's hidden states that a product turns into one hidden state, once a step (EAGLE-3)."""
    joins: bool = False
    """Whether a product joins embedding and hidden state in each pass ..."""
    side_by_side: bool = False
    """... or the first layer's attention takes both."""
    norms: int = 0
    """Norms over the hidden size of a pass beside those of its layers and the last."""
    own_embedding: int = 0
    """Rows of an embedding of its own; 0: it uses the target's."""
    own_head: bool = True
    """Whether its head is its own, and not the target's."""
    spread_over: int = 0
    """Rows of the target's vocabulary that its own, smaller one is spread over before a token is chosen; 0: none."""
    modules: int = 1
    """Heads with weights and a cache of their own, of which the first is run for every draft."""

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
        """The same with the target's head for its own."""
        config = replace(self.config, vocabulary=target.vocabulary)
        return replace(self, config=config, own_head=False)

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
        """Kernels of one pass that depend on its tokens alone."""
        base, hidden = self.config.weights.base, self.config.hidden
        calls = []
        if self.joins:
            product = Gemm(tokens, hidden, 2 * hidden, dtype=base, weight_dtype=base)
            calls.append(Call("join", product))
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
                wide.append(replace(call, op=_twice_as_deep(call.op), count=1))
            others = call.count - (call.name in JOINED)
            wide += [replace(call, count=others)] if others else []
        return wide

    def _joined(self, layout: ParallelLayout) -> list[Gemm]:
        """Products of the first layer that take both inputs."""
        calls = token_calls(self.config, layout, 1)
        return [call.op for call in calls if call.name in JOINED and isinstance(call.op, Gemm)]

    def attention_calls(
        self, layout: ParallelLayout, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Attention of one pass."""
        return _named(attention_calls(self.config, layout, queries, keys, sequences))

    def verify_calls(
        self, layout: ParallelLayout, width: int, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Attention of the first pass over sequences that verify ``width`` tokens each."""
        return _named(verify_calls(self.config, layout, width, keys, sequences))

    def head_calls(self, layout: ParallelLayout, rows: Size) -> list[Call]:
        """The head of one pass, and the choice of a token."""
        calls = head_calls(self.config, layout, rows)
        if self.spread_over:
            value, own = bytes_of(self.config.weights.base), self.config.vocabulary
            filled = copy(rows, own * value, (own + self.spread_over) * value)
            calls.insert(-1, Call("spread", filled))
        chosen = likeliest(rows, self.spread_over or self.config.vocabulary, self.config.weights.base)
        return _named([*calls[:-1], Call("sampling", chosen, saved=CHOICE_SAVED)])


def _named(calls: list[Call]) -> list[Call]:
    return [replace(call, name=f"{DRAFT_PREFIX}{call.name}") for call in calls]


def _twice_as_deep(op: Op) -> Op:
    return replace(op, k=2 * op.k) if isinstance(op, Gemm) else op
