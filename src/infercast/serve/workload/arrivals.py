"""When requests arrive: four arrival processes as arrays of seconds.

=========  ==========================================================================
poisson    independent users: exponential gaps, coefficient of variation 1
gamma      gaps of a chosen burstiness: coefficient of variation 1 / sqrt(burstiness)
constant   a metronome: the first request at 0, then one every 1 / rate seconds
burst      everything at once, at 0; it has no rate
=========  ==========================================================================
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError, UnknownNameError

ARRIVAL_KINDS = ("poisson", "gamma", "constant", "burst")
LATEST = 1e10
"""Seconds, some three hundred years: beyond it a clock cannot tell microseconds apart."""
MOST_REQUESTS = 100_000_000
"""More than a hundred million requests are a slip of the keyboard: a million take more than a gigabyte."""


def arrival_times(
    kind: str,
    rate: float | None,
    count: int,
    rng: np.random.Generator,
    burstiness: float = 1.0,
    *,
    spread_out: bool = False,
) -> NDArray[np.float64]:
    """``count`` arrival times in seconds, ascending.

    ``rate`` is the mean number of requests per second, None for a burst. ``burstiness`` is the shape of the gamma
    distribution of the gaps, as in vLLM's serving benchmark: 1 is Poisson, below 1 is burstier, above 1 more regular.
    Under poisson and gamma the first gap is drawn like every other, so the first request comes after 0. ``spread_out``:
    all of them together take as long as so many take on average, so that their rate has no luck in it; of Poisson
    arrivals these are the ones of which so many come in that time.
    """
    check_arrivals(kind, rate, count, burstiness)
    if rate is None:
        return np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes the error below, not a warning
        if kind == "constant":
            times = np.arange(count) / rate
        else:
            times = np.cumsum(rng.gamma(burstiness, 1.0 / rate / burstiness, count))
            if spread_out:
                times *= count / rate / times[-1]
    if not times[-1] < LATEST:
        raise InputError(f"rate {rate!r} with burstiness {burstiness!r} gives arrival times too large for a clock")
    return times


def check_arrivals(kind: str, rate: float | None, count: int, burstiness: float = 1.0) -> None:
    """Raise InputError unless the four describe an arrival process."""
    if kind not in ARRIVAL_KINDS:
        raise UnknownNameError("arrival kind", kind, ARRIVAL_KINDS)
    if count < 1:
        raise InputError(f"count must be at least 1 request, not {count!r}")
    if count > MOST_REQUESTS:
        raise InputError(f"count must be at most {MOST_REQUESTS} requests, not {count!r}")
    if kind == "burst" and rate is not None:
        raise InputError(f"rate {rate!r} was given, but a burst has none; use poisson, gamma or constant for a rate")
    if kind != "burst" and rate is None:
        raise InputError(f"rate is missing: {kind} arrivals need requests per second; only burst goes without")
    # Written as "not >" so that NaN is refused too.
    if rate is not None and not (rate > 0 and math.isfinite(1.0 / rate) and math.isfinite(rate)):
        raise InputError(f"rate must be a positive, finite number of requests per second, not {rate!r}")
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise InputError(f"burstiness must be a positive, finite number (1 is Poisson), not {burstiness!r}")
    if kind != "gamma" and burstiness != 1.0:
        raise InputError(f"burstiness {burstiness!r} has no meaning for {kind} arrivals; use gamma, or leave it at 1")
