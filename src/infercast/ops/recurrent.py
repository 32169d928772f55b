"""Kernels of recurrent layers: the scan over prompts, the update of a state by one token, and short convolutions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from infercast.lazy_classes import dataclass
from infercast.ops.op import ComputedInDtype, Lengths, Quantity, Size, bytes_of, sum_batch

GATED_DELTA, KIMI_DELTA, MAMBA2 = "gdn", "kda", "mamba2"
"""A delta rule with one gate a head, one with a gate a channel, and a state space."""


@dataclass(frozen=True)
class Scan(ComputedInDtype):
    """The prompts of a recurrent layer, in chunks: parallel within a chunk, serial from one chunk to the next.

    The batch is a histogram, as in ``Attention``. ``heads`` have a state of ``key_dim`` x ``value_dim`` each,
    ``key_heads`` are those of keys and queries; of a state space: heads, groups, state size, head size.
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
        """Chunks of the longest sequence, which follow each other."""
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
        """The output of each token and the states after them."""
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
        """The states, and the keys, values and gates of the new tokens."""
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
