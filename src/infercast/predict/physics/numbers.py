"""One formula for one kernel and for millions: the few functions that floats and arrays spell differently.

Python's own floats are ten times as fast as arrays of one. Arrays in single precision are twice as fast as in double,
and their powers, which numpy takes slowly, are polynomials that are right to five digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from infercast.predict.physics.terms import Array

Number = Any
"""A float, or an array of floats."""
CHUNK = 98_304
"""Kernels in single precision at once: what is worked on stays in the processor's cache."""
HARDLY_CACHED = 0.25
"""A cache that is this share of the working set is no help: all of the traffic goes to DRAM."""


class Floats:
    """One kernel."""

    ceil = math.ceil

    @staticmethod
    def larger(one: float, other: float) -> float:
        """The larger of two."""
        return one if one > other else other

    @staticmethod
    def at_least_one(value: float) -> float:
        """The value, or 1 if that is more; arrays are changed in place."""
        return value if value > 1.0 else 1.0

    @staticmethod
    def miss_share(working_set: float, cache: float, sharpness: float) -> float:
        """Share of the traffic that goes to DRAM: none for a small working set, all for one far above the cache."""
        ratio = cache / working_set
        return 1.0 if ratio < HARDLY_CACHED else 1.0 / (1.0 + ratio**sharpness)

    @staticmethod
    def soft_max(power: float, a: float, b: float, c: float, d: float) -> float:
        """A smooth maximum: pipes overlap almost, but not quite, perfectly."""
        largest = max(a, b, c, d)
        scaled = (a / largest) ** power + (b / largest) ** power + (c / largest) ** power + (d / largest) ** power
        return float(largest * scaled ** (1.0 / power))


class Doubles:
    """A few kernels, as exact as one."""

    dtype: type = np.float64
    ceil, larger = np.ceil, np.maximum

    @classmethod
    def at_least_one(cls, values: Array) -> Array:
        """The values, or 1 where that is more, in place."""
        return np.maximum(values, 1.0, out=values)

    @classmethod
    def miss_share(cls, working_set: Array, cache: float, sharpness: float) -> Array:
        """Share of the traffic that goes to DRAM: none for a small working set, all for one far above the cache."""
        ratio = cache / working_set
        share = np.ones_like(ratio)
        some = np.flatnonzero(ratio >= HARDLY_CACHED)
        share[some] = 1.0 / (1.0 + ratio[some] ** sharpness)
        return share

    @classmethod
    def soft_max(cls, power: float, a: Array, b: Array, c: Array, d: Array) -> Array:
        """A smooth maximum: pipes overlap almost, but not quite, perfectly."""
        largest = np.maximum(np.maximum(a, b), np.maximum(c, d))
        each = 1.0 / largest
        scaled = cls._power(a * each, power)
        for part in (b, c, d):
            scaled += cls._power(part * each, power)
        largest *= cls._root(scaled, power)
        return largest

    @classmethod
    def _power(cls, values: Array, power: float) -> Array:
        return np.asarray(values**power)

    @classmethod
    def _root(cls, values: Array, power: float) -> Array:
        return np.asarray(values ** (1.0 / power))


class Singles(Doubles):
    """Many kernels, to five digits."""

    dtype = np.float32
    _ones = np.ones(CHUNK, dtype=np.float32)

    @classmethod
    def at_least_one(cls, values: Array) -> Array:
        """The values, or 1 where that is more, in place."""
        # numpy compares with an array three times as fast as with a number
        return np.maximum(values, cls._ones[: len(values)], out=values)

    @classmethod
    def _power(cls, values: Array, power: float) -> Array:
        """For values from 0 to 1."""
        lead, coefficients = _power_polynomial(power)
        result = _polynomial(values, coefficients)
        values *= values
        for _ in range(lead // 2):
            result *= values
        return result

    @classmethod
    def _root(cls, values: Array, power: float) -> Array:
        """For values from 1 to 4."""
        return _polynomial(np.sqrt(values), _root_polynomial(power))


def _polynomial(values: Array, coefficients: tuple[Array, ...]) -> Array:
    """Highest power first."""
    first, *others = coefficients
    result = values * first
    for coefficient in others[:-1]:
        result += coefficient
        result *= values
    result += others[-1]
    return result


@lru_cache
def _power_polynomial(power: float) -> tuple[int, tuple[Array, ...]]:
    """An even number, and the polynomial that, times x to this number, is x to the ``power`` from 0 to 1."""
    lead = 2 * int(power / 2)
    x = np.linspace(0.0, 1.0, 1001)
    return lead, _fitted(np.stack([x ** (lead + degree) for degree in (3, 2, 1, 0)], axis=1), x**power)


@lru_cache
def _root_polynomial(power: float) -> tuple[Array, ...]:
    """The polynomial in the square root of x that is the root of x from 1 to 4."""
    x = np.linspace(1.0, 2.0, 1001)
    return _fitted(np.stack([x**degree for degree in (4, 3, 2, 1, 0)], axis=1), x ** (2.0 / power))


def _fitted(basis: Array, values: Array) -> tuple[Array, ...]:
    """Coefficients as arrays of one number, which numpy takes faster than Python's floats."""
    return tuple(np.array(each, dtype=np.float32) for each in np.linalg.lstsq(basis, values)[0])


Kit = type[Floats] | type[Doubles]
