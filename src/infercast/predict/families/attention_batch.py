"""Batches of sequences as attention kernels see them, in plain floats or as arrays, with full or sparse reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from infercast.ops.attention import Lengths as Counts
from infercast.predict.array_api import Array, Arrays, Kit, Number, Plain

# Batches of sequences as attention sees them: many side by side as arrays, or one in plain floats.


class Sequences(Protocol):
    """What operators over batches of sequences have in common."""

    @property
    def queries(self) -> Counts:
        """New tokens of each."""

    @property
    def keys(self) -> Counts:
        """Tokens of each in all."""

    @property
    def sequences(self) -> Counts | int:
        """How many there are of each."""


class Batch:
    """Batches side by side: the leading axes as one, the last over the sequences."""

    __slots__ = ("counts", "keys", "queries", "size")
    x = Arrays

    def __init__(self, queries: Array, keys: Array, counts: Array) -> None:
        """``counts``: how many sequences an entry stands for; zero for padding."""
        self.queries, self.keys, self.counts = queries, keys, counts
        # Sequences in each batch; one where all is padding, so that ratios stay finite.
        self.size: Array = np.maximum(counts.sum(axis=-1), 1.0)

    def total(self, values: Number) -> Number:
        """Sum over the sequences of each batch."""
        return (values * self.counts).sum(axis=-1)

    def longest(self, values: Number) -> Number:
        return np.where(self.counts > 0, values, 0.0).max(axis=-1)

    def shortest(self, values: Number) -> Number:
        """The smallest value over the sequences of each batch; one where all is padding."""
        smallest = np.where(self.counts > 0, values, np.inf).min(axis=-1)
        return np.where(np.isfinite(smallest), smallest, 1.0)

    def each(self, value: Number) -> Number:
        """A number of each batch, to be combined with those of its sequences."""
        return value[:, None]


class Single:
    """One batch of equal sequences, as plain floats."""

    __slots__ = ("counts", "keys", "queries", "size")
    x = Plain

    def __init__(self, queries: float, keys: float, counts: float) -> None:
        self.queries, self.keys, self.counts = queries, keys, counts
        self.size = counts if counts > 1.0 else 1.0

    def total(self, value: Number) -> Number:
        return value * self.counts

    def longest(self, value: Number) -> Number:
        return value if self.counts > 0.0 else 0.0

    def each(self, value: Number) -> Number:
        return value

    shortest = each


Lengths = Batch | Single


def batch_of(op: Sequences) -> Batch:
    queries, keys, counts = np.broadcast_arrays(op.queries, op.keys, op.sequences)
    width = queries.shape[-1] if queries.ndim else 1
    rows = [np.asarray(part, dtype=np.float64).reshape(-1, width) for part in (queries, keys, counts)]
    return Batch(*rows)


def single_of(op: Sequences) -> Single | None:
    """The batch of an operator, if it is one of equal sequences."""
    counts = op.sequences
    if op.queries.size != 1 or op.keys.size != 1:
        keys = op.keys
        if op.queries.shape != keys.shape or keys.ndim != 1 or not isinstance(counts, int):
            return None
        # Sums over equal decoding sequences are whole numbers, so that a product is as good; those of prompts are not.
        if keys.max() != keys.min() or op.queries.max() != 1:
            return None
        return Single(1.0, float(keys[0]), float(counts * keys.size))
    if not isinstance(counts, int):
        if counts.size != 1:
            return None
        counts = counts.item()
    return Single(float(op.queries.item()), float(op.keys.item()), float(counts))


def split_phases(op: Any) -> tuple[Any, Any | None]:
    """A batch of prompts and decoding sequences as two."""
    decoding = op.queries == 1
    if op.queries.ndim > 1 or decoding.all() or not decoding.any():
        return op, None
    counts = np.broadcast_to(op.sequences, op.queries.shape)
    prompts, decodes = (
        replace(op, queries=op.queries[half], keys=op.keys[half], sequences=counts[half])
        for half in (~decoding, decoding)
    )
    return prompts, decodes


def pairs_of(batch: Lengths, window: int) -> Number:
    queries, cached = batch.queries, batch.keys - batch.queries
    if not window:
        return batch.total(queries * cached + queries * (queries + 1.0) / 2.0)
    # The first queries still see every key; the others see exactly ``window``.
    unlimited = batch.x.clip(window - cached, 0.0, queries)
    limited = (queries - unlimited) * window
    return batch.total(unlimited * cached + unlimited * (unlimited + 1.0) / 2.0 + limited)


def keys_in_reach(batch: Lengths, window: int) -> Number:
    return batch.total(batch.x.smaller(batch.keys, window + batch.queries - 1.0) if window else batch.keys)


# What the new tokens of a batch look back at in sparse and compressed attention, in plain floats or as arrays.


DECODE, PROMPT = "decode", "prompt"


def phase_of(op: Any) -> str:
    """Whether a batch decodes, one new token for each sequence, or has prompts in it."""
    queries = op.queries
    most = queries.item() if queries.size == 1 else np.maximum.reduce(queries, axis=None)
    return DECODE if most <= 1 else PROMPT


def entries_up_to(tokens: Number, compress: int, most: int, x: Kit) -> Number:
    """Entries that the first ``tokens`` queries of a sequence see together: see ``ops.sparse``."""
    free = x.smaller(tokens, most * compress - 1.0) if most else tokens
    whole = x.floor(free / compress)
    seen = compress * (whole * (whole - 1.0) / 2.0) + whole * (free - compress * whole + 1.0)
    return seen + most * (tokens - free) if most else seen


def sparse_pairs_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the new tokens of each sequence look at, added up over its tokens."""
    before = entries_up_to(batch.keys - batch.queries, compress, most, batch.x)
    return entries_up_to(batch.keys, compress, most, batch.x) - before


def entries_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the last token of each sequence looks at."""
    entries = batch.x.floor(batch.keys / compress) if compress > 1 else batch.keys
    return batch.x.smaller(entries, float(most)) if most else entries
