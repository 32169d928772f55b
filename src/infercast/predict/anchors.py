"""A minute of measuring on a new GPU: a few anchor points correct what was learned elsewhere.

Two things are found together from the anchors of one kernel: a multiplier of each physical term, by a few steps of
Newton's method, and a Gaussian process on what is left (an offset, a slope in what the pooled learner says, a rough
function of the features). All variances are fixed: they were chosen on A100, L40S and H200, each estimated by the
others. Anchors are chosen where the process expects to learn most about all other kernels; its own variance, scaled by
how well anchors predict each other, gives the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infercast.predict.array_api import Array
from infercast.predict.families import FAMILIES
from infercast.predict.families.attention_kernels import SCHEDULE_FEATURES
from infercast.predict.fitted import Forest

COMMON, PIPE, BELIEF, ROUGH, NOISE = 0.12, 0.24, 0.08, 0.2, 0.008
"""Variances of log latency: the offset, a term's multiplier, the slope in what the learner says, the function of all
features, one measurement."""
WIDTH = 8.0
"""Distance, in standard deviations summed over features, at which one anchor says half as much of another kernel."""
FILLS = 0.5
"""What a feature that says how full tiles and rounds are counts in that distance: there are many, and all alike."""
FARTHEST = 4.0  # Standard deviations from the mean beyond which a feature counts as no farther
TAILS, REWEIGHTED = 4.0, 3
"""An odd anchor counts for less: degrees of freedom of Student's law, and how often weights are found anew."""
STEPS, LONGEST_STEP = 4, 1.0  # Of Newton's method, and how far a multiplier's logarithm moves in one of them
CANDIDATES, JUDGES = 800, 1200  # Rows that anchors are chosen from, and rows that they are chosen for
LEAST_SPREAD = 0.03
USUAL_WIDENING, WORTH = 1.0, 12
"""Half an 80 % interval in standard deviations of the process as it mostly is, and how many anchors that is worth: a
few anchors agree with each other more than with other kernels."""


class Place(NamedTuple):
    near: Array  # Scaled features, one row a kernel
    shares: Array  # Of each term in the time; they add up to 1 at most
    said: Array  # By the pooled learner


@dataclass(frozen=True, slots=True)
class Space:
    """Where kernels of a family lie: scaled features, shares of terms, and what a learner says."""

    middle: Array
    scale: Array
    terms: list[int]
    learner: Forest | None

    @classmethod
    def of(cls, family: str, reference: Array, learner: Forest | None) -> Space:
        """``reference`` rows show how far features usually spread; a constant feature carries no information."""
        names = FAMILIES[family].features[family]
        spread = reference.std(axis=0)
        # Tiles of one chip's kernels say nothing of how near two kernels are on another.
        spread[[position for position, name in enumerate(names) if name in SCHEDULE_FEATURES]] = 0.0
        spread[[position for position, name in enumerate(names) if "fill" in name]] /= FILLS
        columns = [names.index(f"{term}_share") for term in FAMILIES[family].shares]
        return cls(reference.mean(axis=0), np.where(spread > 1e-6, spread, np.inf), columns, learner)

    def place(self, features: Array) -> Place:
        shares = features[:, self.terms]
        # Some cores give a share as its base-two logarithm, which is never positive.
        shares = np.where(shares < 0.0, np.exp2(np.minimum(shares, 0.0)), np.minimum(shares, 1.0))
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        said = np.zeros(len(features)) if self.learner is None else self.learner.predict(features)
        scaled = np.clip((features - self.middle) / self.scale, -FARTHEST, FARTHEST)
        return Place(scaled, shares, said)


class Terms(NamedTuple):
    logs: Array

    def factor(self, shares: Array) -> Array:
        """log(time with the multipliers / time without), row by row."""
        return np.asarray(np.log(self._total(shares)))

    def slopes(self, shares: Array) -> Array:
        """By how much that grows with each logarithm: the shares as they are by now."""
        return np.asarray(shares * np.exp(self.logs) / self._total(shares)[:, None])

    def _total(self, shares: Array) -> Array:
        return np.asarray(np.maximum(1.0 - shares.sum(axis=1), 1e-9) + shares @ np.exp(self.logs))


@dataclass(frozen=True, slots=True)
class Correction:
    space: Space
    anchors: Place
    terms: Terms
    weights: Array
    precision: Array  # Inverse covariance of the anchors' misses
    widening: float  # Half an 80 % interval, in standard deviations of the process
    is_swept: bool = False
    """Whether anchors were kernels by themselves, with cold operands, to which an engine adds what it does."""

    def __call__(self, features: Array) -> Array:
        """log(measured / predicted) to be expected, row by row."""
        place = self.space.place(features)
        return np.asarray(self.terms.factor(place.shares) + _rest(place, self.anchors) @ self.weights)

    def spread(self, features: Array) -> Array:
        """Half of the 80 % interval of log latency that is left, row by row."""
        place = self.space.place(features)
        slopes, theirs = (self.terms.slopes(each.shares) for each in (place, self.anchors))
        near = _rest(place, self.anchors) + PIPE * slopes @ theirs.T
        whole = COMMON + ROUGH + BELIEF * np.square(place.said) + PIPE * np.square(slopes).sum(axis=1)
        left = np.maximum(whole - np.einsum("ij,ij->i", near @ self.precision, near), 0.0) + NOISE
        return np.asarray(np.maximum(self.widening * np.sqrt(left), LEAST_SPREAD))


def learn(family: str, features: Array, misses: Array, reference: Array, learner: Forest | None = None) -> Correction:
    """From anchors' features and misses, log(measured / predicted) of the ``learner``."""
    space = Space.of(family, reference, learner)
    anchors = space.place(features)
    rest, terms = _rest(anchors, anchors), Terms(np.zeros(anchors.shares.shape[1]))
    for _ in range(STEPS):
        slopes = terms.slopes(anchors.shares)
        linear = misses - terms.factor(anchors.shares) + slopes @ terms.logs
        precision = _precision(rest + PIPE * slopes @ slopes.T, linear)
        weights = precision @ linear
        moved = np.clip(PIPE * slopes.T @ weights - terms.logs, -LONGEST_STEP, LONGEST_STEP)
        terms = Terms(terms.logs + moved)
    # In closed form: how far each anchor is from what the others say of it, in standard deviations.
    alone = np.abs(weights) / np.sqrt(np.diag(precision))
    widening = (misses.size * float(np.quantile(alone, 0.8)) + WORTH * USUAL_WIDENING) / (misses.size + WORTH)
    return Correction(space, anchors, terms, weights, precision, widening)


def _precision(smooth: Array, misses: Array) -> Array:
    """The inverse covariance of misses, with odd ones counting for less."""
    noise = np.full(misses.size, NOISE)
    for _ in range(REWEIGHTED):
        missed = np.square(misses - smooth @ np.linalg.solve(smooth + np.diag(noise), misses))
        noise = np.maximum((TAILS * NOISE + missed) / (TAILS + 1.0), 0.8 * NOISE)
    return np.asarray(np.linalg.inv(smooth + np.diag(noise)))


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
    """Of the misses of two sets of kernels before anything was measured."""
    return np.asarray(_rest(left, right) + PIPE * left.shares @ right.shares.T)


def _rest(left: Place, right: Place) -> Array:
    """The same of what no term explains: an offset, the learner's slope, and a Matern function of the features."""
    squared = np.square(left.near).sum(axis=1)[:, None] + np.square(right.near).sum(axis=1)
    distance = np.sqrt(3.0 * np.maximum(squared - 2 * left.near @ right.near.T, 0.0)) / WIDTH
    smooth = ROUGH * (1.0 + distance) * np.exp(-distance)
    return np.asarray(COMMON + BELIEF * np.outer(left.said, right.said) + smooth)
