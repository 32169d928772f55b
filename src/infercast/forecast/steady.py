"""Whether a run reached a steady state, and from when to when it was in one.

A run begins with an empty engine that fills up and ends with one that empties. What users of a deployment that is
always on would see lies between: from the end of the ramp-up to the last arrival. The ramp-up ends where the number of
requests in the system, cut off up to there, is known best (the rule MSER of White, 1997: least variance of its mean).
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

BINS = 100
"""Equal stretches of the time in which requests arrive."""
RESIDENCES = 5
"""A steady part must be as long as a request stays, so many times; a shorter one is ruled by how it began."""
LEAST_REQUESTS = 100
"""Fewer show no percentile."""
MOST_GROWTH = 1.5
"""A number in the system that grows by this factor from one half of a part to the next is not steady."""


class SteadyState(NamedTuple):
    """The part of a run between ramp-up and drain; times in seconds after the first request was sent."""

    reached: bool
    begin: float
    end: float
    """When the last request was sent. What follows is the drain."""
    num_requests: int
    """Sent in that part."""
    num_needed: int | None = None
    """How many requests would do, where there were too few; None: no number would, or these do."""
    obstacle: str = ""
    """Why it was not reached."""
    settled: bool = False
    """Whether requests came and went evenly, however few they were."""

    @property
    def sentence(self) -> str:
        """For people."""
        if self.reached:
            return f"from {self.begin:,.1f} to {self.end:,.1f} s, {self.num_requests:,} requests"
        enough = "" if self.num_needed is None else f"; about {self.num_needed:,} requests would do"
        return f"not reached: {self.obstacle}{enough}"


def find_steady(served: Record | Served, workload: Workload) -> SteadyState:
    """The steady part of a run."""
    sent = served.sent_at - served.sent_at.min()
    done = served.last_token - served.sent_at.min()
    end, residence = float(sent.max()), float((done - sent).mean())
    closed = workload.concurrency is not None
    if workload.rate is None and not closed and end < RESIDENCES * residence:
        return SteadyState(False, 0.0, end, sent.size, obstacle="requests do not come at a steady rate")
    if end < RESIDENCES * residence:
        return _too_short(sent.size, end, workload.concurrency or sent.size / max(end, 1e-9) * residence)
    edges = np.linspace(0.0, end, BINS + 1)
    # The number in a closed loop never changes; there it is the answers that come in waves at first.
    level = np.histogram(done, edges)[0].astype(float) if closed else mean_in_system(sent, done, edges)
    first = _ramp_up(level)
    begin = float(edges[first])
    inside = int(np.count_nonzero(sent >= begin))
    settled = first < BINS // 2 and end - begin >= RESIDENCES * residence and (closed or not _grows(level[first:]))
    if settled and inside < LEAST_REQUESTS:
        few = "there are too few requests"
        return SteadyState(False, begin, end, inside, 2 * LEAST_REQUESTS, few, settled=True)
    if not settled:
        return _too_short(sent.size, end, workload.concurrency or sent.size / end * residence)
    return SteadyState(True, begin, end, inside, settled=True)


def _too_short(num_requests: int, end: float, in_system: float) -> SteadyState:
    """A run that needs several times as many requests as are in the system at one time, or at least twice its own."""
    needed = max(3 * RESIDENCES * in_system, 2.0 * num_requests, 2.0 * LEAST_REQUESTS)
    rounded = 10 ** max(0, len(str(ceil(needed))) - 2)
    needed = rounded * ceil(needed / rounded)
    return SteadyState(False, 0.0, end, num_requests, needed, "requests stay too long for so short a run")


def _ramp_up(level: Array) -> int:
    """How many stretches to leave out so that the mean of the others is known best; at most half of them."""
    spreads = [level[first:].var() / (level.size - first) for first in range(level.size // 2 + 1)]
    return int(np.argmin(spreads))


def _grows(level: Array) -> bool:
    """Whether the second half is well above the first."""
    half = level.size // 2
    return bool(level[half:].mean() > MOST_GROWTH * level[:half].mean() + 1.0)


def mean_in_system(sent: Array, done: Array, edges: Array) -> Array:
    """Requests in the system in each stretch, on average."""
    return np.asarray(np.diff(time_since(np.sort(sent), edges) - time_since(np.sort(done), edges)) / np.diff(edges))


def time_since(moments: Array, edges: Array) -> Array:
    """The sum over all moments (in order) of the time from each to each edge, where it is later."""
    sums = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, edges, side="right")
    return np.asarray(count * edges - sums[count])
