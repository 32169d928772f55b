"""The interface of token mixers and of their caches; grouped and latent attention, none, and two side by side.

A token mixer is the half of a layer that lets tokens see each other: attention of some kind, or a recurrence. Nothing
outside this folder asks which kind a mixer is, but for rules of an engine that hold for one kind alone.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.models.layout import Shard
from infercast.ops import Attention, Call, Collective, EncoderAttention, Gemm
from infercast.ops.op import (
    Lengths,
    Size,
    bytes_of,
    head_norm,
    kv_write,
    norm,
    output_gate,
    rope,
    strided_copy,
    weighted_sum,
)


class Cache(NamedTuple):
    """What one layer keeps on one GPU, for each token in reach and for each sequence."""

    bytes_per_token: float = 0.0
    bytes_per_sequence: float = 0.0  # The state of a recurrent layer, as large for one token as for a million
    window: int = 0  # Only the last ``window`` tokens are kept; 0: all of them
    chunked: bool = False  # ``window`` is a chunk: a token looks back to the first token of its own
    compress: int = 1  # Tokens that share one entry (DeepSeek-V4); ``bytes_per_token`` is a token's share of it
    block: int = 0  # Tokens in a block where kernels leave the engine no choice; 0: it has one
    chunk: int = 0  # Of a state: tokens of a prompt that are scanned at once, after which kernels may write it
    exported: bool = False  # Of a state: newer kernels leave it at the end of a block within a step, too

    def bytes_for(self, num_tokens: int) -> float:
        return self.bytes_per_sequence + self.bytes_per_token * min(num_tokens, self.window or num_tokens)


class SequenceBatch(NamedTuple):
    """Sequences with ``queries`` new tokens of ``keys`` in all; axes before the last are an array of batches."""

    queries: Lengths
    keys: Lengths
    sequences: Lengths | int = 1

    @property
    def is_prompt(self) -> bool:
        return bool(np.any(self.queries != 1))

    @property
    def size(self) -> Size:
        each = self.sequences
        size: Size = self.queries.shape[-1] * each if isinstance(each, int) else np.add.reduce(each, axis=-1)
        return size

    @property
    def tokens(self) -> Size:
        return self._sum(self.queries)

    def num_entries(self, tokens: int = 1) -> Size:
        """Entries of all sequences, one for each group of ``tokens``; an incomplete group counts."""
        return self._sum(-(-self.keys // tokens))

    def num_recent(self, window: int) -> Size:
        """Tokens of all sequences that a new one sees in its window."""
        return self._sum(np.minimum(self.keys, self.queries + window - 1))

    def num_pairs(self, window: int) -> Size:
        """Pairs of new tokens of a sequence, each with all others or with ``window`` of them."""
        return self._sum(self.queries * (np.minimum(self.queries, window) if window else self.queries))

    def _sum(self, each: Lengths) -> Size:
        total: Size = np.add.reduce(each * self.sequences, axis=-1)
        return total

    def forms(self) -> Iterator[SequenceBatch]:
        """Prompts, then single new tokens. An array of batches is of one form throughout."""
        decoding = self.queries == 1
        if decoding.all() or not decoding.any():
            yield self
            return
        for chosen in (~decoding, decoding):
            sequences = self.sequences if isinstance(self.sequences, int) else self.sequences[chosen]
            yield SequenceBatch(self.queries[chosen], self.keys[chosen], sequences)

    def name(self, kernel: str) -> str:
        return f"{kernel}_prompt" if self.is_prompt else kernel


class Mixer(ABC):
    """The half of a layer that mixes tokens; a kind without weights, kernels or caches leaves their methods out."""

    __slots__ = ()

    modules: ClassVar[tuple[str, ...]]
    """Names of its linear modules in a checkpoint, from the layer's own name on: ``self_attn.q_proj``."""
    part: ClassVar[str] = "attention"  # The part whose weight format its matrices have: ``attention`` or ``recurrent``
    is_empty: ClassVar[bool] = False  # Whether the layer has no mixer: no kernels, no norm before, no all-reduce after
    takes_quantised: ClassVar[bool] = False  # Whether the norm before it also quantises, if activations are quantised
    is_composed: ClassVar[bool] = False
    """Whether an engine makes it of many small operations in Python, which the host pays for outside full graphs."""

    divided: ClassVar[tuple[str, ...]] = ()  # Numbers, such as that of its heads, that GPUs have to split evenly ...
    split: ClassVar[tuple[str, str] | None] = None  # ... and a width of `split_widths`: what it is, and its field

    label_text: ClassVar[str] = ""
    description_text: ClassVar[str] = ""  # Formats of its label and description, with the mixer as their one argument

    @property
    def label(self) -> str:
        return self.label_text.format(self)

    @property
    def description(self) -> str:
        return self.description_text.format(self)

    def whole_matrices(self, hidden: int) -> int:
        """Weights in matrices, which quantising makes smaller: those that every GPU holds ..."""
        return 0

    def split_matrices(self, hidden: int) -> int:
        """... and those that GPUs split."""
        return 0

    def matrices(self, hidden: int) -> int:
        return self.whole_matrices(hidden) + self.split_matrices(hidden)

    def vectors(self, hidden: int) -> int:
        """Norms, biases and other weights that stay in the base format, on every GPU."""
        return 0

    def held_bytes(self, shard: Shard) -> float:
        """Bytes of the matrices that one GPU holds."""
        values = self.whole_matrices(shard.hidden) + self.split_matrices(shard.hidden) / shard.layout.tensor
        return values * shard.weights.stored_bytes(getattr(shard.weights, self.part))

    def divides(self, tensor: int) -> bool:
        return all(getattr(self, name) % tensor == 0 for name in self.divided)

    @property
    def split_widths(self) -> Mapping[str, int]:
        """Widths that GPUs split, by what people call them, where weights in blocks must be cut between blocks."""
        return {} if self.split is None else {self.split[0]: getattr(self, self.split[1])}

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Kernels that need only the number of tokens in the step: projections, norms, the write to the cache."""
        return []

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        return []

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """Those of sequences that verify ``width`` tokens each; as many single tokens unless a kind overrides it."""
        return self.sequence_calls(shard, batch._replace(sequences=batch.sequences * width))

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """What one layer keeps: one cache in most kinds, several where parts of it are stored apart."""
        return ()


@dataclass(frozen=True, slots=True)
class NoMixer(Mixer):
    """The missing half of a layer of Nemotron-H, or of one that pruning left without attention (DeciLM)."""

    modules = ()
    is_empty = True
    label = "none"
    description = "no attention"


@dataclass(frozen=True, slots=True)
class SideBySide(Mixer):
    """One after the other as kernels go; each all-reduces its own output."""

    first: Mixer
    second: Mixer

    # Weights of both are taken to have one format: what names attention in a checkpoint decides.
    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    is_composed = True

    @property
    def _both(self) -> tuple[Mixer, Mixer]:
        return self.first, self.second

    @property
    def label(self) -> str:
        return self.first.label

    @property
    def description(self) -> str:
        return " beside ".join(mixer.description for mixer in self._both)

    @property
    def split_widths(self) -> dict[str, int]:
        return {**self.first.split_widths, **self.second.split_widths}

    def matrices(self, hidden: int) -> int:
        return sum(mixer.matrices(hidden) for mixer in self._both)

    def vectors(self, hidden: int) -> int:
        return sum(mixer.vectors(hidden) for mixer in self._both)

    def held_bytes(self, shard: Shard) -> float:
        return sum(mixer.held_bytes(shard) for mixer in self._both)

    def divides(self, tensor: int) -> bool:
        return all(mixer.divides(tensor) for mixer in self._both)

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Those of both, the sum of their outputs, and the all-reduce that one mixer more takes."""
        layout, base = shard.layout, shard.weights.base
        calls = [call for mixer in self._both for call in mixer.token_calls(shard, tokens)]
        calls.append(Call("mixer_sum", weighted_sum(tokens, shard.hidden, terms=2, dtype=base)))
        if layout.tensor > 1:
            message = tokens * int(shard.hidden * bytes_of(base))
            calls.append(Call("all_reduce", Collective("all_reduce", message, layout.tensor, layout.library)))
        return calls

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        return [call for mixer in self._both for call in mixer.sequence_calls(shard, batch)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        return [call for mixer in self._both for call in mixer.verify_calls(shard, width, batch)]

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        return (*self.first.caches(shard), *self.second.caches(shard))


@dataclass(frozen=True, slots=True)
class GroupedAttention(Mixer):
    """Multi-head, grouped-query or multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rotary_dim: int
    window: int = 0  # A query sees the last ``window`` tokens; 0: all of them
    qk_norm: bool = False  # Norms over each query and key head (Qwen3, Gemma 3)
    norm_across: bool = False  # Those norms are over all heads (MiniMax-M2), so GPUs that split them add up squares
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False  # A learned sink logit for each head (gpt-oss)
    shared_key_value: bool = False  # One projection makes keys and values (Gemma 4 global layers); the cache holds both
    borrows: bool = False  # Keys and values are an earlier layer's: this one projects queries alone (Gemma 4 E2B, E4B)
    chunked: bool = False
    """``window`` is a chunk (Llama 4): a query sees its own chunk from its first token on, not the last tokens."""
    gate_width: int = 0
    """Gates that a head's output is multiplied with: as many as values, projected with the queries (Qwen3-Next and
    Qwen3.5), or one, by a product of its own (Step-3.5); 0: none."""

    bidirectional: bool = False  # Every token of a prompt sees all of it, in one step and without a cache (BERT)
    by_hand: bool = False
    """The engine has no compiler that fuses: hand-written kernels norm, rotate and store, and attention takes queries
    that lie together, so they are copied out of the joined product (SGLang)."""
    stores_rotated: bool = False  # One kernel by hand rotates and stores
    decode_saved: float = 0.0
    """Seconds that attention of decoding sequences takes less than in measured tables, as the engine launches it ..."""
    prompts_slower: float = 1.0  # ... and how many times as long that of prompts takes
    unquantised_cache: bool = False  # Keys and values keep the base format, whatever those of other layers are in

    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    takes_quantised = True

    label_text = "{0.heads}/{0.kv_heads} x {0.head_dim}"

    @property
    def description(self) -> str:
        window = f", window {self.window:,}" if self.window else ""
        borrowed = ", keys and values of an earlier layer" if self.borrows else ""
        return f"{self.heads}/{self.kv_heads} heads of {self.head_dim}{window}{borrowed}"

    @property
    def _pair_dim(self) -> int:
        """A key and a value; also a query and what comes out for it."""
        return self.head_dim + self.value_dim

    def _cache_dtype(self, shard: Shard) -> str:
        return shard.weights.base if self.unquantised_cache else shard.cache_dtype

    def _own_kv_heads(self, shard: Shard) -> int:
        """Key-value heads that a GPU computes."""
        return 0 if self.borrows else shard.layout.share_kv_heads(self.kv_heads)

    def matrices(self, hidden: int) -> int:
        pair = self.head_dim if self.shared_key_value else self._pair_dim
        queries = self.heads * (self._pair_dim + self.gate_width)
        return hidden * (queries + (0 if self.borrows else self.kv_heads * pair))

    def vectors(self, hidden: int) -> int:
        return (
            ((1 if self.borrows else 2) * self.head_dim if self.qk_norm else 0)
            + (self.heads * self.head_dim if self.qkv_bias else 0)
            + (self.kv_heads * self._pair_dim if self.qkv_bias and not self.borrows else 0)
            + (hidden if self.output_bias else 0)
            + (self.heads if self.sinks else 0)
        )

    def held_bytes(self, shard: Shard) -> float:
        """Heads are split; with more GPUs than key-value heads, several hold the same one."""
        layout, weights = shard.layout, shard.weights
        # An engine keeps keys that serve as values twice, as if values had a projection of their own.
        heads = self.heads / layout.tensor
        columns = heads * (self._pair_dim + self.gate_width) + self._own_kv_heads(shard) * self._pair_dim
        return shard.hidden * columns * weights.stored_bytes(weights.attention)

    def divides(self, tensor: int) -> bool:
        """Query heads must; key-value heads may also be copied."""
        return self.heads % tensor == 0 and (self.kv_heads % tensor == 0 or tensor % self.kv_heads == 0)

    @property
    def split_widths(self) -> dict[str, int]:
        """The output alone: the joined product before it may be cut inside a block."""
        return {"attention output": self.heads * self.value_dim}

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """One product for queries, keys and values together, what is done to each head, and the output."""
        weights, layout = shard.weights, shard.layout
        heads, kv_heads = layout.share(self.heads), self._own_kv_heads(shard)
        key_width, value_width = kv_heads * self.head_dim, kv_heads * self.value_dim
        projected = heads * self.head_dim + key_width + (0 if self.shared_key_value else value_width)
        projected += heads * self.gate_width if self.gate_width > 1 else 0
        # The norm before quantises what it writes: the engine's compiler fuses it into it.
        calls = shard.linear("qkv_proj", tokens, projected, shard.hidden, "attention", quantised=True)
        if self.qk_norm:
            op = head_norm(tokens, heads + kv_heads, self.head_dim, weights.base, by_hand=self.by_hand)
            calls.append(Call("qk_norm", op))
            if self.norm_across and layout.tensor > 1:
                squares_bytes = 2 * 4  # The mean squares of a token's queries and keys, in fp32
                squares = Collective("all_reduce", tokens * squares_bytes, layout.tensor, layout.library)
                calls.append(Call("qk_norm_reduce", squares))
        calls += self._placed(shard, tokens)
        calls += self._gate_calls(shard, heads, tokens)
        calls += shard.linear("o_proj", tokens, shard.hidden, heads * self.value_dim, "attention")
        return calls

    def _placed(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries and keys are rotated, keys and values go into the cache."""
        base = shard.weights.base
        heads, kv_heads = shard.layout.share(self.heads), self._own_kv_heads(shard)
        stored = kv_write(tokens, kv_heads * self._pair_dim, base, self._cache_dtype(shard), by_hand=self.by_hand)
        calls = [] if self.bidirectional or self.borrows else [Call("kv_write", stored)]
        if np.any(self.rotary_dim):
            normed = self.qk_norm and not self.by_hand
            op = rope(tokens, heads + kv_heads, self.rotary_dim, base, normed=normed, by_hand=self.by_hand)
            if self.stores_rotated:
                # Keys are at hand; values are read, and both are written.
                read = op.read_per_row + kv_heads * self.value_dim * bytes_of(base)
                op = replace(op, read_per_row=read, written_per_row=op.written_per_row + stored.written_per_row)
                calls = []
            calls.insert(0, Call("rope", op))
        if self.by_hand:
            calls.append(Call("query_copy", strided_copy(tokens, heads * self.head_dim * bytes_of(base))))
        return calls

    def _gate_calls(self, shard: Shard, heads: int, tokens: Size) -> list[Call]:
        """The gate of the output, and the product that gives it where there is one for each head."""
        if not self.gate_width:
            return []
        formats, base = "attention", shard.weights.base
        calls = shard.linear("gate_proj", tokens, heads, shard.hidden, formats) if self.gate_width == 1 else []
        gated = output_gate(tokens, heads * self.value_dim, heads * self.gate_width, base)
        return [*calls, Call("output_gate", gated)]

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        if self.bidirectional:
            # As many equal prompts with as many tokens and pairs of them.
            pairs = batch.num_pairs(self.window)
            tokens, heads = pairs / np.maximum(batch.tokens, 1), shard.layout.share(self.heads)
            sizes = np.asarray(batch.tokens / np.maximum(tokens, 1)), np.asarray(tokens)
            whole = EncoderAttention(*sizes, heads=heads, head_dim=self.head_dim, dtype=shard.weights.base)
            return [Call("attention", whole)]
        op = Attention(
            batch.queries, batch.keys, heads=shard.layout.share(self.heads),
            kv_heads=shard.layout.share_kv_heads(self.kv_heads), head_dim=self.head_dim, value_dim=self.value_dim,
            sequences=batch.sequences, window=self.window, dtype=shard.weights.base, kv_dtype=self._cache_dtype(shard),
        )  # fmt: skip
        name = "attention_window" if self.window else "attention"
        if batch.is_prompt:
            return [Call(name, op, slower=self.prompts_slower)]
        return [Call(name, op, saved=self.decode_saved)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """Keys and values are read once: the new tokens of a sequence count as that many more heads of one token."""
        return replace(self, heads=self.heads * width).sequence_calls(shard, batch)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        if self.bidirectional or self.borrows:
            return ()
        width = shard.layout.share_kv_heads(self.kv_heads) * self._pair_dim
        return (Cache(width * bytes_of(self._cache_dtype(shard)), window=self.window, chunked=self.chunked),)


# Multi-head latent attention (DeepSeek, Kimi): one compressed vector per token is cached for all heads.


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    heads: int
    kv_lora_rank: int
    q_lora_rank: int  # 0: queries are projected directly
    nope_dim: int
    rope_dim: int
    value_dim: int

    modules = ("self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj")
    divided = ("heads",)
    is_composed = True

    @property
    def latent_dim(self) -> int:
        """Values cached a token: the compressed key-value vector and the shared rotary key."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def expanded_dim(self) -> int:
        """What the latent is expanded to for each head: a key without its rotary part, and a value."""
        return self.nope_dim + self.value_dim

    label_text = "MLA {0.heads} x {0.latent_dim}"
    description_text = "MLA, {0.heads} heads, latent {0.latent_dim}"

    def whole_matrices(self, hidden: int) -> int:
        """Projections down to a latent."""
        return hidden * (self.q_lora_rank + self.latent_dim)

    def split_matrices(self, hidden: int) -> int:
        """Of each head: queries, the expansion of the latent, the output."""
        queries = (self.q_lora_rank or hidden) * self.query_dim
        return self.heads * (queries + self.kv_lora_rank * self.expanded_dim + self.value_dim * hidden)

    def vectors(self, hidden: int) -> int:
        return self.q_lora_rank + self.kv_lora_rank

    def held_bytes(self, shard: Shard) -> float:
        """Decoding multiplies with the expansion in the base format, so a quantised one has a wide copy, too."""
        weights, held = shard.weights, Mixer.held_bytes(self, shard)
        if weights.attention == weights.base:
            return held
        expansion = self.heads / shard.layout.tensor * self.kv_lora_rank * self.expanded_dim
        return held + expansion * weights.stored_bytes(weights.base)

    @property
    def split_widths(self) -> dict[str, int]:
        return {
            "attention output": self.heads * self.value_dim,
            "queries": self.heads * self.query_dim,
            "keys and values": self.heads * self.expanded_dim,
        }

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Compress, norm, expand the queries; the latent itself is the same on every GPU."""
        weights = shard.weights
        heads = shard.layout.share(self.heads)
        query_width = heads * self.query_dim
        compressed = self.q_lora_rank + self.latent_dim
        calls: list[Call] = []
        if self.q_lora_rank:
            calls += shard.linear("qkv_a_proj", tokens, compressed, shard.hidden, "attention")
            calls.append(Call("q_a_norm", norm(tokens, self.q_lora_rank, residual=False, dtype=weights.base)))
            calls += shard.linear("q_b_proj", tokens, query_width, self.q_lora_rank, "attention")
        else:
            calls += shard.linear("q_proj", tokens, query_width, shard.hidden, "attention")
            calls += shard.linear("kv_a_proj", tokens, compressed, shard.hidden, "attention")
        calls.append(Call("kv_a_norm", norm(tokens, self.kv_lora_rank, residual=False, dtype=weights.base)))
        # The rest of each query head is copied along.
        rotated = rope(tokens, heads + 1, self.rope_dim, weights.base, copied=query_width - heads * self.rope_dim)
        calls.append(Call("rope", rotated))
        calls.append(Call("kv_write", kv_write(tokens, self.latent_dim, weights.base, shard.cache_dtype)))
        calls += shard.linear("o_proj", tokens, shard.hidden, heads * self.value_dim, "attention")
        return calls

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        kinds = ((self._prompt_calls if form.is_prompt else self._decode_calls, form) for form in batch.forms())
        return [call for calls, form in kinds for call in calls(shard, form)]

    def _prompt_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """The latent of every key is expanded into full heads, which attend as multi-head attention."""
        heads, sizes = shard.layout.share(self.heads), (self.query_dim, self.value_dim)
        op = Attention(
            batch.queries, batch.keys, heads, heads, *sizes, sequences=batch.sequences, dtype=shard.weights.base
        )
        expanded = heads * self.expanded_dim
        expansion = shard.linear("kv_b_proj", batch.num_entries(), expanded, self.kv_lora_rank, "attention")
        return [*expansion, Call("attention_prompt", op)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """The latent is read once: the new tokens of a sequence count as that many more heads of one token."""
        return self._decode_calls(shard, batch, width)

    def _decode_calls(self, shard: Shard, batch: SequenceBatch, width: int = 1) -> list[Call]:
        """The expansion is folded into the query, which attends to the latent itself as multi-query attention."""
        base, heads, rows = shard.weights.base, shard.layout.share(self.heads), batch.size * width
        latent = Attention(
            batch.queries, batch.keys, heads=heads * width, kv_heads=1, head_dim=self.latent_dim,
            value_dim=self.kv_lora_rank, sequences=batch.sequences, latent_kv=True, dtype=base,
            kv_dtype=shard.cache_dtype,
        )  # fmt: skip
        return [
            Call("q_absorb", Gemm(rows, self.kv_lora_rank, self.nope_dim, dtype=base, batch=heads)),
            Call("attention_latent", latent),
            Call("v_expand", Gemm(rows, self.value_dim, self.kv_lora_rank, dtype=base, batch=heads)),
        ]

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        return (Cache(self.latent_dim * bytes_of(shard.cache_dtype)),)


@dataclass(frozen=True, slots=True)
class KimiLatentAttention(LatentAttention):
    """Latent attention without rotary positions."""

    gated: bool = False  # The output is multiplied with a gate of its width, by a product of its own

    def split_matrices(self, hidden: int) -> int:
        gate = hidden * self.heads * self.value_dim if self.gated else 0
        return LatentAttention.split_matrices(self, hidden) + gate

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        calls = [call for call in LatentAttention.token_calls(self, shard, tokens) if call.name != "rope"]
        if self.gated:
            width = shard.layout.share(self.heads) * self.value_dim
            calls += shard.linear("gate_proj", tokens, width, shard.hidden, "attention")
            calls.append(Call("output_gate", output_gate(tokens, width, width, shard.weights.base)))
        return calls
