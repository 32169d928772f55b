"""Which model estimates a kind of operator on a GPU, and how far it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple, TypeVar

from infercast.hardware import Gpu
from infercast.hardware.ordering import ratio_bounds
from infercast.predict.artifact.artifact import Entry
from infercast.predict.artifact.forest import Forest
from infercast.predict.families import FAMILIES
from infercast.predict.families.family import Family
from infercast.predict.identity import ANY, SWEEP
from infercast.predict.physics.either import Arrays, Kit, Number, Plain
from infercast.predict.physics.terms import Physics

SIBLING_WIDENING = 1.3
"""How much wider a sibling's interval is: H100's rows by H200's models fall into their own 65 to 78 % of the time."""
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
    """Factor and seconds that an engine adds to a kernel that was measured by itself."""
    return _by_variant(family.between_kernels, variant, (1.0, 0.0))


class Choice(NamedTuple):
    """The model that estimates a kind of operator, and by which tier it was found."""

    tier: str
    entry: Entry
    forest: Forest
    known: Gpu | None = None
    """The GPU that a sibling's model was fitted on."""
    is_same_die: bool = False
    """Whether it multiplies as fast as the GPU that is asked for: the two differ in memory and links alone."""
    bounds: tuple[float, float] = (0.0, inf)
    """Between what the ratio of the two chips' times can lie: physics may choose other tiles and overshoot."""

    @property
    def is_new_kernel(self) -> bool:
        """Whether nobody measured this kernel on any chip, so that others stand for it."""
        return self.entry.variant.rpartition("/")[2] == ANY

    @property
    def interval(self) -> tuple[float, float]:
        """Logarithms of the ends of the 80 % interval; borrowed knowledge is worth less than one's own."""
        wider = SIBLING_WIDENING if self.known is not None else 1.0
        return wider * self.entry.low, wider * self.entry.high

    @property
    def in_engine(self) -> tuple[float, float]:
        """Factor and seconds that an engine adds to the estimate; published tables carry a launch instead."""
        if self.entry.engine != SWEEP:
            return 1.0, 0.0
        return between_kernels(FAMILIES[self.entry.family], self.entry.variant)

    @property
    def trust(self) -> float:
        """How far the ratio of two siblings' physics is believed, as its exponent."""
        return trust_in(self.entry, same_die=self.is_same_die)


def borrowed(gpu: Gpu, known: Gpu, entry: Entry, forest: Forest) -> Choice:
    """A sibling's model for this GPU."""
    bounds = ratio_bounds(gpu, known) if FAMILIES[entry.family].is_chip_bound else (0.0, inf)
    return Choice("sibling", entry, forest, known, is_same_die(gpu, known), bounds)
