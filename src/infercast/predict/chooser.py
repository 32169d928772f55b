"""Which model estimates a kind of operator on a GPU: one protocol of measuring at a time, the best tier within it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from infercast.hardware import Gpu, load_gpu
from infercast.hardware.kernels import by_kernels
from infercast.ops import Op
from infercast.predict.artifact.artifact import POOLED, Artifact
from infercast.predict.choice import Choice, borrowed
from infercast.predict.families import family_of
from infercast.predict.identity import SWEEP, any_kernel, is_same_kernel, is_written_by_engine
from infercast.predict.profile import KernelProfile


class Chooser:
    """Models of an artefact for an engine's kernels."""

    def __init__(self, artifact: Artifact, profile: KernelProfile, *, tier: str | None, as_tabled: bool) -> None:
        """``tier`` keeps better ones from being used; ``as_tabled`` leaves out what no table has."""
        self._artifact, self._profile, self._tier, self._as_tabled = artifact, profile, tier, as_tabled
        self._choices: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], Choice | None] = {}

    def choose(self, op: Op, gpu: Gpu, variants: tuple[str, ...] | None = None) -> Choice | None:
        """The best model for this kind of operator on this GPU; None where no measured kernel is like it."""
        family = family_of(op)
        if not family.is_measured(op, gpu):
            return None
        variants = variants or family.variants(op, gpu, self._profile)
        engines = self._profile.engines(op, gpu)
        key = (family.name, gpu.name, variants, engines)
        if key not in self._choices:
            self._choices[key] = next(self._candidates(family.name, gpu, variants, engines), None)
        return self._choices[key]

    def _candidates(
        self, family: str, gpu: Gpu, variants: tuple[str, ...], engines: tuple[str, ...]
    ) -> Iterator[Choice]:
        """Models that could serve, best first."""
        others = tuple(dict.fromkeys(filter(None, (any_kernel(family, each) for each in variants if each))))
        known = {entry.variant for entry in self._artifact.entries_of(family) if entry.family == family}
        if known.isdisjoint((*variants, *others)):
            return  # no GPU has one: none needs to be looked at
        # One protocol of measuring at a time: a sweep of a sibling comes before the GPU's own rows in published tables,
        # so that chips of one die are compared by one kind of measurement and differ by what physics says.
        swept = (SWEEP,) if SWEEP in engines and not self._as_tabled else ()
        for protocol in (swept, tuple(engine for engine in engines if engine != SWEEP)):
            for tier, names in self.known(gpu, family):
                for engine, variant, name in product(protocol, variants, names):
                    if tier == "unseen" and not self._is_borrowed(family, engine, variants[0], variant):
                        continue
                    if tier == "sibling" and self._profile.stands_alone(gpu.kernels, family, variant):
                        continue
                    found = self._artifact.find(family, name, engine, variant)
                    if found is None:
                        continue
                    yield borrowed(gpu, load_gpu(name), *found) if tier == "sibling" else Choice(tier, *found)
        for engine, variant in product((each for each in engines if each != SWEEP), others):
            # What was learned of other kernels is half believed, within a wider interval.
            if found := self._artifact.find(family, POOLED, engine, variant):
                yield Choice("unseen", *found)

    def _is_borrowed(self, family: str, engine: str, asked: str, variant: str) -> bool:
        """Whether a model is of the kernel that is asked for; each engine writes its own for Triton."""
        own = engine in (self._profile.engine, SWEEP) or not self._profile.engine
        return is_same_kernel(family, asked, variant) and (own or not is_written_by_engine(family, variant))

    def known(self, gpu: Gpu, family: str = "") -> Iterator[tuple[str, list[str]]]:
        """(tier, GPUs to borrow from), best tier first and nearest GPU first.

        Kernels that an engine's compiler writes are the same on every chip, so every measured one is a sibling.
        """
        if self._tier is None:
            yield "measured", [gpu.name]
        if self._tier in (None, "sibling"):
            entries = self._artifact.entries_of(family) if family else self._artifact.entries
            measured = sorted({entry.gpu for entry in entries} - {POOLED, gpu.name})
            same = by_kernels(self._profile.generations, gpu)
            everywhere = family in self._profile.everywhere
            relatives = [each for each in map(load_gpu, measured) if everywhere or each.kernels in same]
            relatives.sort(key=lambda other: abs(np.log(other.dram_bandwidth / gpu.dram_bandwidth)))
            yield "sibling", [other.name for other in relatives]
        yield "unseen", [POOLED]
