"""Causal attention over a paged KV cache, attention of vision encoders, and uneven batches of lengths."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.ops.op import ComputedInDtype, Quantity, Size, bytes_of

Lengths = npt.NDArray[Any]


def sum_batch(per_sequence: Lengths, sequences: Lengths | int) -> Quantity:
    """Sum over the batch, the last axis, in which each row stands for a number of ``sequences``."""
    total: Quantity = np.add.reduce(per_sequence if isinstance(sequences, int) else per_sequence * sequences, axis=-1)
    return total * sequences if isinstance(sequences, int) else total


class HeadAttention(ComputedInDtype):
    """What query heads compute and move, by ``num_queries``, ``num_pairs`` and the ``kv_bytes`` of the cache."""

    @property
    def flops(self: Any) -> Quantity:
        """Scores and weighted values: two products for each query-key pair and head."""
        flops: Quantity = 2.0 * self.heads * (self.head_dim + self.value_dim) * self.num_pairs
        return flops

    @property
    def bytes_read(self: Any) -> Quantity:
        read: Quantity = bytes_of(self.dtype) * self.heads * self.head_dim * self.num_queries + self.kv_bytes
        return read

    @property
    def bytes_written(self: Any) -> Quantity:
        written: Quantity = bytes_of(self.dtype) * self.heads * self.value_dim * self.num_queries
        return written


@dataclass(frozen=True)
class Attention(HeadAttention):
    """One attention kernel over a batch of sequences of uneven lengths.

    The batch is a histogram: ``sequences[i]`` sequences each have ``queries[i]`` new tokens and ``keys[i]`` tokens
    in all (cached ones and the new ones). The last axis runs over the batch and is summed; further axes in front
    are an array of batches. Rows with ``sequences == 0`` are padding. A decode row has ``queries == 1``.

    ``window`` limits a query to the last ``window`` keys (0: no limit). With ``latent_kv`` (multi-head latent
    attention in its absorbed form) keys and values are one stored vector of ``head_dim``, read once.
    """

    queries: Lengths
    keys: Lengths
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    sequences: Lengths | int = 1
    window: int = 0
    latent_kv: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    family: str = "attention"
    kernel: str = ""  # Which kernel (data/kernels.toml), where it is not the engine's own choice

    @cached_property
    def num_queries(self) -> Quantity:
        return sum_batch(self.queries, self.sequences)

    def num_tiles(self, rows: int) -> Quantity:
        """Tiles of ``rows`` queries of one sequence each, over the batch."""
        return sum_batch(-(-self.queries // rows), self.sequences)

    @cached_property
    def num_pairs(self) -> Quantity:
        """Query-key pairs that one head computes over the batch."""
        queries, cached = self.queries, self.keys - self.queries
        if not self.window:
            return sum_batch(queries * cached + queries * (queries + 1) // 2, self.sequences)
        # The first queries still see every key; the others see exactly ``window``.
        unlimited = np.clip(self.window - cached, 0, queries)
        limited = (queries - unlimited) * self.window
        return sum_batch(unlimited * cached + unlimited * (unlimited + 1) // 2 + limited, self.sequences)

    @cached_property
    def num_keys_in_reach(self) -> Quantity:
        """Keys of the batch that at least one query of their sequence looks at."""
        return sum_batch(
            np.minimum(self.keys, self.window + self.queries - 1) if self.window else self.keys, self.sequences
        )

    @property
    def exponentials(self) -> Quantity:
        """Exponentials of the softmax, which run on the special-function units."""
        return 1.0 * self.heads * self.num_pairs

    @property
    def kv_bytes(self) -> Quantity:
        width = self.head_dim if self.latent_kv else self.head_dim + self.value_dim
        return bytes_of(self.kv_dtype) * self.kv_heads * width * self.num_keys_in_reach


@dataclass(frozen=True, slots=True)
class EncoderAttention(ComputedInDtype):
    """Attention of every token of an image with all others of it, in a vision tower: no cache, nothing is masked."""

    images: Size
    tokens: Size
    _: KW_ONLY
    heads: int
    head_dim: int
    dtype: str = "bf16"
    family: str = "encoder_attention"

    @property
    def flops(self) -> Quantity:
        return 4.0 * self.heads * self.head_dim * self.images * self.tokens * self.tokens

    @property
    def bytes_read(self) -> Quantity:
        return 3.0 * bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens

    @property
    def bytes_written(self) -> Quantity:
        return bytes_of(self.dtype) * self.heads * self.head_dim * self.images * self.tokens


def spread_lengths(count: int, mean: int, sigma: float) -> npt.NDArray[np.int64]:
    """``count`` lengths of about this mean, in an order that looks random and is always the same.

    ``sigma`` is the standard deviation of the logarithm: 0 makes all equal, 1 is as uneven as chat traffic.
    """
    if sigma == 0:
        return np.full(count, mean, dtype=np.int64)
    from statistics import NormalDist  # noqa: PLC0415 - few need it, and it loads decimals and fractions

    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    lengths = np.exp(sigma * quantiles)
    lengths = np.maximum(np.rint(lengths * (mean / lengths.mean())), 1).astype(np.int64)
    return np.asarray(np.random.default_rng(count).permutation(lengths))
