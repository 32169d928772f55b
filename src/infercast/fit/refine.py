"""More accuracy from the same trees: their leaves are fitted again, all other trees in place.

Boosting sets a tree's leaves before the next tree exists. Going round all trees a few more times, each leaf takes a
step towards the median of what is still missed in it. Nothing is paid for it when a kernel is estimated: sixty trees of
depth eight miss 4.4 % of hidden products instead of 4.5 %, where four hundred of depth six miss 4.3 %.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.predict.artifact.forest import Forest

Array = npt.NDArray[Any]

STEP = 0.2
BALLAST = 3.0
"""Rows with no miss that each leaf is thought to hold besides its own."""


def refine(forest: Forest, features: Array, target: Array, rounds: int) -> Forest:
    """The same trees with better leaves."""
    index = forest.leaf_numbers(features)
    leaves = forest.leaves.astype(np.float64)
    missed = target - forest.bias - leaves[np.arange(len(leaves)), index].sum(axis=1)
    for _ in range(rounds):
        for tree, chosen in enumerate(np.ascontiguousarray(index.T)):
            change = STEP * _medians(chosen, missed, leaves.shape[1])
            leaves[tree] += change
            missed -= change[chosen]
    return replace(forest, leaves=leaves.astype(np.float32))


def _medians(chosen: Array, values: Array, leaves: int) -> Array:
    """The median of the values in each leaf, smaller where they are few."""
    ordered = values[np.lexsort((values, chosen))]
    counts = np.bincount(chosen, minlength=leaves)
    starts = np.cumsum(counts) - counts
    last = max(values.size - 1, 0)
    middle = ordered[np.minimum(starts + (counts - 1) // 2, last)] + ordered[np.minimum(starts + counts // 2, last)]
    return np.asarray(0.5 * middle * counts / (counts + BALLAST))
