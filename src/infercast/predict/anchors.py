"""A minute of measuring on a new GPU: a few anchor points correct what was learned elsewhere.

What estimates miss is a Gaussian process: an offset, a multiplier of each physical term, a slope in what the pooled
learner says, and a smooth and a rougher function of the features. How much each varies and how far each feature reaches
(data/few_shot.json) was learned for all kernels of a family on A100, L40S and H200, each left out of what estimates it.
Anchors are chosen where the process expects to learn most about all other kernels; its own variance, scaled by how well
anchors predict each other, gives the interval.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import DATA
from infercast.predict.array_api import Array
from infercast.predict.families import FAMILIES
from infercast.predict.fitted import Forest

OTHERS = "others"  # Families whose variances were not learned
WIDTH = 8.0
"""For those, the distance, in standard deviations summed over features, at which an anchor says half as much."""
TAILS, DOUBTED, REWEIGHTED = 4.0, 3.0, 3
"""An odd anchor counts for less: degrees of freedom of Student's law, how many times the noise is assumed at first, and
how often weights are found anew."""
USUAL_WIDENING, NEAR_WIDENING, WORTH = 1.7, 1.1, 50
"""Half an 80 % interval in standard deviations of the process as it mostly is, the same where its architecture was
learned from, and how many anchors that is worth: a few agree with each other more than with other kernels."""


class Place(NamedTuple):
    near: tuple[Array, Array]  # Features by how far they reach, in the smooth function and in the rough one
    shares: Array  # Of each term in the time; they add up to 1 at most
    said: Array  # By the pooled learner


@lru_cache
def _variances() -> dict[str, dict[str, Any]]:
    """By family: of log latency, and by feature how much of the distance at which anchors matter one unit of it is."""
    found: dict[str, dict[str, Any]] = json.loads((DATA / "few_shot.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True, slots=True)
class Space:
    """Where kernels of a family lie, and how alike the misses of two of them are."""

    reach: tuple[Array, Array]
    terms: list[int]
    varies: dict[str, Any]
    learner: Forest | None

    @classmethod
    def of(cls, family: str, reference: Array, learner: Forest | None) -> Space:
        """``reference`` rows show how far features usually spread, where that was not learned of a family."""
        record, width = FAMILIES[family], reference.shape[1]
        names = next((each for each in record.features.values() if len(each) == width), ())
        varies = _variances().get(family, {}) if names == record.features[family] else {}
        columns = [names.index(f"{term}_share") for term in record.shares if f"{term}_share" in names]
        if varies:
            return cls((np.array(varies["smooth"]), np.array(varies["rough"])), columns, varies, learner)
        spread = reference.std(axis=0)
        reach = np.where(spread > 1e-6, 1.0 / np.maximum(spread, 1e-6), 0.0) / WIDTH
        return cls((reach, np.zeros(width)), columns, _variances()[OTHERS], learner)

    def place(self, features: Array) -> Place:
        shares = features[:, self.terms]
        # Some cores give a share as its base-two logarithm, which is never positive.
        shares = np.where(shares < 0.0, np.exp2(np.minimum(shares, 0.0)), np.minimum(shares, 1.0))
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        said = np.zeros(len(features)) if self.learner is None else self.learner.predict(features)
        return Place((features * self.reach[0], features * self.reach[1]), shares, said)

    def covariance(self, left: Place, right: Place) -> Array:
        """Of the misses of two sets of kernels before anything was measured."""
        of = self.varies
        alike = of["offset"] + of["belief"] * np.outer(left.said, right.said)
        alike = alike + left.shares * np.asarray(of["terms"]) @ right.shares.T
        for variance, ours, theirs in zip(of["functions"], left.near, right.near, strict=True):
            squared = np.square(ours).sum(axis=1)[:, None] + np.square(theirs).sum(axis=1) - 2.0 * ours @ theirs.T
            distance = np.sqrt(3.0 * np.maximum(squared, 0.0))
            alike = alike + variance * (1.0 + distance) * np.exp(-distance)
        return np.asarray(alike)

    def variance(self, place: Place) -> Array:
        of = self.varies
        terms = np.square(place.shares) @ np.broadcast_to(of["terms"], place.shares.shape[1:])
        return np.asarray(of["offset"] + sum(of["functions"]) + of["belief"] * np.square(place.said) + terms)


@dataclass(frozen=True, slots=True)
class Correction:
    space: Space
    anchors: Place
    weights: Array
    precision: Array  # Inverse covariance of the anchors' misses
    widening: float  # Half an 80 % interval, in standard deviations of the process
    is_swept: bool = False
    """Whether anchors were kernels by themselves, with cold operands, to which an engine adds what it does."""

    def __call__(self, features: Array) -> Array:
        """log(measured / predicted) to be expected, row by row."""
        return np.asarray(self.space.covariance(self.space.place(features), self.anchors) @ self.weights)

    def spread(self, features: Array) -> Array:
        """Half of the 80 % interval of log latency that is left, row by row."""
        place = self.space.place(features)
        near = self.space.covariance(place, self.anchors)
        known = np.einsum("ij,ij->i", near @ self.precision, near)
        left = np.maximum(self.space.variance(place) - known, 0.0) + self.space.varies["noise"]
        least_spread = 0.03
        return np.asarray(np.maximum(self.widening * np.sqrt(left), least_spread))


def learn(
    family: str, features: Array, misses: Array, reference: Array, learner: Forest | None = None, *, near: bool = False
) -> Correction:
    """From anchors' features and misses, log(measured / predicted) of the ``learner``; ``near``: it saw such chips."""
    space = Space.of(family, reference, learner)
    anchors = space.place(features)
    precision = _precision(space.covariance(anchors, anchors), misses, space.varies["noise"])
    weights = precision @ misses
    # In closed form: how far each anchor is from what the others say of it, in standard deviations.
    alone = np.abs(weights) / np.sqrt(np.diag(precision))
    usual = NEAR_WIDENING if near else USUAL_WIDENING
    widening = (misses.size * float(np.quantile(alone, 0.8)) + WORTH * usual) / (misses.size + WORTH)
    return Correction(space, anchors, weights, precision, widening)


def _precision(smooth: Array, misses: Array, usual: float) -> Array:
    """The inverse covariance of misses, with odd ones counting for less."""
    noise = np.full(misses.size, DOUBTED * usual)
    for _ in range(REWEIGHTED):
        missed = np.square(misses - smooth @ np.linalg.solve(smooth + np.diag(noise), misses))
        noise = np.maximum((TAILS * usual + missed) / (TAILS + 1.0), 0.8 * usual)
    return np.asarray(np.linalg.inv(smooth + np.diag(noise)))
