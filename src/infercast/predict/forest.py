"""Gradient-boosted trees in plain numpy: what a fit leaves behind, and how it is evaluated.

Trees are *oblivious*: all nodes of one level ask the same question, so a tree of depth d is d comparisons and a table
of 2^d leaves, and a leaf's index is the answers read as bits. Features are first turned into small integers (how many
borders lie below the value), so a comparison is one byte against another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Below this many (row, tree, level) triples, all trees are walked at once; above, one tree after the other.
SMALL = 800_000
CHUNK = 16_384
FEW = 64


@dataclass(frozen=True)
class Forest:
    """A sum of oblivious trees."""

    borders: tuple[Array, ...]
    """For each feature, its borders in rising order (float32)."""
    features: Array
    """(trees, depth) which feature a level looks at."""
    bins: Array
    """(trees, depth) a level answers yes if the feature's number of borders below it is above this."""
    leaves: Array
    """(trees, 2^depth) what each tree adds."""
    bias: float

    @cached_property
    def border_table(self) -> Array:
        """The borders as one array, filled up with infinity."""
        table = np.full((len(self.borders), max(map(len, self.borders), default=0)), np.inf, dtype=np.float32)
        for row, borders in zip(table, self.borders, strict=True):
            row[: len(borders)] = borders
        return table

    def predict(self, features: Array) -> Array:
        """The sum over all trees, for each row of features."""
        binned = self._bin(features)
        trees, depth = self.features.shape
        if len(binned) * trees * depth <= SMALL:
            return self._predict_at_once(binned)
        total = np.empty(len(binned))
        for start in range(0, len(binned), CHUNK):
            stop = min(start + CHUNK, len(binned))
            total[start:stop] = self._predict_tree_by_tree(np.ascontiguousarray(binned[start:stop].T))
        return total

    def _predict_tree_by_tree(self, by_feature: Array) -> Array:
        """For many rows: every operation runs over bytes that stay in the processor's cache."""
        trees, depth = self.features.shape
        rows = by_feature.shape[1]
        index, bits = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.uint8)
        total, added = np.full(rows, self.bias, dtype=np.float64), np.empty(rows, dtype=np.float32)
        for tree in range(trees):
            index.fill(0)
            for level in range(depth):
                answers = bits.view(np.bool_)
                np.greater(by_feature[self.features[tree, level]], self.bins[tree, level], out=answers)
                np.left_shift(bits, level, out=bits)
                np.bitwise_or(index, bits, out=index)
            np.take(self.leaves[tree], index, out=added, mode="clip")
            total += added
        return total

    def _predict_at_once(self, binned: Array) -> Array:
        """For few rows: the overhead of a loop over trees would cost more than its work."""
        answers = binned[:, self.features] > self.bins
        index = np.packbits(answers, axis=2, bitorder="little")[:, :, 0]
        return np.asarray(self.bias + self.leaves[np.arange(len(self.leaves)), index].sum(axis=1, dtype=np.float64))

    def _bin(self, features: Array) -> Array:
        """Each value as the number of borders below it."""
        values = np.asarray(features, dtype=np.float32)
        if len(values) <= FEW:
            return np.asarray(np.sum(values[:, :, None] > self.border_table, axis=2, dtype=np.uint8))
        binned = np.empty(values.shape, dtype=np.uint8)
        for column, borders in enumerate(self.borders):
            binned[:, column] = np.searchsorted(borders, values[:, column], side="left")
        return binned
