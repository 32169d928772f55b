"""A minute of measuring on a new GPU: a few anchor points correct what was learned elsewhere.

What the pooled model still misses on the new GPU is taken as a smooth function of the kernel's features: a Gaussian
process with fixed widths (tuning them on a few dozen points does more harm than good). Far from all anchors it falls
back to their mean miss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.predict.physics.terms import Array

SMOOTH = 0.03
"""Variance of log latency that varies with the shape."""
COMMON = 0.09
"""Variance of an offset that all kernels of the family share."""
NOISE = 0.01
WIDTH = 4.0
"""Distance, in standard deviations summed over features, beyond which one anchor says little of another kernel."""
CLIP = 0.6


@dataclass(frozen=True, slots=True)
class Correction:
    """What anchors teach about one family on one GPU."""

    middle: Array
    scale: Array
    points: Array
    weights: Array
    offset: float

    def __call__(self, features: Array) -> Array:
        """log(measured / predicted) to be expected, row by row."""
        near = _kernel((features - self.middle) / self.scale, self.points)
        return np.asarray(self.offset + near @ self.weights)


def learn(features: Array, misses: Array, reference: Array) -> Correction:
    """From anchors' features and misses; ``reference`` rows tell how far features usually spread."""
    middle, scale = reference.mean(axis=0), np.maximum(reference.std(axis=0), 1e-6)
    points = (features - middle) / scale
    offset = float(np.median(misses)) * COMMON / (COMMON + NOISE / misses.size)
    rest = np.clip(misses - offset, -CLIP, CLIP)
    gram = _kernel(points, points) + NOISE * np.eye(len(points))
    return Correction(middle, scale, points, np.linalg.solve(gram, rest), offset)


def spread_out(features: Array, count: int) -> Array:
    """Numbers of ``count`` rows that lie far from each other: each next one is the farthest from those chosen."""
    scaled = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-6)
    chosen = [int(np.argmin(np.square(scaled).sum(axis=1)))]
    distance = np.square(scaled - scaled[chosen[0]]).sum(axis=1)
    generator = np.random.default_rng(0)
    while len(chosen) < min(count, len(features)):
        # In proportion to the squared distance: the very farthest rows are often odd ones.
        chosen.append(int(generator.choice(len(features), p=distance / distance.sum())))
        distance = np.minimum(distance, np.square(scaled - scaled[chosen[-1]]).sum(axis=1))
    return np.array(chosen)


def _kernel(left: Array, right: Array) -> Array:
    squared = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1) - 2 * left @ right.T
    return np.asarray(SMOOTH * np.exp(-np.maximum(squared, 0.0) / (2 * WIDTH**2)))
