"""Attention priced once on a grid of batches and looked up in between.

A learned price costs half a millisecond of numpy however small the batch is; a run asks for thousands. A batch is
described by a few numbers in which its price is smooth: a decoding batch by how many sequences it has and their mean
length, a batch of prompts by how many, how long and how much of each is cached already. A few hundred prices and
straight lines between them (in logarithms) then serve a whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Price = Callable[[Array, Array], Array]
"""(queries, keys), each (batches, sequences), to (batches, kernels) seconds."""

SHORTEST = 16
FINE, COARSE, ROUGH = 2.0, 1.0, 0.5
"""Points an octave."""
MOST_PROMPTS = 64
LEAST_CACHED = 64


class DecodeSurface:
    """Seconds of each attention kernel of a decoding batch."""

    def __init__(self, price: Price, max_sequences: int, max_keys: int) -> None:
        counts = _grid(1, max_sequences, COARSE)
        lengths = _grid(SHORTEST, max(max_keys, 2 * SHORTEST), FINE)
        self._log_counts, self._log_lengths = np.log(counts), np.log(lengths)
        tables = [price(np.ones((1, count), dtype=np.int64), _repeat(lengths, count)) for count in counts]
        self._log_seconds = _safe_log(np.stack(tables))

    def __call__(self, num_sequences: int, mean_keys: Array) -> Array:
        """(batches, kernels) seconds of batches that all have ``num_sequences``, each with its mean length."""
        rows = _between(self._log_seconds, self._log_counts, float(np.log(num_sequences)))
        where = np.log(np.maximum(mean_keys, 1.0))
        columns = [np.interp(where, self._log_lengths, rows[:, column]) for column in range(rows.shape[1])]
        return np.asarray(np.exp(np.stack(columns, axis=1)))


class PromptSurface:
    """Seconds of each attention kernel of a batch of prompts."""

    def __init__(self, price: Price, max_tokens: int, max_keys: int) -> None:
        counts = _grid(1, MOST_PROMPTS, ROUGH)
        lengths = _grid(2, max(max_tokens, 4), COARSE)
        cached = np.concatenate(([0], _grid(LEAST_CACHED, max(max_keys, 2 * LEAST_CACHED), COARSE)))
        self._log_counts, self._log_lengths = np.log(counts), np.log(lengths)
        self._log_cached = np.log(cached + LEAST_CACHED)
        queries, before = (axis.ravel() for axis in np.meshgrid(lengths, cached, indexing="ij"))
        tables = [price(_repeat(queries, count), _repeat(queries + before, count)) for count in counts]
        shape = (counts.size, lengths.size, cached.size, -1)
        self._log_seconds = _safe_log(np.stack(tables)).reshape(shape)

    def __call__(self, queries: Array, keys: Array) -> Array:
        """Seconds of each kernel for prompts of uneven lengths, as equal prompts with as many tokens and pairs."""
        total = float(queries.sum())
        length = float(np.square(queries).sum()) / total  # what most tokens see as the length of their prompt
        cached = float(((keys - queries) * queries).sum()) / total
        at_count = _between(self._log_seconds, self._log_counts, float(np.log(total / length)))
        at_length = _between(at_count, self._log_lengths, float(np.log(length)))
        return np.asarray(np.exp(_between(at_length, self._log_cached, float(np.log(cached + LEAST_CACHED)))))


def _between(values: Array, axis: Array, where: float) -> Array:
    """Values along the first axis, on the straight line between the two nearest points."""
    position = float(np.interp(where, axis, np.arange(axis.size)))
    below = min(int(position), axis.size - 2)
    share = position - below
    return np.asarray((1 - share) * values[below] + share * values[below + 1])


def _repeat(lengths: Array, count: int) -> Array:
    """One batch a row, of ``count`` equal sequences."""
    return np.broadcast_to(lengths[:, None], (lengths.size, count))


def _safe_log(seconds: Array) -> Array:
    return np.asarray(np.log(np.maximum(seconds, 1e-12)))


def _grid(first: int, last: int, density: float) -> Array:
    """Whole numbers from first to last, evenly spread in logarithms, at least two."""
    last = max(last, first + 1)
    octaves = np.log2(last / first)
    points = np.geomspace(first, last, 2 + int(np.ceil(octaves * density)))
    return np.unique(np.rint(points).astype(np.int64))
