"""Gradient-boosted trees in plain numpy: what a fit leaves behind, and how it is evaluated.

Trees are *oblivious*: all nodes of one level ask the same question, so a tree of depth d is d comparisons and a table
of 2^d leaves, and a leaf's index is the answers read as bits. One row is compared with all borders at once. For a few
rows it is quicker to look up, for each feature, the bits that its value decides in all trees: for each interval between
two borders they are kept as one row of bytes. Many rows are compared tree by tree, in chunks that stay in the
processor's cache; the more alike the rows of a chunk are, the fewer questions are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 32_768
MANY = 2000  # Rows from which on trees are compared one after the other
LARGE = 100  # Trees above which the leaves even of one row are added up as an array


@dataclass(frozen=True)
class Forest:
    """A sum of oblivious trees."""

    borders: tuple[Array, ...]  # For each feature, its borders in rising order (float32)
    features: Array  # (trees, depth) which feature a level looks at
    bins: Array
    """(trees, depth) a level answers yes if the feature is above the border of this number, or no if there is none."""
    leaves: Array  # (trees, 2^depth) what each tree adds; at most 256 leaves
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
        total = np.empty(rows)
        for start in range(0, rows, CHUNK):
            chunk = np.ascontiguousarray(values[start : start + CHUNK].T)
            total[start : start + CHUNK] = self.predict_columns([*chunk], chunk.shape[1])
        return total

    def predict_columns(self, columns: Sequence[Array | float], rows: int, dtype: type = np.float64) -> Array:
        """The same for a chunk of rows, given the columns of features, or one number where all rows agree."""
        values = [np.asarray(column, dtype=np.float32) for column in columns]
        return self._look_up(values, rows) if rows < MANY else self._ask(values, rows, dtype)

    def predict_one(self, values: Sequence[float]) -> float:
        """The sum over all trees for one row."""
        asked, borders, leaves, first_leaves = self._for_one
        index = np.packbits(np.array(values).take(asked) > borders)
        added = leaves.take(index + first_leaves)
        # Few are added up faster, and always were, one after the other.
        return self.bias + (float(np.add.reduce(added)) if len(added) > LARGE else sum(added.tolist()))

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
        trees, leaves = self.leaves.shape
        places = self._leaf_numbers(columns, rows) + np.arange(0, trees * leaves, leaves, dtype=np.intp)
        return np.asarray(self.bias + self.leaves.take(places).sum(axis=1, dtype=np.float64))

    def _ask(self, columns: Sequence[Array], rows: int, dtype: type) -> Array:
        """For many rows. What all rows answer alike is not asked, and trees with few questions left are joined."""
        features, borders, places = self._questions
        least, most = (np.array([end(column) for column in columns]) for end in (np.min, np.max))
        is_yes, may_be_yes = least[features] > borders, most[features] > borders
        firsts, patterns = (is_yes @ places).tolist(), ((is_yes ^ may_be_yes) @ places).tolist()
        index, answers = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.bool_)
        added: Array = np.empty(rows, dtype=dtype)
        total: Array = np.full(rows, self.bias, dtype=dtype)
        for asked, leaves in self._joined(firsts, patterns, dtype):
            index.fill(0)
            for tree, level in asked:
                np.greater(columns[features[tree, level]], borders[tree, level, ...], out=answers)
                np.add(index, index, out=index)
                np.bitwise_or(index, answers.view(np.uint8), out=index)
            np.take(leaves, index, out=added, mode="clip")
            total += added
        return total

    def _joined(
        self, firsts: list[int], patterns: list[int], dtype: type
    ) -> Iterator[tuple[list[tuple[int, int]], Array]]:
        """(tree, level) of up to 8 questions, and what each set of answers adds.

        ``firsts`` are the leaves of each tree where all that is asked is answered no, ``patterns`` which levels ask.
        """
        asked: list[tuple[int, int]] = []
        leaves: Array = np.zeros(1, dtype=dtype)
        for tree, (own, first, pattern) in enumerate(zip(self.leaves, firsts, patterns, strict=True)):
            levels, offsets = _asking(pattern)
            if len(asked) + len(levels) > 8:
                yield asked, leaves
                asked, leaves = [], np.zeros(1, dtype=dtype)
            asked.extend([(tree, level) for level in levels])
            leaves = np.add.outer(leaves, own.take(offsets + first)).ravel()
        yield asked, leaves

    @cached_property
    def _questions(self) -> tuple[Array, Array, Array]:
        """(trees, depth) the features and borders of all levels, and the bits that these answer."""
        features = self.features.astype(np.intp)
        counts = np.array([len(each) for each in self.borders])
        missing = np.full(1, np.inf, dtype=np.float32)
        places = np.where(self.bins < counts[features], (np.cumsum(counts) - counts)[features] + self.bins, -1)
        return features, np.concatenate([*self.borders, missing])[places], 1 << np.arange(features.shape[1])

    @cached_property
    def _for_one(self) -> tuple[Array, Array, Array, Array]:
        """What `predict_one` needs: features and borders of 8 levels a tree, highest bit first; where leaves start."""
        features, borders, _ = self._questions
        trees, leaves = self.leaves.shape
        missing = ((0, 0), (8 - features.shape[1], 0))
        asked = np.pad(features[:, ::-1], missing).ravel()
        above = np.pad(_rounding_to(borders[:, ::-1]), missing, constant_values=np.inf).ravel()
        return asked, above, self.leaves.ravel().astype(np.float64), np.arange(0, trees * leaves, leaves, dtype=np.intp)

    @cached_property
    def _tables(self) -> list[tuple[int, Array, Array]]:
        """For each feature that is used: its number, its borders, and the bits it sets between them.

        Bits are a byte a tree and come in words of eight.
        """
        trees, depth = self.features.shape
        features, values, _ = (each.ravel() for each in self._questions)
        # Questions by feature and border: each different one sets bits in a row, below an empty row a feature.
        order = np.lexsort((values, features))
        asked, borders = features[order], values[order]
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


@cache
def _asking(pattern: int) -> tuple[list[int], Array]:
    """The levels of the bits set in a number, highest first, and what their answers add to a leaf's number."""
    levels = [level for level in range(7, -1, -1) if pattern >> level & 1]
    offsets = np.zeros(1, dtype=np.intp)
    for level in levels:
        offsets = np.add.outer(offsets, [0, 1 << level]).ravel()
    return levels, offsets


def _rounding_to(borders: Array) -> Array:
    """The largest doubles that are still rounded to these single floats, and so are not above them."""
    # In doubles: half of the least float32, above a border at zero, would be none.
    half = 0.5 * np.spacing(np.where(np.isinf(borders), 0.0, np.abs(borders)).astype(np.float32)).astype(np.float64)
    return np.asarray(borders.astype(np.float64) + half)
