"""Physics times a learned efficiency: t = t_physics * exp(r), with r from the best knowledge there is of the GPU.

Tiers, best first: *measured* (the GPU's own rows), *sibling* (a GPU of the same architecture), *unseen* (a model of
several GPUs, for one that nobody measured). A kernel without any model is priced by its physics alone and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import is_modelled
from infercast.ops import Gemm, Op
from infercast.ops.op import Quantity
from infercast.predict.adjust.mixed import join, split_batch, together
from infercast.predict.adjust.ordering import at_most, ordering
from infercast.predict.adjust.typical import Typical
from infercast.predict.artifact.artifact import POOLED, Artifact
from infercast.predict.choice import Choice
from infercast.predict.chooser import Chooser
from infercast.predict.estimate import Estimate
from infercast.predict.families import family_of
from infercast.predict.families.family import Compute, Family
from infercast.predict.identity import SWEEP
from infercast.predict.limits import at_least
from infercast.predict.physics.attention_kernels import Single
from infercast.predict.physics.terms import Array, Physics
from infercast.predict.pricer import GemmPricer
from infercast.predict.profile import KernelProfile
from infercast.predict.single import SinglePricer, kind_of, size_of_one

if TYPE_CHECKING:
    from infercast.predict.adjust.anchors import Correction


class Learned:
    """Prices operators with an artefact, falling back to what is typical where it has nothing to say."""

    is_cheap = False
    is_bound = False

    def __init__(
        self,
        artifact: Artifact,
        profile: KernelProfile,
        *,
        tier: str | None = None,
        as_tabled: bool = False,
        corrections: Mapping[tuple[str, str], Correction] | None = None,
    ) -> None:
        """``tier`` keeps better ones from being used: ``unseen`` prices a GPU as if it had never been measured.

        ``as_tabled`` prices kernels under the conditions of the tables they were learned from, not of an engine.
        ``corrections`` are what anchor points taught, by (family, variant); they hold for the GPU they came from.
        """
        self._artifact = artifact
        self._as_tabled = as_tabled
        self._corrections = corrections or {}
        self._fallback = Typical()
        self._chooser = Chooser(artifact, profile, tier=tier, as_tabled=as_tabled)
        self.choose = self._chooser.choose
        self._pricers: dict[object, GemmPricer] = {}
        self._singles: dict[object, SinglePricer] = {}
        self._ordering = ordering()
        self._bounded = {bound.kernels for bound in self._ordering.bounds}
        self._lessers: dict[object, tuple[Gpu, tuple[Gpu, float] | None]] = {}

    def describe(self, gpu: Gpu) -> str:
        """For people: what its prices on this GPU rest on."""
        if not is_modelled(gpu):
            return self._fallback.describe(gpu)
        measured = {entry.gpu for entry in self._artifact.entries}
        for tier, names in self._chooser.known(gpu):
            found = [name for name in names if name in measured]
            if found and tier == "measured":
                return "physics times an efficiency learned from measured kernels of this GPU"
            if found and tier == "sibling":
                return f"physics times an efficiency borrowed from its sibling {found[0]}; this GPU was not measured"
        others = ", ".join(sorted(measured - {POOLED}))
        return f"physics times an efficiency learned from {others}; this GPU was not measured"

    def estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of prices. ``variants`` names the kernel, if known."""
        own, lesser = self._estimate(op, gpu, variants), self._lesser(op, gpu)
        return own if lesser is None else at_most(own, self._estimate(op, lesser[0], variants).seconds * lesser[1])

    def _estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Estimate:
        if not is_modelled(gpu):
            return self._fallback.estimate(op, gpu)
        if isinstance(op, Gemm) and not self._corrections:
            return self._pricer(op, gpu, variants).price(op)
        size = self._size_of_one(op)
        if size is not None:
            return self._single(op, gpu, size, variants).price(op, size)
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return join(self._estimate(prompts, gpu, None), self._estimate(decodes, gpu, None))
        choice = self.choose(op, gpu, variants)
        physics, factor = self._apply(choice, op, gpu)
        family = family_of(op)
        tier, (low, high) = "physics", (np.full(1, end) for end in family.interval)
        if choice is not None:
            tier, (low, high) = choice.tier, (np.full(1, end) for end in choice.interval)
            correction = self._corrections.get((choice.entry.family, choice.entry.variant))
            if correction is not None:
                tier, high = "few-shot", correction.spread(physics.features)
                low = -high
        if servers := family.servers(op, gpu):
            compute = self._compute(family, choice)
            others = [np.log(compute(op, each).seconds / physics.seconds) for each in servers]
            low, high = np.minimum(low, np.min(others, axis=0)), np.maximum(high, np.max(others, axis=0))
        seconds = at_least(op, gpu, self._in_engine(choice, physics.seconds * factor), cold=not self._as_tabled)
        bound, low, high = _bound(physics), seconds * np.exp(low), seconds * np.exp(high)
        if seconds.size == 1:
            return Estimate(float(seconds[0]), float(low[0]), float(high[0]), tier, str(bound[0]))
        return Estimate(seconds, low, high, tier, bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who price by the thousand."""
        own, lesser = self._seconds(op, gpu), self._lesser(op, gpu)
        return own if lesser is None else np.minimum(own, self._seconds(op, lesser[0]) * lesser[1])

    def _seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if not is_modelled(gpu):
            return self._fallback.seconds(op, gpu)
        if isinstance(op, Gemm) and not self._corrections:
            return self._pricer(op, gpu).seconds(op)
        size = self._size_of_one(op)
        if size is not None:
            return np.array([self._single(op, gpu, size).seconds(op, size)])
        prompts, decodes = split_batch(op)
        if decodes is not None:
            return np.asarray(together(self._seconds(prompts, gpu), self._seconds(decodes, gpu)))
        choice = self.choose(op, gpu)
        physics, factor = self._apply(choice, op, gpu)
        return at_least(op, gpu, self._in_engine(choice, physics.seconds * factor), cold=not self._as_tabled)

    def _lesser(self, op: Op, gpu: Gpu) -> tuple[Gpu, float] | None:
        """The GPU of whose price a share bounds this one's; None for most, and for what a sweep of its own tells."""
        if gpu.kernels not in self._bounded or self._as_tabled:
            return None
        key = (id(gpu), op.family, getattr(op, "dtype", ""))
        if key not in self._lessers:
            choice, lesser = self.choose(op, gpu), self._ordering.lesser(op, gpu)
            own = choice is not None and choice.entry.engine == SWEEP and choice.known is None
            self._lessers[key] = gpu, None if own else lesser  # it holds the GPU, so that no other one takes its id
        return self._lessers[key][1]

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one price: seconds of each pipe, and the learned factor on their soft maximum."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            parts = {"prompts": self.explain(prompts, gpu), "decodes": self.explain(decodes, gpu)}
            return {f"{half} {name}": value for half, terms in parts.items() for name, value in terms.items()}
        if not is_modelled(gpu):
            return self._fallback.explain(op, gpu)
        physics, factor = self._apply(self.choose(op, gpu), op, gpu)
        terms = {name: float(np.ravel(value)[0]) for name, value in physics.terms.items()}
        return {**terms, "learned factor": float(factor[0])}

    def _in_engine(self, choice: Choice | None, seconds: Array) -> Array:
        """What a kernel takes between others, where its price is of the kernel alone."""
        if choice is None or self._as_tabled:
            return seconds
        factor, added = choice.in_engine
        return seconds * factor + added

    def _apply(self, choice: Choice | None, op: Op, gpu: Gpu) -> tuple[Physics, Array]:
        """The physics of an operator, and what was learned to multiply it by."""
        family = family_of(op)
        compute = self._compute(family, choice)
        physics = compute(op, gpu)
        if choice is None:
            return physics, np.ones(1)
        correction = self._corrections.get((family.name, choice.entry.variant))
        learned = 0.0 if correction is None else correction(physics.features)
        if choice.known is None:
            return physics, np.exp(choice.residual(physics) + learned)
        # A sibling answers for the same shape on itself; physics says how the two chips differ.
        known = compute(op, choice.known)
        difference = choice.on_sibling(physics.seconds, known.seconds) * known.seconds / physics.seconds
        return physics, difference * np.exp(choice.residual(known) + learned)

    def _compute(self, family: Family, choice: Choice | None) -> Compute:
        """Physics under the conditions that a model was learned in."""
        if choice is not None and choice.entry.engine == SWEEP:
            return family.in_sweep
        return family.tabled if self._as_tabled else family.in_engine

    def _pricer(self, op: Gemm, gpu: Gpu, variants: tuple[str, ...] | None = None) -> GemmPricer:
        """What prices products of this format on this GPU."""
        key = (id(gpu), op.dtype, op.weight_dtype, op.out_dtype, op.batch, variants)
        pricer = self._pricers.get(key)
        if pricer is None:
            pricer = GemmPricer(op, gpu, self.choose(op, gpu, variants), engine=not self._as_tabled)
            self._pricers[key] = pricer  # it holds the GPU, so that no other one takes its id
        return pricer

    def _size_of_one(self, op: Op) -> Single | float | None:
        """The size of a kernel that is priced in plain floats."""
        return None if self._corrections else size_of_one(op)

    def _single(self, op: Op, gpu: Gpu, size: Single | float, variants: tuple[str, ...] | None = None) -> SinglePricer:
        """What prices one kernel of this kind on this GPU."""
        key = (id(gpu), *kind_of(op, size), variants)
        pricer = self._singles.get(key)
        if pricer is None:
            pricer = SinglePricer(op, gpu, self.choose(op, gpu, variants), engine=not self._as_tabled)
            self._singles[key] = pricer  # it holds the GPU, so that no other one takes its id
        return pricer


def _bound(physics: Physics) -> Array:
    """The largest term of each price."""
    names = np.array([*physics.terms])
    return np.asarray(names[np.argmax(np.stack(np.broadcast_arrays(*physics.terms.values())), axis=0)])
