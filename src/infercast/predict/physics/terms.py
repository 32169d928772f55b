"""What a physics core returns, and the few functions that all cores share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Number = Any
"""A float, or an array of floats."""


class Physics(NamedTuple):
    """An analytical estimate of one kernel or of an array of them, and what a learner may know of them."""

    seconds: Number
    """One launch of each kernel."""
    terms: dict[str, Number]
    """Seconds of each pipe, for people: ``tensor``, ``dram``, ``l2``, ..., ``launch``."""
    features: Number
    """One row a kernel, or a list for one kernel; columns as in the core's ``FEATURES``. Mostly ratios and logarithms,
    which have no unit."""
    warm: Number | None = None
    """Of a kernel in an engine, its time in a table as a share of that: less than 1 where what it reads stays in L2
    there. None: not told."""


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
    """Base-two logarithm that survives zeros."""
    return np.asarray(np.log2(np.maximum(values, 1e-12)))


def fill(blocks: Array, sms: int) -> Array:
    """How full the last round of thread blocks is on average: blocks over the slots of whole rounds, in (0, 1]."""
    rounds = blocks / sms
    return np.asarray(rounds / np.maximum(np.ceil(rounds), 1.0))


def columns(*parts: Array | float) -> Array:
    """Features side by side, each of them without gaps in memory."""
    return np.stack(np.broadcast_arrays(*(np.asarray(part, dtype=np.float64) for part in parts))).T
