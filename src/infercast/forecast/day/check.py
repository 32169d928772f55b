"""The stepped day held against a simulation of every request in its busiest minutes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.forecast.day.traffic import Traffic
from infercast.forecast.slo import Slo, attainment
from infercast.forecast.system import replicas_of

Array = npt.NDArray[Any]
MOST_REQUESTS, MOST_AT_ALL = 6000, 20_000
"""Further windows are added up to the first; one window and those before it may take the second."""
MOST_MINUTES = 30
RAMP = 2
"""Windows before those that count, in which the fleet fills up."""


class Check(NamedTuple):
    """Share of the requests within every limit, both ways."""

    begin: float
    """Seconds after the start of the day ..."""
    end: float
    requests: int
    simulated: float
    stepped: float

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.requests:,} requests from {clock(self.begin)} to {clock(self.end)} simulated one by one: "
            f"{100 * self.simulated:.1f} % within the SLO; the stepped day says {100 * self.stepped:.1f} %"
        )


def check_busiest(deployment: Deployment, traffic: Traffic, slo: Slo, count: int, attained: Array) -> Check | None:
    """Simulate the busiest windows on ``count`` replicas; ``attained`` is what the stepped day says of each window.

    None where one window is too much to simulate.
    """
    if deployment.shares_experts and count > 1:
        return None
    counts, peak = traffic.counts, int(np.argmax(traffic.counts))
    first = last = peak
    while last - first + 1 < MOST_MINUTES and (last + 1 < counts.size or first > 0):
        to_right = last + 1 < counts.size and (last - peak <= peak - first or first == 0)
        wider = (first, last + 1) if to_right else (first - 1, last)
        if counts[max(0, wider[0] - RAMP) : wider[1] + 1].sum() > MOST_REQUESTS:
            break
        first, last = wider
    begin = max(0, first - RAMP) * traffic.window
    load = traffic.between(begin, (last + 1) * traffic.window)
    if len(load.requests) > MOST_AT_ALL:
        return None
    served = replicas_of(deployment, count).serve(load).clients
    since = first * traffic.window - begin
    said, weights = attained[first : last + 1], counts[first : last + 1]
    return Check(
        first * traffic.window,
        (last + 1) * traffic.window,
        int(np.count_nonzero(served.sent_at >= since)),
        attainment(served, slo, served.sent_at >= since),
        float(np.nansum(said * weights) / weights.sum()),
    )


def clock(seconds: float) -> str:
    """``14:05``."""
    return f"{int(seconds // 3600):02d}:{int(seconds % 3600 // 60):02d}"
