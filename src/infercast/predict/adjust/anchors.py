"""A minute of measuring on a new GPU: a few anchor points correct what was learned elsewhere.

What the pooled model still misses on the new GPU is a Gaussian process with four parts: an offset of the whole family;
a straight line in the share of the time that each pipe takes, which is what another launch floor, bandwidth or cost of
a thread block would do to first order; one in what the pooled learner says, which may deserve more or less belief; and
a rough function of the features for the rest. All variances are fixed: they were chosen on A100, L40S and H200, each
estimated by the others (tuning them on a few dozen points does more harm than good). Anchors are chosen where the
process, without seeing a latency, expects to learn most about all other kernels, and its own variance, scaled by how
well anchors predict each other, gives the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.predict.artifact.forest import Forest
from infercast.predict.families import FAMILIES
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES
from infercast.predict.physics.terms import Array

COMMON, PIPE, BELIEF, ROUGH, NOISE = 0.09, 0.15, 0.2, 0.06, 0.01
"""Variances of log latency: the offset, the slopes in a pipe's share and in what the learner says, the function of all
features, one measurement."""
WIDTH = 4.0
"""Distance, in standard deviations summed over features, at which one anchor says half as much of another kernel."""
FARTHEST = 4.0
"""Standard deviations from the mean beyond which a feature counts as no farther."""
TAILS, REWEIGHTED = 4.0, 4
"""An odd anchor counts for less: degrees of freedom of Student's law, and how often weights are found anew."""
CANDIDATES, JUDGES = 800, 1200
"""Rows that anchors are chosen from, and rows that they are chosen for."""
LEAST_SPREAD = 0.03


@dataclass(frozen=True, slots=True)
class Space:
    """Where kernels of a family lie: scaled features, and what the process is a straight line in."""

    middle: Array
    scale: Array
    pipes: list[int]
    learner: Forest | None

    @classmethod
    def of(cls, family: str, reference: Array, learner: Forest | None) -> Space:
        """``reference`` rows tell how far features usually spread; a constant one tells nothing."""
        names = FAMILIES[family].features[family]
        spread = reference.std(axis=0)
        # Tiles of one chip's kernels say nothing of how near two kernels are on another.
        spread[[position for position, name in enumerate(names) if name in SCHEDULE_FEATURES]] = 0.0
        columns = [names.index(f"{pipe}_share") for pipe in FAMILIES[family].shares]
        return cls(reference.mean(axis=0), np.where(spread > 1e-6, spread, np.inf), columns, learner)

    def place(self, features: Array) -> tuple[Array, Array]:
        """Scaled features of some rows; the shares of their pipes and what the learner says, in units of a slope."""
        shares = features[:, self.pipes]
        # Some cores tell a share as its base-two logarithm, which is never positive.
        shares = np.where(shares < 0.0, np.exp2(np.minimum(shares, 0.0)), np.minimum(shares, 1.0))
        slopes = np.sqrt(PIPE) * shares
        if self.learner is not None:
            slopes = np.column_stack([slopes, np.sqrt(BELIEF) * self.learner.predict(features)])
        return np.clip((features - self.middle) / self.scale, -FARTHEST, FARTHEST), slopes


Place = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Correction:
    """What anchors teach about one family on one GPU."""

    space: Space
    anchors: Place
    weights: Array
    precision: Array
    """Inverse covariance of the anchors' misses."""
    widening: float
    """Half an 80 % interval, in standard deviations of the process."""

    def __call__(self, features: Array) -> Array:
        """log(measured / predicted) to be expected, row by row."""
        return np.asarray(_covariance(self.space.place(features), self.anchors) @ self.weights)

    def spread(self, features: Array) -> Array:
        """Half of the 80 % interval of log latency that is left, row by row."""
        place = self.space.place(features)
        near = _covariance(place, self.anchors)
        known = np.einsum("ij,ij->i", near @ self.precision, near)
        left = np.maximum(_variance(place) - known, 0.0) + NOISE
        return np.asarray(np.maximum(self.widening * np.sqrt(left), LEAST_SPREAD))


def learn(family: str, features: Array, misses: Array, reference: Array, learner: Forest | None = None) -> Correction:
    """From anchors' features and misses, log(measured / predicted); ``learner`` is the one whose misses they are."""
    space = Space.of(family, reference, learner)
    anchors = space.place(features)
    smooth, noise = _covariance(anchors, anchors), np.full(misses.size, NOISE)
    for _ in range(REWEIGHTED):
        weights = np.linalg.solve(smooth + np.diag(noise), misses)
        missed = np.square(misses - smooth @ weights)
        noise = np.maximum((TAILS * NOISE + missed) / (TAILS + 1.0), 0.8 * NOISE)
    precision = np.linalg.inv(smooth + np.diag(noise))
    weights = precision @ misses
    # In closed form: how far each anchor is from what the others say of it, in standard deviations.
    alone = np.abs(weights) / np.sqrt(np.diag(precision))
    return Correction(space, anchors, weights, precision, float(np.quantile(alone, 0.8)))


def choose(family: str, features: Array, count: int, learner: Forest | None = None) -> Array:
    """Numbers of ``count`` rows to measure: each next one takes away most of the variance of all kernels."""
    generator = np.random.default_rng(0)
    eligible = FAMILIES[family].worth_measuring(features)
    candidates, judges = generator.permutation(eligible)[:CANDIDATES], generator.permutation(eligible)[:JUDGES]
    space = Space.of(family, features, learner)
    points, others = space.place(features[candidates]), space.place(features[judges])
    left, shared = _covariance(points, points), _covariance(others, points)
    chosen: list[int] = []
    for _ in range(min(count, len(candidates))):
        gain = np.square(shared).sum(axis=0) / (np.diag(left) + NOISE)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        column, of_others = left[:, best].copy(), shared[:, best].copy()
        total = left[best, best] + NOISE
        left -= np.outer(column, column) / total
        shared -= np.outer(of_others, column) / total
    return np.asarray(candidates[chosen])


def _covariance(left: Place, right: Place) -> Array:
    """Of the misses of two sets of kernels: offset, straight lines, and a Matern function of the features."""
    squared = np.square(left[0]).sum(axis=1)[:, None] + np.square(right[0]).sum(axis=1) - 2 * left[0] @ right[0].T
    distance = np.sqrt(3.0 * np.maximum(squared, 0.0)) / WIDTH
    return np.asarray(COMMON + left[1] @ right[1].T + ROUGH * (1.0 + distance) * np.exp(-distance))


def _variance(place: Place) -> Array:
    """The diagonal of the covariance of a set with itself."""
    return np.asarray(COMMON + ROUGH + np.square(place[1]).sum(axis=1))
