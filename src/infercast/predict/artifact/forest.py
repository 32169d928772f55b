"""Gradient-boosted trees in plain numpy: what a fit leaves behind, and how it is evaluated.

Trees are *oblivious*: all nodes of one level ask the same question, so a tree of depth d is d comparisons and a table
of 2^d leaves, and a leaf's index is the answers read as bits. Many rows are compared tree by tree, in chunks that stay
in the processor's cache. For few rows it is quicker to look up, for each feature, the bits that its value decides in
all trees: for each interval between two borders they are kept as one row of bytes, or as one long integer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import getitem, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 32_768
MANY = 2000
"""Rows from which on trees are compared one after the other."""
LARGE = 100
"""Trees above which the leaves even of one row are added up as an array."""

BYTES = np.dtype(np.uint8)


@dataclass(frozen=True)
class Forest:
    """A sum of oblivious trees."""

    borders: tuple[Array, ...]
    """For each feature, its borders in rising order (float32)."""
    features: Array
    """(trees, depth) which feature a level looks at."""
    bins: Array
    """(trees, depth) a level answers yes if the feature is above the border of this number, or no if there is none."""
    leaves: Array
    """(trees, 2^depth) what each tree adds; at most 256 leaves."""
    bias: float

    def without_logarithms(self, is_logarithm: Sequence[bool]) -> Forest:
        """The same forest for features of which some come without their base-two logarithm."""
        borders = (
            np.exp2(_rounding_to(border)).astype(np.float32) if changed else border
            for border, changed in zip(self.borders, is_logarithm, strict=True)
        )
        return replace(self, borders=tuple(borders))

    def predict(self, features: Array) -> Array:
        """The sum over all trees, for each row of a matrix of features."""
        values = np.asarray(features, dtype=np.float32)
        rows = len(values)
        if rows == 1:
            return np.array([self.predict_one(values[0].tolist())])
        if rows < MANY:
            return self.predict_columns([*values.T], rows)
        total = np.empty(rows)
        for start in range(0, rows, CHUNK):
            chunk = np.ascontiguousarray(values[start : start + CHUNK].T)
            total[start : start + CHUNK] = self.predict_columns([*chunk], chunk.shape[1])
        return total

    def predict_columns(self, columns: Sequence[Array | float], rows: int) -> Array:
        """The same for a chunk of rows whose features are columns, or one number where all rows agree."""
        values = [np.asarray(column, dtype=np.float32) for column in columns]
        if rows < MANY:
            return self._look_up(values, rows)
        index, answers = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.bool_)
        bits, first = answers.view(np.uint8), index.view(np.bool_)
        total, added = np.full(rows, self.bias, dtype=np.float32), np.empty(rows, dtype=np.float32)
        for levels, leaves in self._trees:
            (feature, border), *others = levels
            np.greater(values[feature], border, out=first)
            for feature, border in others:
                np.greater(values[feature], border, out=answers)
                np.add(index, index, out=index)
                np.bitwise_or(index, bits, out=index)
            np.take(leaves, index, out=added, mode="clip")
            total += added
        return total

    def predict_one(self, values: Sequence[float]) -> float:
        """The sum over all trees for one row."""
        if len(self.leaves) > LARGE:
            return self._predict_one_of_many(values)
        pick, borders, bits, leaves = self._for_one
        index = sum(map(getitem, bits, map(bisect_left, borders, pick(values))))  # no two features set the same bit
        return self.bias + sum(map(getitem, leaves, index.to_bytes(len(leaves), "little")))

    def _predict_one_of_many(self, values: Sequence[float]) -> float:
        """The same with an array of leaves."""
        pick, borders, bits, places, leaves, first_leaves = self._for_one_of_many
        decided = np.frombuffer(b"".join(map(getitem, bits, map(bisect_left, borders, pick(values)))), BYTES)
        index = np.bitwise_or.reduce(decided.take(places))
        return self.bias + float(np.add.reduce(leaves.take(index + first_leaves)))

    def leaf_numbers(self, features: Array) -> Array:
        """(rows, trees) which leaf each tree picks."""
        values = np.asarray(features, dtype=np.float32)
        return self._leaf_numbers([*values.T], len(values))

    def _leaf_numbers(self, columns: Sequence[Array], rows: int) -> Array:
        index = np.zeros((rows, self._tables[0][2].shape[1]), dtype=np.uint8)
        for feature, borders, bits in self._tables:
            index |= bits.take(np.searchsorted(borders, columns[feature]), axis=0)
        return index[:, : len(self.leaves)]

    def _look_up(self, columns: Sequence[Array], rows: int) -> Array:
        """For a few rows."""
        trees, leaves = self.leaves.shape
        places = self._leaf_numbers(columns, rows) + np.arange(0, trees * leaves, leaves)
        return np.asarray(self.bias + self.leaves.take(places).sum(axis=1, dtype=np.float64))

    @cached_property
    def _trees(self) -> list[tuple[list[tuple[int, Array]], Array]]:
        """Each tree's questions, last bit first, and its leaves."""
        levels = self._levels()
        return [(questions[::-1], leaves) for questions, leaves in zip(levels, self.leaves, strict=True)]

    @cached_property
    def _for_one(self) -> tuple[itemgetter[Any], list[list[float]], list[list[int]], list[list[float]]]:
        """What `predict_one` needs, as lists: how to pick the features used, their borders and bits; all leaves."""
        bits = [[int.from_bytes(row.tobytes(), "little") for row in table] for _, _, table in self._tables]
        return *self._pick_and_borders(), bits, self.leaves.tolist()

    @cached_property
    def _for_one_of_many(self) -> tuple[itemgetter[Any], list[list[float]], list[list[bytes]], Array, Array, Array]:
        """The same with bits as bytes of those trees alone that ask for a feature, which keeps them in the cache.

        Then (levels, trees) where the bytes of a tree are among those of all features, all leaves, and where a tree's
        start.
        """
        trees, leaves = self.leaves.shape
        is_asking = np.array([table[-1, :trees] > 0 for _, _, table in self._tables])
        is_asking[0] |= ~is_asking.any(axis=0)
        bits = [
            [row.tobytes() for row in table[:, :trees][:, asking]]
            for (_, _, table), asking in zip(self._tables, is_asking, strict=True)
        ]
        counts = is_asking.sum(axis=0)
        order = np.argsort(np.nonzero(is_asking)[1], kind="stable")
        # A tree that asks for fewer features than others takes its last byte again.
        levels = np.minimum(np.arange(counts.max())[:, None], counts - 1)
        places = order[np.cumsum(counts) - counts + levels]
        first_leaves = np.arange(0, trees * leaves, leaves)
        return *self._pick_and_borders(), bits, places, self.leaves.ravel().astype(np.float64), first_leaves

    def _pick_and_borders(self) -> tuple[itemgetter[Any], list[list[float]]]:
        features = [feature for feature, _, _ in self._tables]
        borders = [_rounding_to(borders).tolist() for _, borders, _ in self._tables]
        # Picking one more, so that what is picked is a tuple even of a single feature, is harmless: `map` stops before.
        return itemgetter(*features, features[0]), borders

    @cached_property
    def _tables(self) -> list[tuple[int, Array, Array]]:
        """For each feature that is used: its number, its borders, and the bits it sets between them.

        Bits are a byte a tree and come in words of eight.
        """
        trees, depth = self.features.shape
        features = self.features.ravel().astype(np.intp)
        places = np.concatenate(([0], np.cumsum([len(each) for each in self.borders])))
        is_asked = self.bins.ravel() < np.diff(places)[features]
        all_borders = np.concatenate([*self.borders, np.zeros(1, dtype=np.float32)])
        values = np.where(is_asked, all_borders[np.where(is_asked, places[features] + self.bins.ravel(), 0)], np.inf)
        # Questions by feature and border: each different one sets bits in a row, below an empty row a feature.
        order = np.lexsort((values, features))
        asked, borders = features[order], values[order].astype(np.float32)
        is_next = np.concatenate(([False], asked[1:] != asked[:-1]))
        is_new = is_next | np.concatenate(([True], borders[1:] != borders[:-1]))
        rows = np.cumsum(is_new) + np.cumsum(is_next)
        bits = np.zeros((rows[-1] + 1, -(-trees // 8) * 8), dtype=np.uint8)
        # No two levels of a tree set the same bit, so adding is as good as or.
        np.add.at(bits.reshape(-1), rows * bits.shape[1] + order // depth, (1 << (order % depth)).astype(np.uint8))
        words = bits.view(np.uint64)
        firsts = np.flatnonzero(np.concatenate(([True], is_next[1:])))
        tables = []
        for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(order)], strict=True):
            mine = slice(rows[first] - 1, rows[end - 1] + 1)
            np.bitwise_or.accumulate(words[mine], axis=0, out=words[mine])
            tables.append((int(asked[first]), borders[first:end][is_new[first:end]], bits[mine]))
        return tables

    def _levels(self) -> list[list[tuple[int, Array]]]:
        """For each tree, (feature, border) of its levels."""
        missing = np.array(np.inf, dtype=np.float32)
        return [
            [
                (feature, self.borders[feature][number, ...] if number < len(self.borders[feature]) else missing)
                for feature, number in zip(*tree, strict=True)
            ]
            for tree in zip(self.features.tolist(), self.bins.tolist(), strict=True)
        ]


def _rounding_to(borders: Array) -> Array:
    """The largest doubles that are still rounded to these single floats, and so are not above them."""
    # In doubles: half of the least float32, above a border at zero, would be none.
    return np.asarray(borders.astype(np.float64) + 0.5 * np.spacing(np.abs(borders)).astype(np.float64))
