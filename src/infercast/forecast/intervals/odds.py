"""How likely a result is to stay within a limit, told by its 80 % interval.

An interval says where four results out of five lie; a promise also asks about the rest. Logarithms of measured results
over forecasts lie closer together than a normal distribution with that interval, and a few lie much further out: as
Student's t with two degrees of freedom, whose distribution function needs no tables. Under load the middle is
not the forecast but a little slower: whatever varies adds time, since a step waits for the slower of GPU and host.

Both were chosen on measured runs with every engine left out in turn (docs/odds.md, benchmarks/accuracy/fit_odds.py),
and `infercast validate` counts how often promises hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.engines.engine import Version
from infercast.forecast.intervals.uncertainty import EIGHTY, is_like_measured, is_older
from infercast.serve import Workload

Array = npt.NDArray[Any]

NINETY = 0.8 / sqrt(2 * 0.9 * 0.1)
"""Where Student's t with two degrees of freedom has nine tenths of its values below: the upper end of 80 %."""
AT_ONCE = 0.05
"""Requests sent within so many seconds form a static batch."""
SLOWER_UNDER_LOAD = 0.3
"""How much slower than its forecast the middle of a result under load is, in standard deviations of a normal
distribution with its interval: of an engine like those that were measured ..."""
SLOWER_ELSEWHERE = 0.15
"""... of any other, under load or not; its intervals are wider ..."""
SLOWER_BEFORE = 0.64
"""... and of a release of long before: three of four published runs of these are slower than forecast."""


def odds_within(room: Array | float, half_width: float, slower: float = 0.0) -> Array:
    """The probability that a latency is at most ``exp(room)`` times its forecast.

    ``half_width`` is the logarithm of the upper end of its 80 % interval over the forecast. A rate is at least
    ``exp(-room)`` times its own with the same probability.
    """
    room = np.asarray(room, dtype=float)
    if half_width <= 0:
        return np.where(room >= 0, 1.0, 0.0)
    deviations = NINETY * (room / half_width - slower / EIGHTY)
    return np.asarray(0.5 + deviations / (2 * np.sqrt(2 + deviations**2)))


def slower_by(deployments: Sequence[Deployment], workload: Workload, version: Version = ()) -> float:
    """How much slower than the forecast the middle of a result of these requests is, for `odds_within`."""
    if is_older(deployments[0].engine, version):
        return SLOWER_BEFORE
    if len(deployments) > 1 or not is_like_measured(deployments[0]):
        return SLOWER_ELSEWHERE
    return 0.0 if is_at_once(workload) else SLOWER_UNDER_LOAD


def is_at_once(workload: Workload) -> bool:
    """Whether all requests are sent together, so that nobody waits for anybody else's arrival."""
    first, last = workload.requests[0], workload.requests[-1]
    return workload.concurrency is None and last.arrival - first.arrival <= AT_ONCE
