"""One formula for one kernel and for many: the few functions that plain floats and arrays spell differently.

An estimate of one kernel in plain floats is twenty times as fast as in arrays of one, and as exact. ``numbers.py``
holds the like for matrix products, which come by the million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from infercast.predict.physics import terms
from infercast.predict.physics.terms import Array, Number

__all__ = ["Arrays", "Kit", "Number", "Plain", "kit_of"]


class Arrays:
    """Many kernels."""

    ceil: Any = np.ceil
    floor: Any = np.floor
    larger: Any = np.maximum
    smaller: Any = np.minimum
    clip: Any = staticmethod(np.clip)
    where: Any = staticmethod(np.where)
    like: Any = staticmethod(np.full_like)
    log2: Any = staticmethod(terms.log2)
    logs: Any = staticmethod(lambda *values: [terms.log2(value) for value in values])
    soft_max: Any = staticmethod(terms.soft_max)
    soft_pair: Any = staticmethod(terms.soft_max)
    miss_share: Any = staticmethod(terms.miss_share)
    fill: Any = staticmethod(terms.fill)
    columns: Any = staticmethod(terms.columns)
    mean: Any = staticmethod(lambda values: values.mean(axis=-1))
    most: Any = staticmethod(lambda values: values.max(axis=-1))
    least: Any = staticmethod(lambda values: values.min(axis=-1))
    total: Any = staticmethod(lambda values: values.sum(axis=-1))
    last: Any = staticmethod(lambda values: values[..., -1])
    any: Any = np.any
    exp: Any = np.exp
    exp2: Any = np.exp2
    log: Any = np.log
    flat: Any = staticmethod(np.ravel)
    sqrt: Any = np.sqrt
    expm1: Any = np.expm1
    log1p: Any = np.log1p

    @staticmethod
    def along(value: Number) -> Number:
        """A number of each kernel, to be combined with a further axis."""
        return value[..., None]

    @staticmethod
    def apart(values: Array) -> list[Number]:
        """The numbers along the last axis."""
        return [*np.moveaxis(values, -1, 0)]

    @staticmethod
    def pick(which: Array, options: Sequence[tuple[Number, ...]]) -> Number:
        """For each kernel, one of several tuples of numbers."""
        return type(options[0])(*[np.choose(which.astype(np.intp), each) for each in zip(*options, strict=True)])

    @staticmethod
    def spread(count: Number, most: int, height: Number, group: float) -> tuple[Number, Number, Kit]:
        """Of ``count`` tiles so many at most, evenly chosen, along a further axis: where each begins and ends.

        A tile has so many rows, of which a ``group`` belongs to one query. The kit is the one for them.
        """
        samples = int(min(most, count.max(initial=1)))
        return *_spread(count[..., None], samples, height[..., None], group), Arrays

    @staticmethod
    def either(condition: Number, one: Callable[[], Number], other: Callable[[], Number]) -> Number:
        """One or the other, where what is not needed is expensive."""
        return np.where(condition, one(), other())

    @staticmethod
    def by_case(function: Callable[[int, int], float], needed: Number, one: Number, other: Number) -> Number:
        """A function of two whole numbers, of which there are few pairs, where it is needed; else one."""
        result, some = np.ones(needed.shape), np.flatnonzero(needed)
        if some.size:
            base = int(other.max()) + 1
            cases, which = np.unique(one[some] * base + other[some], return_inverse=True)
            result[some] = np.array([function(*divmod(int(case), base)) for case in cases])[which]
        return result


class Samples(Arrays):
    """Samples of one kernel."""

    mean: Any = staticmethod(lambda values: sum(values.tolist()) / len(values))
    most: Any = staticmethod(lambda values: max(values.tolist()))
    least: Any = staticmethod(lambda values: min(values.tolist()))


class Plain:
    """One kernel."""

    ceil: Any = math.ceil
    floor: Any = math.floor
    any: Any = bool
    exp: Any = math.exp
    exp2: Any = math.exp2
    log: Any = math.log
    sqrt: Any = math.sqrt
    expm1: Any = math.expm1
    log1p: Any = math.log1p
    along: Any = staticmethod(lambda value: value)
    mean = most = least = along
    last: Any = staticmethod(lambda values: float(values[-1]))
    total: Any = staticmethod(lambda values: float(np.add.reduce(values)))
    apart: Any = staticmethod(lambda values: values.tolist())
    pick: Any = staticmethod(lambda which, options: options[which])

    @staticmethod
    def flat(value: Number) -> Number:
        """A float, also of an array of one."""
        return value.item() if isinstance(value, np.ndarray) else value

    @staticmethod
    def larger(one: Number, other: Number) -> Number:
        """The larger of two."""
        return one if one > other else other

    @staticmethod
    def smaller(one: Number, other: Number) -> Number:
        """The smaller of two."""
        return one if one < other else other

    @staticmethod
    def clip(value: Number, low: Number, high: Number) -> Number:
        """The nearest value between two; the upper end wins."""
        value = value if value > low else low
        return value if value < high else high

    @staticmethod
    def where(condition: Number, one: Number, other: Number) -> Number:
        """One or the other."""
        return one if condition else other

    @staticmethod
    def like(_: Number, value: Number) -> Number:
        """A number that is the same for all kernels."""
        return value

    @staticmethod
    def log2(value: Number) -> Number:
        """Base-two logarithm that survives zeros."""
        return math.log2(value if value > 1e-12 else 1e-12)

    @staticmethod
    def logs(*values: Number) -> list[Number]:
        """The same of several, which spares a call each."""
        if min(values) > 1e-12:
            return [*map(math.log2, values)]
        return [math.log2(max(value, 1e-12)) for value in values]

    @staticmethod
    def soft_max(power: float, *parts: Number) -> Number:
        """A smooth maximum: pipes overlap almost, but not quite, perfectly."""
        largest = max(parts)
        scaled = 0.0
        for part in parts:
            scaled += (part / largest) ** power
        return float(largest * scaled ** (1.0 / power))

    @staticmethod
    def soft_pair(power: float, one: Number, other: Number) -> Number:
        """The same of two, of which one is the largest."""
        if one < other:
            one, other = other, one
        return one * (1.0 + (other / one) ** power) ** (1.0 / power)

    @staticmethod
    def miss_share(working_set: Number, cache_bytes: Number, sharpness: float = 2.0) -> Number:
        """Share of the traffic that goes to DRAM."""
        ratio = cache_bytes / (working_set if working_set > 1.0 else 1.0)
        # What a float cannot hold is as good as all in the cache.
        return 1.0 / (1.0 + ratio**sharpness) if ratio < 1e12 else 0.0

    @staticmethod
    def fill(blocks: Number, sms: int) -> Number:
        """How full the last round of thread blocks is on average."""
        rounds = blocks / sms
        whole = math.ceil(rounds)
        return rounds / whole if whole > 1 else rounds

    @staticmethod
    def columns(*parts: Number) -> Number:
        """Features side by side."""
        return [*parts]

    @staticmethod
    def spread(count: Number, most: int, height: Number, group: float) -> tuple[Number, Number, Kit]:
        """Of ``count`` tiles so many at most, evenly chosen: where each begins and ends, and the kit for them."""
        if count <= 1:
            return 0, math.ceil(height / group), Plain
        return *_spread_of_one(count, min(most, count), height, group), Samples

    @staticmethod
    def either(condition: Number, one: Callable[[], Number], other: Callable[[], Number]) -> Number:
        """One or the other, where what is not needed is expensive."""
        return one() if condition else other()

    @staticmethod
    def by_case(function: Callable[[int, int], float], needed: Number, one: Number, other: Number) -> Number:
        """A function of two whole numbers where it is needed; else one."""
        return function(one, other) if needed else 1.0


def _spread(count: Number, samples: int, height: Number, group: float) -> tuple[Array, Array]:
    number = np.floor((np.arange(samples) + 0.5) / samples * count)
    return np.floor(number * height / group), np.ceil((number + 1.0) * height / group)


_spread_of_one = lru_cache(maxsize=4096)(_spread)


Kit = type[Plain] | type[Arrays]


def kit_of(size: Number) -> Kit:
    """The kit for one number or for an array of them."""
    return Arrays if isinstance(size, np.ndarray) else Plain
