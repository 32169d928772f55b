"""Telling a busy deployment from one that can never keep up."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

import numpy as np

from infercast.records import dataclass
from infercast.serve import Record, Replica, Workload, simulate
from infercast.serve.served import Served

ROUNDS = 3
"""A capacity run serves so many times as many requests as the engine can hold at once."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """Arrivals outrun the deployment: its backlog grows for as long as they go on."""

    offered: float
    """Requests a second that arrive."""
    capacity: float
    """Requests a second that are finished when there is always another one waiting."""

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"saturated: {_three_digits(self.offered)} requests/s arrive but only about "
            f"{_three_digits(self.capacity)} requests/s can be served, so the queue grows without end and latencies "
            "have no steady value"
        )


def _three_digits(rate: float) -> str:
    """Large rates as whole numbers: 100,000 and not 1e+05."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def find_saturation(
    replica: Replica, workload: Workload, record: Record | Served, *, engines: int = 1
) -> Saturation | None:
    """Whether a steady stream of requests comes faster than they can ever be served.

    A backlog that still grows when the last request arrives is a sign, but a short run of a healthy deployment shows
    it too. So the sign only raises the question, and the answer is the rate that the deployment reaches when it is
    kept full, times the number of equal ``engines``. Traces, bursts and closed loops have no steady rate and are never
    called saturated.
    """
    if workload.rate is None or not backlog_grows(record):
        return None
    capacity = engines * full_rate(replica, workload)
    return Saturation(workload.rate, capacity) if workload.rate > capacity else None


def full_rate(replica: Replica, workload: Workload) -> float:
    """Requests a second that a deployment finishes while every one that ends is replaced by another."""
    concurrency = replica.limits.max_num_seqs
    requests = (replace(request, arrival=0.0) for request in islice(cycle(workload.requests), ROUNDS * concurrency))
    record = simulate(replica, Workload(tuple(requests), concurrency=concurrency))
    ends = np.sort(record.last_token)
    # Leave out the common start, in which nobody ends, and the last third, in which nobody follows.
    first, last = ends.size // 10, (6 * ends.size) // 10
    return float((last - first) / (ends[last] - ends[first]))


def backlog_grows(record: Record | Served) -> bool:
    """Whether more than a tenth of the requests of the second half stayed in the system when the last one came."""
    end = float(record.sent_at.max())
    half = (float(record.sent_at.min()) + end) / 2
    num_arrived = int(np.count_nonzero(record.sent_at > half))
    growth = record.in_system_at(end) - record.in_system_at(half)
    return record.in_system_at(end) > 30 and growth > 0.1 * num_arrived
