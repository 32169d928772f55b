"""The few functions that one kernel (plain floats) and many (arrays) spell differently, where both are as exact.

A price of one kernel in plain floats is twenty times as fast as in arrays of one. ``numbers.py`` holds the like for
matrix products, which come by the million.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from infercast.predict.physics import terms

Number = Any
"""A float, or an array of floats."""


class Plain:
    """One kernel."""

    ceil: Any = math.ceil
    floor: Any = math.floor

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
        log2 = math.log2
        return [log2(value if value > 1e-12 else 1e-12) for value in values]

    @staticmethod
    def soft_max(power: float, *parts: Number) -> Number:
        """A smooth maximum: pipes overlap almost, but not quite, perfectly."""
        largest = max(parts)
        scaled = 0.0
        for part in parts:
            scaled += (part / largest) ** power
        return float(largest * scaled ** (1.0 / power))

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
    miss_share: Any = staticmethod(terms.miss_share)
    fill: Any = staticmethod(terms.fill)
    columns: Any = staticmethod(terms.columns)


Kit = type[Plain] | type[Arrays]
