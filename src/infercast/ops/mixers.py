"""Kernels of layers beyond plain attention: recurrent ones, sparse and compressed attention, hyper-connections."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from infercast.lazy_classes import KW_ONLY, dataclass
from infercast.ops.op import ComputedInDtype, HeadAttention, Lengths, Quantity, Size, bytes_of, sum_batch

# Kernels of recurrent layers: the scan over prompts, the update of a state by one token, and short convolutions.

GATED_DELTA, KIMI_DELTA, MAMBA2 = "gdn", "kda", "mamba2"
"""A delta rule with one gate a head, one with a gate a channel, and a state space."""


@dataclass(frozen=True)
class Scan(ComputedInDtype):
    """The prompts of a recurrent layer, in chunks: parallel within a chunk, serial from one chunk to the next. The
    batch is a histogram, as in ``Attention``. ``heads`` have a state of ``key_dim`` x ``value_dim`` each, ``key_heads``
    are those of keys and queries; of a state space: heads, groups, state size, head size.
    """

    queries: Lengths
    sequences: Lengths | int = 1
    heads: int = 0
    key_heads: int = 0
    key_dim: int = 128
    value_dim: int = 128
    kind: str = GATED_DELTA
    chunk: int = 64
    dtype: str = "bf16"
    state_dtype: str = "fp32"
    kernel: str = ""  # The library, such as ``triton`` or ``flashinfer``; empty: the engine's choice
    family: str = "scan"

    @property
    def keys(self) -> Lengths:
        """A state stands for all tokens before, so that the new ones are all that count."""
        return self.queries

    @cached_property
    def num_tokens(self) -> Quantity:
        return sum_batch(self.queries, self.sequences)

    @cached_property
    def num_sequences(self) -> Quantity:
        return sum_batch((self.queries > 0) * 1, self.sequences)

    @cached_property
    def most_chunks(self) -> Quantity:
        here = self.queries if isinstance(self.sequences, int) else self.queries * (np.asarray(self.sequences) > 0)
        longest: Quantity = np.maximum.reduce(-(-here // self.chunk), axis=-1, initial=0)
        return longest

    @property
    def flops(self) -> Quantity:
        """Products of a chunk with itself and with the state, for each token and head."""
        chunk, keys, values = self.chunk, self.key_dim, self.value_dim
        if self.kind == MAMBA2:
            within = chunk * (self.key_heads * keys + self.heads * values)
            return 2.0 * self.num_tokens * (within + 2 * self.heads * keys * values)
        within = self.heads * chunk * (3 * keys + 2 * values)
        return 2.0 * self.num_tokens * (within + 2 * self.heads * keys * values)

    @property
    def least_flops(self) -> Quantity:
        """What no cutting into chunks saves: each token's part of the state, and what it reads there."""
        return 4.0 * self.num_tokens * self.heads * self.key_dim * self.value_dim

    @property
    def state_bytes(self) -> Quantity:
        return bytes_of(self.state_dtype) * self.heads * self.key_dim * self.value_dim * self.num_sequences

    @property
    def token_bytes(self) -> float:
        """What a token brings: queries, keys, values and gates."""
        gates = self.heads * self.key_dim * 4.0 if self.kind == KIMI_DELTA else self.heads * 4.0
        width = 2 * self.key_heads * self.key_dim + self.heads * self.value_dim
        return bytes_of(self.dtype) * width + gates + self.heads * 4.0

    @property
    def bytes_read(self) -> Quantity:
        return self.token_bytes * self.num_tokens + self.state_bytes

    @property
    def bytes_written(self) -> Quantity:
        return bytes_of(self.dtype) * self.heads * self.value_dim * self.num_tokens + self.state_bytes


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """One new token each of ``rows`` sequences: their states are read, decayed, added to and written back."""

    rows: Size
    heads: int = 0
    key_heads: int = 0
    key_dim: int = 128
    value_dim: int = 128
    kind: str = GATED_DELTA
    dtype: str = "bf16"
    state_dtype: str = "fp32"
    family: str = "state_update"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        """Decay, what the key finds, what is added, and what the query reads."""
        return 8.0 * self.heads * self.key_dim * self.value_dim * self.rows

    @property
    def state_bytes(self) -> Quantity:
        return bytes_of(self.state_dtype) * self.heads * self.key_dim * self.value_dim * self.rows

    @property
    def bytes_read(self) -> Quantity:
        gates = self.heads * self.key_dim if self.kind == KIMI_DELTA else 2 * self.heads
        width = 2 * self.key_heads * self.key_dim + self.heads * self.value_dim + gates
        return self.state_bytes + bytes_of(self.dtype) * width * self.rows

    @property
    def bytes_written(self) -> Quantity:
        return self.state_bytes + bytes_of(self.dtype) * self.heads * self.value_dim * self.rows


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Channels mixed with those of ``taps - 1`` tokens before; ``update``: the kernel for one new token a sequence."""

    tokens: Size
    sequences: Size
    channels: int = 0
    taps: int = 4
    update: bool = False
    dtype: str = "bf16"
    kernel: str = ""  # The library: ``triton`` or ``cuda``; empty: the engine's choice
    family: str = "convolution"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        """A product for each tap, then the activation."""
        return (2.0 * self.taps + 4.0) * self.channels * self.tokens

    @property
    def state_bytes(self) -> Quantity:
        return bytes_of(self.dtype) * self.channels * (self.taps - 1) * self.sequences

    @property
    def bytes_read(self) -> Quantity:
        filters = bytes_of(self.dtype) * self.channels * (self.taps + 1)
        return bytes_of(self.dtype) * self.channels * self.tokens + self.state_bytes + filters

    @property
    def bytes_written(self) -> Quantity:
        return bytes_of(self.dtype) * self.channels * self.tokens + self.state_bytes


# Sparse and compressed attention over batches as in `Attention`: scores of an index, the choice of keys, attention.


def entries_up_to(tokens: Lengths, compress: int, most: int = 0) -> Lengths:
    """Entries that the first ``tokens`` queries see: one at ``p`` sees ``p // compress``, or ``most`` if not 0."""
    free = np.minimum(tokens, most * compress - 1) if most else tokens
    whole = free // compress
    seen = compress * (whole * (whole - 1) // 2) + whole * (free - compress * whole + 1)
    return np.asarray(seen + most * (tokens - free) if most else seen)


@dataclass(frozen=True)
class Batch:
    queries: Lengths
    keys: Lengths
    sequences: Lengths | int = 1

    @cached_property
    def num_queries(self) -> Quantity:
        return sum_batch(self.queries, self.sequences)

    def _pairs(self, compress: int, most: int = 0) -> Quantity:
        """Entries that the new tokens look at, added up over them."""
        before = entries_up_to(self.keys - self.queries, compress, most)
        return sum_batch(entries_up_to(self.keys, compress, most) - before, self.sequences)


@dataclass(frozen=True)
class IndexScores(ComputedInDtype, Batch):
    """Scores of every new token with every index key (one for ``compress`` tokens) in reach: one fp32 number each."""

    _: KW_ONLY
    heads: int
    head_dim: int = 128
    compress: int = 1
    entry_bytes: float = 132
    dtype: str = "fp8"
    family: str = "index_scores"

    @cached_property
    def num_pairs(self) -> Quantity:
        return self._pairs(self.compress)

    @cached_property
    def num_entries(self) -> Quantity:
        return sum_batch(self.keys // self.compress, self.sequences)

    @property
    def flops(self) -> Quantity:
        return 2.0 * self.heads * self.head_dim * self.num_pairs

    @property
    def bytes_read(self) -> Quantity:
        """Index queries with a weight for each head, and the keys in reach, each once."""
        query = self.heads * (self.head_dim * bytes_of(self.dtype) + 4)
        return query * self.num_queries + self.entry_bytes * self.num_entries

    @property
    def bytes_written(self) -> Quantity:
        return 4.0 * self.num_pairs


@dataclass(frozen=True)
class TopK(Batch):
    """The places of the ``topk`` best scores of every new token; ``tied``: all are nearly equal."""

    _: KW_ONLY
    topk: int
    compress: int = 1
    tied: bool = False
    family: str = "top_k"
    compute_dtype: str = "fp32"

    @cached_property
    def num_pairs(self) -> Quantity:
        return self._pairs(self.compress)

    @property
    def flops(self) -> Quantity:
        return 1.0 * self.num_pairs

    @property
    def bytes_read(self) -> Quantity:
        return 4.0 * self.num_pairs

    @property
    def bytes_written(self) -> Quantity:
        return 4.0 * self.topk * self.num_queries


@dataclass(frozen=True)
class SparseAttention(HeadAttention, Batch):
    """Attention of every new token over the keys that were chosen for it and the last ``window`` ones. ``selected`` is
    the most keys that are chosen for a query (compressed ones where ``compress`` > 1; 0: all of them), in blocks of
    ``block`` keys next to each other. ``bytes_per_key`` is what one key with its value takes in the cache, all
    ``kv_heads`` of this GPU together. ``kind``: ``mla``, ``csa``, ``hca`` or ``msa``.
    """

    _: KW_ONLY
    heads: int
    head_dim: int
    value_dim: int
    kv_heads: int = 1
    selected: int
    window: int = 0
    compress: int = 1
    block: int = 1
    bytes_per_key: float
    kind: str
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    family: str = "sparse_attention"

    @cached_property
    def num_pairs(self) -> Quantity:
        """Query-key pairs that one head computes over the batch."""
        return self._pairs(self.compress, self.selected) + (self._pairs(1, self.window) if self.window else 0)

    @cached_property
    def num_keys_in_reach(self) -> Quantity:
        """Keys that must be read: those of the last query of every sequence; others may choose the same ones."""
        entries = self.keys // self.compress
        chosen = np.minimum(entries, self.selected) if self.selected else entries
        return sum_batch(chosen + np.minimum(self.keys, self.window), self.sequences)

    @property
    def kv_bytes(self) -> Quantity:
        return self.bytes_per_key * self.num_keys_in_reach


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """Half a manifold-constrained hyper-connection: ``pre`` adds residual streams up, ``post`` mixes the output in."""

    rows: Size
    _: KW_ONLY
    hidden: int
    streams: int = 4
    half: str
    family: str = "hyper_connection"
    compute_dtype: str = "bf16"

    @property
    def weights(self) -> int:
        """Mixing weights of a token: one in and one out for each stream, and the streams among themselves."""
        return self.streams * (2 + self.streams)

    @property
    def flops(self) -> Quantity:
        """``pre``: the projection of all streams; ``post``: the streams mixed among themselves."""
        width = self.streams * self.hidden
        per_row = 2.0 * width * self.weights if self.half == "pre" else 2.0 * width * (self.streams + 1)
        return per_row * self.rows

    @property
    def bytes_read(self) -> Quantity:
        width = self.streams * self.hidden
        if self.half == "pre":
            return 2.0 * width * self.rows + 4.0 * self.weights * width
        return 2.0 * (width + self.hidden) * self.rows

    @property
    def bytes_written(self) -> Quantity:
        return 2.0 * (self.hidden if self.half == "pre" else self.streams * self.hidden) * self.rows
