"""Arithmetic of kernel formulas on one float (`Plain`) or on `Arrays`, and the terms that such a formula returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Number = Any  # A float, or an array of floats


class Physics(NamedTuple):
    """An analytical estimate of one kernel or of an array of them, and what a learner may know of them."""

    seconds: Number  # One launch of each kernel
    terms: dict[str, Number]  # Seconds of each pipe: ``tensor``, ``dram``, ``l2``, ..., ``launch``
    features: Number
    """One row a kernel, or a list for one kernel; columns as in the core's ``FEATURES``. Mostly ratios and logarithms,
    which have no unit."""
    warm: Number | None = None
    """Of a kernel in an engine, its time in a table as a share of that: less than 1 where what it reads stays in L2
    there. None: unknown."""


def soft_max(power: float, *parts: Array) -> Array:
    """A smooth maximum: pipes overlap almost, but not quite, perfectly."""
    largest = np.maximum.reduce(np.broadcast_arrays(*parts))
    scaled = sum((part / largest) ** power for part in parts)
    return np.asarray(largest * scaled ** (1.0 / power))


def miss_share(working_set: Array, cache_bytes: float, sharpness: float = 2.0) -> Array:
    """Share of the traffic that goes to DRAM: none for a small working set, all for one far above the cache."""
    ratio = cache_bytes / np.maximum(working_set, 1.0)
    return np.asarray(1.0 / (1.0 + ratio**sharpness))


def log2(values: Array | float) -> Array:
    return np.asarray(np.log2(np.maximum(values, 1e-12)))


def fill(blocks: Array, sms: int) -> Array:
    """How full the last round of thread blocks is on average: blocks over the slots of whole rounds, in (0, 1]."""
    rounds = blocks / sms
    return np.asarray(rounds / np.maximum(np.ceil(rounds), 1.0))


def columns(*parts: Array | float) -> Array:
    return np.stack(np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in parts))).T


class Arrays:
    ceil: Any = np.ceil
    floor: Any = np.floor
    larger: Any = np.maximum
    smaller: Any = np.minimum
    clip: Any = staticmethod(np.clip)
    where: Any = staticmethod(np.where)
    like: Any = staticmethod(np.full_like)
    log2: Any = staticmethod(log2)
    logs: Any = staticmethod(lambda *values: [log2(value) for value in values])
    soft_pair: Any = staticmethod(soft_max)
    soft_max: Any = staticmethod(soft_max)
    miss_share: Any = staticmethod(miss_share)
    fill: Any = staticmethod(fill)
    columns: Any = staticmethod(columns)
    mean: Any = staticmethod(lambda values: values.mean(axis=-1))
    most: Any = staticmethod(lambda values: values.max(axis=-1))
    least: Any = staticmethod(lambda values: values.min(axis=-1))
    total: Any = staticmethod(lambda values: values.sum(axis=-1))
    last: Any = staticmethod(lambda values: values[..., -1])
    any: Any = np.any
    exp: Any = np.exp
    exp2: Any = np.exp2
    log: Any = np.log
    sqrt: Any = np.sqrt
    expm1: Any = np.expm1
    log1p: Any = np.log1p

    @staticmethod
    def along(value: Number) -> Number:
        return value[..., None]

    @staticmethod
    def apart(values: Array) -> list[Number]:
        return [*np.moveaxis(values, -1, 0)]

    @staticmethod
    def pick(which: Array, options: Sequence[tuple[Number, ...]]) -> Number:
        return type(options[0])(*[np.choose(which.astype(np.intp), each) for each in zip(*options, strict=True)])

    @staticmethod
    def spread(count: Number, most: int, height: Number, group: float) -> tuple[Number, Number, Kit]:
        """Start and end of ``most`` of ``count`` tiles of ``height`` rows, evenly chosen, and the kit for them."""
        samples = int(min(most, count.max(initial=1)))
        return *_spread(count[..., None], samples, height[..., None], group), Arrays

    @staticmethod
    def either(condition: Number, one: Callable[[], Number], other: Callable[[], Number]) -> Number:
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
    mean: Any = staticmethod(lambda values: sum(values.tolist()) / len(values))
    most: Any = staticmethod(lambda values: max(values.tolist()))
    least: Any = staticmethod(lambda values: min(values.tolist()))


class Plain:
    """One kernel in plain floats: twenty times as fast as arrays of one, and as exact."""

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
    def larger(one: Number, other: Number) -> Number:
        return one if one > other else other

    @staticmethod
    def smaller(one: Number, other: Number) -> Number:
        return one if one < other else other

    @staticmethod
    def clip(value: Number, low: Number, high: Number) -> Number:
        """The nearest value between two; the upper end wins."""
        value = value if value > low else low
        return value if value < high else high

    @staticmethod
    def where(condition: Number, one: Number, other: Number) -> Number:
        return one if condition else other

    @staticmethod
    def like(_: Number, value: Number) -> Number:
        return value

    @staticmethod
    def log2(value: Number) -> Number:
        return math.log2(value if value > 1e-12 else 1e-12)

    @staticmethod
    def logs(*values: Number) -> list[Number]:
        """The same of several, which spares a call each."""
        if min(values) > 1e-12:
            return [*map(math.log2, values)]
        return [math.log2(max(value, 1e-12)) for value in values]

    @staticmethod
    def soft_max(power: float, *parts: Number) -> Number:
        largest = max(parts)
        scaled = 0.0
        for part in parts:
            scaled += (part / largest) ** power
        return float(largest * scaled ** (1.0 / power))

    @staticmethod
    def soft_pair(power: float, one: Number, other: Number) -> Number:
        if one < other:
            one, other = other, one
        return one * (1.0 + (other / one) ** power) ** (1.0 / power)

    @staticmethod
    def miss_share(working_set: Number, cache_bytes: Number, sharpness: float = 2.0) -> Number:
        ratio = cache_bytes / (working_set if working_set > 1.0 else 1.0)
        # What a float cannot hold is as good as all in the cache.
        return 1.0 / (1.0 + ratio**sharpness) if ratio < 1e12 else 0.0

    @staticmethod
    def fill(blocks: Number, sms: int) -> Number:
        rounds = blocks / sms
        whole = math.ceil(rounds)
        return rounds / whole if whole > 1 else rounds

    @staticmethod
    def columns(*parts: Number) -> Number:
        return [*parts]

    @staticmethod
    def spread(count: Number, most: int, height: Number, group: float) -> tuple[Number, Number, Kit]:
        if count <= 1:
            return 0, math.ceil(height / group), Plain
        return *_spread_of_one(count, min(most, count), height, group), Samples

    @staticmethod
    def either(condition: Number, one: Callable[[], Number], other: Callable[[], Number]) -> Number:
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
    return Arrays if isinstance(size, np.ndarray) else Plain
