"""Kernels of one kind on one GPU: physics, what was learned, what an engine adds and what hardware allows, combined.

    seconds = max(physics * exp(r) * longer + added, what the hardware allows)

``longer`` and ``added`` are what other kernels of an engine cost a kernel, so a kernel alone has neither. r comes from
the best knowledge there is of the GPU. Where that is of a sibling, it answers for the same shape on itself, and physics
says how the two chips differ. One kernel is estimated in plain floats, which takes a twentieth of the time of an array
of one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.artifact.forest import Forest
from infercast.predict.choice import Choice, between_kernels, scheduled_seconds
from infercast.predict.estimate import Estimate
from infercast.predict.families.family import Core, Family
from infercast.predict.identity import SWEEP
from infercast.predict.limits import Floor
from infercast.predict.many import are_many, joined, parts_of
from infercast.predict.physics.either import Kit, Number, Plain, kit_of
from infercast.predict.physics.terms import Physics

if TYPE_CHECKING:
    from infercast.predict.adjust.anchors import Correction


WARM_BELIEF = 6.0
"""Power of the share of an engine's time that a table's physics takes, by which its residual is believed."""


class Kernels:
    """What all of them share is worked out once."""

    def __init__(
        self,
        family: Family,
        op: Op,
        gpu: Gpu,
        choice: Choice | None,
        *,
        engine: bool,
        alone: bool = False,
        correction: Correction | None = None,
        first: str = "",
    ) -> None:
        """``op`` is one of them, ``choice`` the model that knows them, if there is one, and ``correction`` what anchor
        points taught of them. ``engine``: as in an engine, not as in a table; ``alone``: its operands as there,
        but no other kernel around it. ``first``: the variant that was asked for, whose kernel physics is of where no
        model of a kernel was found.
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
            if engine and not alone:
                self._longer, self._added = choice.in_engine
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
            whole = joined([self._estimate(part, self._family.sizes(part)) for part in parts])
            return whole if which is None else whole.taken(which)
        return self._estimate(op, size)

    def _estimate(self, op: Op, size: Any) -> Estimate:
        physics = self._physics(op, self._gpu, size)
        seconds = self._at_least(op, size, self._learned(op, size, physics))
        low, high = self._interval(op, size, physics)
        low, high, bound = seconds * low, seconds * high, _bound(physics.terms)
        if isinstance(seconds, np.ndarray) and seconds.size == 1:
            return Estimate(float(seconds[0]), float(low[0]), float(high[0]), self._source, str(bound[0]))
        return Estimate(seconds, low, high, self._source, bound)

    def seconds(self, op: Op, size: Any) -> Number:
        """The same without interval and reason."""
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
        """Before what the hardware allows."""
        if self._forest is None:
            factor = 1.0 if self._correction is None else np.exp(self._correction(physics.features))
            return physics.seconds * factor * self._longer + self._added
        known = physics if self._known is None else self._physics(op, self._known, size)
        x, features = kit_of(known.seconds), known.features
        said = self._forest.predict_one(features) if x is Plain else self._forest.predict(features)
        residual = self._offset + self._shrink * said
        if known.warm is not None and self._is_tabled:
            residual = _when_cold(residual, known.warm, x)
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
        """Ends of the 80 % interval as shares of the estimate."""
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
        """Those who ask for one kernel after the other mostly change what a step decides: the last core is kept."""
        key = self._family.core_key(op)
        known, core = self._cores.get(gpu.name, (None, None))
        if core is None or core.gpu is not gpu or key is None or known != key:
            core = self._make(op, gpu)
            self._cores[gpu.name] = key, core
        return core.physics(size, engine=self._engine)


def _when_cold(residual: Number, warm: Number, x: Kit) -> Number:
    """What was learned where a share of what is read was in the cache, for a kernel that reads all of it from memory.

    There a residual is mostly of how well the cache is modelled: experts that fit into it are faster than physics has
    it, those that just do not are slower, and in an engine both read at one rate. No kernel is faster than there.
    """
    believed = residual * warm**WARM_BELIEF
    return x.larger(believed, residual + x.log(warm))


def _naming(named: Callable[[Any, str], Any], by: str, make: Callable[[Any, Gpu], Core]) -> Callable[..., Core]:
    """Physics of the kernel that a model was learned of, or as it was timed there."""
    return lambda op, gpu: make(named(op, by), gpu)


def _bound(terms: dict[str, Number]) -> Any:
    """The largest term of each."""
    if not isinstance(next(iter(terms.values())), np.ndarray):
        return max(terms, key=terms.__getitem__)
    return np.array([*terms])[np.argmax(np.stack(np.broadcast_arrays(*terms.values())), axis=0)]
