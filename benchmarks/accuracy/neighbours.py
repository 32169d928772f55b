"""Nearest shapes: what they missed the roofline by, averaged."""

import numpy as np
from scipy.spatial import KDTree  # comes with CatBoost

from points import Array, Kernel, Points
from sources import nearest_rows
from splits import ByGpu

NEIGHBOURS = 4
SAME = 1e-3
"""Octaves within which two shapes are one."""


class Neighbours:
    """measured / roofline of the nearest shapes on the nearest known GPU, times the roofline of the row in question."""

    def __init__(self, known: ByGpu, family: str) -> None:
        del family
        self._known = known
        self._trees: dict[tuple[Kernel, str], tuple[KDTree, Array]] = {}

    def seconds(self, kernel: Kernel, rows: Points, gpu: str) -> Array:
        if (kernel, gpu) not in self._trees:
            _, source = nearest_rows(self._known, kernel, gpu)
            self._trees[kernel, gpu] = KDTree(source.shape), np.log(source.seconds / source.wave)
        tree, missed = self._trees[kernel, gpu]
        away, index = tree.query(rows.shape, k=min(NEIGHBOURS, len(missed)))
        away, index = away.reshape(len(rows.shape), -1), index.reshape(len(rows.shape), -1)
        weight = 1.0 / (away + SAME)
        return np.asarray(rows.wave * np.exp((weight * missed[index]).sum(axis=1) / weight.sum(axis=1)))
