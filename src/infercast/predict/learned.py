"""Physics times a learned efficiency: t = t_physics * exp(r), with r from the best knowledge there is of the GPU.

Tiers, best first: *measured* (the GPU's own rows), *sibling* (a GPU of the same architecture), *unseen* (a model of
several GPUs, for one that nobody measured). A kernel without any model is estimated by its physics alone and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import is_modelled
from infercast.ops import Op
from infercast.ops.op import Quantity
from infercast.predict.adjust.mixed import join, padded_seconds, split_batch, together
from infercast.predict.adjust.ordering import at_most, ordering
from infercast.predict.adjust.typical import Typical
from infercast.predict.artifact.artifact import POOLED, Artifact
from infercast.predict.chooser import Chooser
from infercast.predict.estimate import Estimate
from infercast.predict.families import families_of, family_of
from infercast.predict.families.family import Family
from infercast.predict.identity import SWEEP
from infercast.predict.kernels import Kernels
from infercast.predict.products import Products
from infercast.predict.profile import KernelProfile

if TYPE_CHECKING:
    from infercast.predict.adjust.anchors import Correction

ESTIMATORS: dict[str, type[Kernels]] = {"gemm": Products}
"""Families that are asked for so often that they have an estimator of their own."""


class Learned:
    """Estimates operators with an artefact, falling back to what is typical where it has nothing to say."""

    is_cheap = False
    is_bound = False

    def __init__(
        self,
        artifact: Artifact,
        profile: KernelProfile,
        *,
        tier: str | None = None,
        as_tabled: bool = False,
        alone: bool = False,
        corrections: Mapping[tuple[str, str], Correction] | None = None,
    ) -> None:
        """``tier`` keeps better ones from being used: ``unseen`` takes a GPU as if it had never been measured.

        Kernels are as inside an engine. ``as_tabled`` takes them under the conditions of the tables they were learned
        from, ``alone`` with the cold operands of an engine but without what its other kernels cost them.
        ``corrections`` are what anchor points taught, by (family, variant); they hold for the GPU they came from.
        """
        self._artifact = artifact
        self._tier, self._as_tabled, self._is_alone = tier, as_tabled, alone
        self._alone: Learned | None = self if alone or as_tabled else None
        self._corrections = corrections or {}
        self._profile = profile
        self._fallback = Typical()
        self._chooser = Chooser(artifact, profile, tier=tier, as_tabled=as_tabled)
        self.choose = self._chooser.choose
        self._kinds: dict[object, Kernels] = {}
        self._ordering = ordering()
        self._bounded = {bound.kernels for bound in self._ordering.bounds}
        self._lessers: dict[object, tuple[Gpu, tuple[Gpu, float] | None]] = {}

    def describe(self, gpu: Gpu) -> str:
        """For people: what its estimates on this GPU rest on."""
        if not is_modelled(gpu):
            return self._fallback.describe(gpu)
        measured = {entry.gpu for entry in self._artifact.entries}
        for tier, names in self._chooser.known(gpu):
            found = [name for name in names if name in measured]
            if found and tier == "measured":
                return "physics times an efficiency learned from measured kernels of this GPU"
            if found and tier == "sibling":
                return self._unmeasured(f"borrowed from its sibling {found[0]}", gpu)
        return self._unmeasured(f"learned from {', '.join(sorted(measured - {POOLED}))}", gpu)

    def _unmeasured(self, origin: str, gpu: Gpu) -> str:
        """With how well its kernels are known from other chips."""
        from infercast.predict.knowledge import in_short, known_kernels  # noqa: PLC0415 - it asks a predictor itself

        known = in_short(known_kernels(gpu, self._artifact, self._profile))
        return f"physics times an efficiency {origin}; this GPU was not measured ({known})"

    @property
    def alone(self) -> Learned:
        """The same of kernels that run by themselves."""
        if self._alone is None:
            self._alone = Learned(
                self._artifact, self._profile, tier=self._tier, alone=True, corrections=self._corrections
            )
        return self._alone

    def estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of times. ``variants`` names the kernel, if known."""
        own, lesser = self._estimate(op, gpu, variants), self._lesser(op, gpu)
        return own if lesser is None else at_most(own, self._estimate(op, lesser[0], variants).seconds * lesser[1])

    def _estimate(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Estimate:
        if not is_modelled(gpu):
            return self._fallback.estimate(op, gpu)
        first, *second = [
            self._kernels(half, gpu, size, variants).estimate(half, size) for half, size in self._sized(op)
        ]
        return join(first, second[0], padded_seconds(split_batch(op)[1], gpu)) if second else first

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who ask by the thousand."""
        own, lesser = self._seconds(op, gpu), self._lesser(op, gpu)
        return own if lesser is None else np.minimum(own, self._seconds(op, lesser[0]) * lesser[1])

    def _seconds(self, op: Op, gpu: Gpu) -> Quantity:
        if not is_modelled(gpu):
            return self._fallback.seconds(op, gpu)
        first, *second = [self._kernels(half, gpu, size).seconds(half, size) for half, size in self._sized(op)]
        seconds: Quantity = (
            together(first, second[0], padded=padded_seconds(split_batch(op)[1], gpu)) if second else first
        )
        return seconds

    def _lesser(self, op: Op, gpu: Gpu) -> tuple[Gpu, float] | None:
        """The GPU of whose time a share bounds this one's; None for most, and for what a sweep of its own tells."""
        if gpu.kernels not in self._bounded or self._as_tabled:
            return None
        key = (id(gpu), op.family, getattr(op, "dtype", ""))
        if key not in self._lessers:
            choice, lesser = self.choose(op, gpu), self._ordering.lesser(op, gpu)
            own = choice is not None and choice.entry.engine == SWEEP and choice.known is None
            self._lessers[key] = gpu, None if own else lesser  # it holds the GPU, so that no other one takes its id
        return self._lessers[key][1]

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one estimate: seconds of each pipe, and the learned factor on their soft maximum."""
        prompts, decodes = split_batch(op)
        if decodes is not None:
            parts = {"prompts": self.explain(prompts, gpu), "decodes": self.explain(decodes, gpu)}
            return {f"{half} {name}": value for half, terms in parts.items() for name, value in terms.items()}
        if not is_modelled(gpu):
            return self._fallback.explain(op, gpu)
        family = family_of(op)
        return self._made(Kernels, family, op, gpu, None).explain(op, family.sizes(op))

    def _sized(self, op: Op) -> list[tuple[Op, Any]]:
        """An operator or its two halves, each with what a step decides of it: in plain floats if it is one kernel."""
        family = families_of(op)[0]
        size = None if self._corrections else family.size_of_one(op)
        if size is not None:
            return [(op, size)]
        prompts, decodes = family.split(op)
        return [(op, family.sizes(op))] if decodes is None else [*self._sized(prompts), *self._sized(decodes)]

    def _kernels(self, op: Op, gpu: Gpu, size: Any, variants: tuple[str, ...] | None = None) -> Kernels:
        """What estimates kernels of this kind on this GPU."""
        family = family_of(op, size)
        key = (id(gpu), family.name, *family.kind(op), variants)
        kernels = self._kinds.get(key)
        if kernels is None:
            make = Kernels if self._corrections else ESTIMATORS.get(family.name, Kernels)
            kernels = self._made(make, family, op, gpu, variants)
            self._kinds[key] = kernels  # it holds the GPU, so that no other one takes its id
        return kernels

    def _correction(self, family: Family, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Correction | None:
        """What anchor points taught of this kernel, whichever model stands for it."""
        named = variants or family.variants(op, gpu, self._profile)
        return next((found for each in named if (found := self._corrections.get((family.name, each)))), None)

    def _made(self, make: type[Kernels], family: Family, op: Op, gpu: Gpu, variants: tuple[str, ...] | None) -> Kernels:
        choice = self.choose(op, gpu, variants)
        correction = self._correction(family, op, gpu, variants) if self._corrections else None
        first = (variants or family.variants(op, gpu, self._profile) or ("",))[0]
        conditions: dict[str, Any] = {"engine": not self._as_tabled, "alone": self._is_alone}
        return make(family, op, gpu, choice, **conditions, correction=correction, first=first)
