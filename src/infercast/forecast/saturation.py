"""Telling a busy deployment from one that can never keep up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.serve import Record, Workload


@dataclass(frozen=True, slots=True)
class Saturation:
    """Arrivals outrun the deployment: its queue grows for as long as they go on."""

    offered: float
    """Requests a second that arrive."""
    capacity: float
    """Requests a second that are finished while the queue is never empty."""

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"saturated: {self.offered:.3g} requests/s arrive but only about {self.capacity:.3g} requests/s can be "
            "served, so the queue grows without end and latencies have no steady value"
        )


def find_saturation(workload: Workload, record: Record) -> Saturation | None:
    """Look whether the queue still grew when the last request of a steady stream arrived.

    A queue that grows in step with time is twice as long at the end of the arrivals as at their middle. Traces,
    bursts and closed loops have no steady rate and are never called saturated.
    """
    if workload.rate is None:
        return None
    last = float(record.sent_at.max())
    half = (float(record.sent_at.min()) + last) / 2
    waiting_half, waiting_last = record.waiting_at(half), record.waiting_at(last)
    num_requests = len(workload.requests)
    if waiting_last <= max(20, 0.05 * num_requests) or waiting_last < 1.5 * waiting_half:
        return None
    finished = np.count_nonzero((record.last_token > half) & (record.last_token <= last))
    return Saturation(workload.rate, finished / (last - half))
