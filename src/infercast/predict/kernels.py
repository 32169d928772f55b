"""Kernels of one kind on one GPU: physics times the efficiency of the chosen model, within hardware limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from math import exp, inf
from typing import Any, TypeVar

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.hardware.gpu import ratio_bounds
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.ops import Op
from infercast.predict.array_api import Array, Arrays, Kit, Number, Physics, Plain, kit_of
from infercast.predict.estimate import Estimate
from infercast.predict.families import FAMILIES
from infercast.predict.families.family import Core, Family
from infercast.predict.fitted import Entry, Forest
from infercast.predict.identity import ANY, SWEEP
from infercast.predict.roofline import Floor

# A minute of measuring on a new GPU: a few anchor points correct what was learned elsewhere.
#
# What estimates miss is a Gaussian process: an offset, a multiplier of each physical term, a slope in what the pooled
# learner says, and a smooth and a rougher function of the features. How much each varies and how far each feature
# reaches (data/few_shot.json) was learned for all kernels of a family on A100, L40S and H200, each left out of what
# estimates it. Anchors are chosen where the process expects to learn most about all other kernels; its own variance,
# scaled by how well anchors predict each other, gives the interval.

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
    noise = np.full(misses.size, DOUBTED * usual)
    for _ in range(REWEIGHTED):
        missed = np.square(misses - smooth @ np.linalg.solve(smooth + np.diag(noise), misses))
        noise = np.maximum((TAILS * usual + missed) / (TAILS + 1.0), 0.8 * usual)
    return np.asarray(np.linalg.inv(smooth + np.diag(noise)))


# Very many shapes at once.

MANY = 4096  # Shapes from which on it is worth while
PART = 16_384  # Shapes at once


def are_many(size: Any) -> bool:
    lengths = size[0] if isinstance(size, tuple) else getattr(size, "keys", size)
    return isinstance(lengths, np.ndarray) and lengths.size >= MANY and len(lengths) > 1


def parts_of(op: Any, names: Sequence[str]) -> tuple[list[Op], Array | None]:
    """Operators of some shapes each, which differ in these fields, and which of them each shape is; None: in order."""
    names = [each.name for each in fields(op) if each.name in names or isinstance(getattr(op, each.name), np.ndarray)]
    sizes, which = _distinct(np.broadcast_arrays(*(np.asarray(getattr(op, name)) for name in names)))
    starts = range(0, len(sizes[0]), PART)
    parts = [[size[start : start + PART] for size in sizes] for start in starts]
    return [replace(op, **dict(zip(names, part, strict=True))) for part in parts], which


def joined(parts: Sequence[Estimate]) -> Estimate:
    arrays = ([np.ravel(getattr(part, name)) for part in parts] for name in ("seconds", "low", "high", "bound"))
    seconds, low, high, bound = map(np.concatenate, arrays)
    return Estimate(seconds, low, high, parts[0].source, bound)


def _distinct(sizes: Sequence[Array]) -> tuple[Sequence[Array], Array | None]:
    """The different shapes of many, in rising order (near shapes share most answers of a forest), and which each is."""
    if sizes[0].ndim > 2 or sizes[0].size != len(sizes[0]):
        return sizes, None
    spans = [int(size.max()) + 1 for size in sizes]
    if not all(np.issubdtype(size.dtype, np.integer) for size in sizes) or np.prod(spans, dtype=float) > 2.0**62:
        return sizes, None
    codes = np.ravel_multi_index([size.ravel() for size in sizes], spans)
    if np.all(codes[1:] > codes[:-1]):
        return sizes, None
    codes, which = np.unique(codes, return_inverse=True)
    shape = (-1, *sizes[0].shape[1:])
    return [size.reshape(shape) for size in np.unravel_index(codes, spans)], which


SIBLING_WIDENING, NOT_WIDER = 1.3, ("attention_prefill",)
"""How much wider a sibling's interval is, and families that keep theirs on the same die: H100's rows by H200's models
fall into their own 62 to 71 % of the time, prompts 83 to 85 %."""
Value = TypeVar("Value")


def _by_variant(values: Mapping[str, Value], variant: str, otherwise: Value) -> Value:
    return values.get(variant, values.get("", otherwise))


def is_same_die(gpu: Gpu, other: Gpu) -> bool:
    """Whether two GPUs multiply alike, whatever memory and links they have."""
    return (gpu.kernels, gpu.sms) == (other.kernels, other.sms) and gpu.tensor_flops == other.tensor_flops


def trust_in(entry: Entry, *, same_die: bool) -> float:
    """How far the ratio of physics between two chips is believed for a model's kernels, as its exponent."""
    if entry.engine == SWEEP or not same_die:
        return 1.0
    return _by_variant(FAMILIES[entry.family].trust, entry.variant, 1.0)


def base_seconds(family: str, engine: str, physics: Physics) -> Number:
    """What a model's answer is a factor of: for attention of a sweep what its kernel's schedule takes, else physics."""
    scheduled = FAMILIES[family].scheduled
    if engine != SWEEP or scheduled is None:
        return physics.seconds
    return scheduled_seconds(physics.features, scheduled, Arrays)


def scheduled_seconds(features: Number, scheduled: int, x: Kit) -> Number:
    """What a kernel's own schedule takes, by the feature that holds it."""
    return 1e-6 * x.exp2(features[scheduled] if x is Plain else features[:, scheduled])


def between_kernels(family: Family, variant: str) -> tuple[float, float]:
    return _by_variant(family.between_kernels, variant, (1.0, 0.0))


class ModelChoice(NamedTuple):
    """The model that estimates a kind of operator, and by which tier it was found."""

    tier: str
    entry: Entry
    forest: Forest
    known: Gpu | None = None  # The GPU that a sibling's model was fitted on
    is_same_die: bool = False
    """Whether it multiplies as fast as the GPU that is asked for: the two differ in memory and links alone."""
    bounds: tuple[float, float] = (0.0, inf)
    """Between what the ratio of the two chips' times can lie: physics may choose other tiles and overshoot."""

    @property
    def is_new_kernel(self) -> bool:
        """Whether this kernel was measured on no chip, so that others stand for it."""
        return self.entry.variant.rpartition("/")[2] == ANY

    @property
    def interval(self) -> tuple[float, float]:
        """Logarithms of the ends of the 80 % interval; borrowed knowledge is worth less than one's own."""
        is_own = self.known is None or (self.is_same_die and self.entry.family in NOT_WIDER)
        wider = 1.0 if is_own else SIBLING_WIDENING
        return wider * self.entry.low, wider * self.entry.high

    def is_near(self, gpu: Gpu) -> bool:
        """Whether it was learned from GPUs of this one's architecture."""
        return gpu.kernels in self.entry.near or (self.known is not None and self.known.kernels == gpu.kernels)

    @property
    def trust(self) -> float:
        return trust_in(self.entry, same_die=self.is_same_die)


def borrowed(gpu: Gpu, known: Gpu, entry: Entry, forest: Forest) -> ModelChoice:
    bounds = ratio_bounds(gpu, known) if FAMILIES[entry.family].is_chip_bound else (0.0, inf)
    return ModelChoice("sibling", entry, forest, known, is_same_die(gpu, known), bounds)


WARM_BELIEF = 6.0  # Power of the share of an engine's time that a table's physics takes, which its residual counts by


class KernelModel:
    """Estimates kernels of one kind on one GPU: seconds = physics x exp(residual) x longer + added. ``longer`` and
    ``added`` are what other kernels of an engine cost. A sibling's model answers for the same shape on the sibling, and
    physics says how the two chips differ.
    """

    def __init__(
        self, family: Family, op: Op, gpu: Gpu, choice: ModelChoice | None, *, engine: bool, alone: bool = False,
        correction: Correction | None = None, first: str = "",
    ) -> None:  # fmt: skip
        """``engine``: as in an engine, not as in a table; ``alone``: with its operands, but no other kernel around.
        ``first``: the variant that was asked for, which physics is of where no model of a kernel was found.
        """
        self._family, self._gpu, self._correction = family, gpu, correction
        self._engine = engine and not (alone and family.waits_in_engine)
        self._source, (low, high) = "physics", family.interval
        self._longer, self._added, self._make = 1.0, 0.0, family.core
        self._known: Gpu | None = None
        self._forest: Forest | None = None
        if choice is not None:
            self._source, (low, high) = choice.tier, choice.interval
            self._known, self._trust, (self._least, self._most) = choice.known, choice.trust, choice.bounds
            self._forest, self._offset, self._shrink = choice.forest, choice.entry.offset, choice.entry.shrink
            if engine and not alone and choice.entry.engine == SWEEP:  # published tables carry a launch instead
                self._longer, self._added = between_kernels(family, choice.entry.variant)
            if choice.entry.engine == SWEEP and family.swept_core is not None:
                self._make = family.swept_core
            if not choice.is_new_kernel:
                first = choice.entry.variant
            if family.timed_by is not None:
                self._make = _naming(family.timed_by, choice.entry.engine, self._make)
        if correction is not None:
            self._source = "few-shot"
            if correction.is_swept and engine and not alone:
                self._longer, self._added = between_kernels(family, first if choice is None else choice.entry.variant)
        if family.named is not None and first:
            self._make = _naming(family.named, first, self._make)
        self._is_tabled = choice is not None and choice.entry.engine != SWEEP
        self._base = None if choice is None or choice.entry.engine != SWEEP else family.scheduled
        self._low, self._high = exp(low), exp(high)
        self._at_least, self._servers = Floor(op, gpu, cold=engine), family.servers(op, gpu)
        self._cores: dict[str, tuple[object, Core]] = {}

    def estimate(self, op: Op, size: Any) -> Estimate:
        """One launch of each; ``size`` is what a step decides, of one kernel or of many."""
        if are_many(size):
            parts, which = parts_of(op, self._family.step_sizes)
            whole = joined([self.like(part, self._family.sizes(part)) for part in parts])
            return whole if which is None else whole.taken(which)
        return self.like(op, size)

    def like(self, op: Op, size: Any, condition: str = "") -> Estimate:
        physics = self._physics(op, self._gpu, size)
        seconds = self._at_least(op, size, self._learned(op, size, physics))
        low, high = self._interval(op, size, physics)
        low, high, bound = seconds * low, seconds * high, _bound(physics.terms)
        if isinstance(seconds, np.ndarray) and seconds.size == 1:
            return Estimate(float(seconds[0]), float(low[0]), float(high[0]), self._source, str(bound[0]))
        return Estimate(seconds, low, high, self._source, bound, condition)

    def seconds(self, op: Op, size: Any) -> Number:
        if are_many(size):
            parts, which = parts_of(op, self._family.step_sizes)
            whole = np.concatenate([self._seconds(part, self._family.sizes(part)) for part in parts])
            return whole if which is None else whole[which]
        return self._seconds(op, size)

    def _seconds(self, op: Op, size: Any) -> Number:
        return self._at_least(op, size, self._learned(op, size, self._physics(op, self._gpu, size)))

    def explain(self, op: Op, size: Any) -> dict[str, float]:
        """The terms of the first, and what their soft maximum is multiplied by."""
        physics = self._physics(op, self._gpu, size)
        factor = (self._learned(op, size, physics) - self._added) / self._longer / physics.seconds
        return {name: float(np.ravel(value)[0]) for name, value in (physics.terms | {"learned factor": factor}).items()}

    def _learned(self, op: Op, size: Any, physics: Physics) -> Number:
        if self._forest is None:
            factor = 1.0 if self._correction is None else np.exp(self._correction(physics.features))
            return physics.seconds * factor * self._longer + self._added
        known = physics if self._known is None else self._physics(op, self._known, size)
        x, features = kit_of(known.seconds), known.features
        said = self._forest.predict_one(features) if x is Plain else self._forest.predict(features)
        residual = self._offset + self._shrink * said
        if known.warm is not None and self._is_tabled:
            residual = x.larger(residual * known.warm**WARM_BELIEF, residual + x.log(known.warm))
        if self._base is not None:
            residual = residual + x.log(scheduled_seconds(features, self._base, x) / known.seconds)
        if self._correction is not None:
            residual = residual + self._correction(physics.features)
        return self._combined(physics.seconds, None if self._known is None else known.seconds, residual)

    def _combined(self, here: Number, known: Number | None, residual: Number) -> Number:
        """Physics here and, where the model is a sibling's, there; what the model says; what an engine adds."""
        x = kit_of(here)
        if known is not None:
            here = known * x.clip((here / known) ** self._trust, self._least, self._most)
        return here * x.exp(residual) * self._longer + self._added

    def _interval(self, op: Op, size: Any, physics: Physics) -> tuple[Number, Number]:
        low: Number = self._low
        high: Number = self._high
        if self._correction is not None:
            high = np.exp(self._correction.spread(physics.features))
            low = 1.0 / high
        for server in self._servers:
            x, ratio = kit_of(physics.seconds), self._physics(op, server, size).seconds / physics.seconds
            low, high = x.smaller(low, ratio), x.larger(high, ratio)
        return low, high

    def _physics(self, op: Op, gpu: Gpu, size: Any) -> Physics:
        """Successive kernels mostly differ in what a step decides, so the last core is kept."""
        key = self._family.core_key(op)
        known, core = self._cores.get(gpu.name, (None, None))
        if core is None or core.gpu is not gpu or key is None or known != key:
            core = self._make(op, gpu)
            self._cores[gpu.name] = key, core
        return core.physics(size, engine=self._engine)


def _naming(named: Callable[[Any, str], Any], by: str, make: Callable[[Any, Gpu], Core]) -> Callable[..., Core]:
    """Physics of the kernel that a model was learned of, or as it was timed there."""
    return lambda op, gpu: make(named(op, by), gpu)


def _bound(terms: dict[str, Number]) -> Any:
    if not isinstance(next(iter(terms.values())), np.ndarray):
        return max(terms, key=terms.__getitem__)
    return np.array([*terms])[np.argmax(np.stack(np.broadcast_arrays(*terms.values())), axis=0)]
