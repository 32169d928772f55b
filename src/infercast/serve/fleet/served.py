"""What clients of several engines saw, put together from the engines' records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.serve.record import Record

Times = npt.NDArray[Any]


class Served:
    """Arrays over requests, in seconds. Each request was served by one of the engines."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.engine = np.zeros(records[0].last_token.size, dtype=np.int64)
        """Which engine served each request."""
        for number, record in enumerate(records):
            self.engine[~np.isnan(record.last_token)] = number
        self.sent_at = self._pick([record.sent_at for record in records])
        self.started_at = self._pick([record.started_at for record in records])
        self.first_token = self._pick([record.first_token for record in records])
        self.last_token = self._pick([record.last_token for record in records])
        self.num_output = self._pick([record.num_output for record in records])
        self.num_cached = self._pick([record.num_cached for record in records])
        self.timed_gaps: tuple[Times, Times, Times] = _join_gaps(records)

    def _pick(self, arrays: Sequence[Times]) -> Times:
        picked = arrays[0].copy()
        for number, values in enumerate(arrays):
            served = self.engine == number
            picked[served] = values[served]
        return picked

    def in_system_at(self, time: float) -> int:
        """Requests that had been sent but not fully answered at that moment."""
        return int(np.count_nonzero(self.sent_at <= time)) - int(np.count_nonzero(self.last_token <= time))

    @property
    def gaps(self) -> tuple[Times, Times]:
        """Times between tokens that follow each other in an answer, and how often each occurred."""
        return self.timed_gaps[1:]

    @property
    def ttft(self) -> Times:
        """From sending a request to its first token."""
        return np.asarray(self.first_token - self.sent_at)

    @property
    def end_to_end(self) -> Times:
        """From sending a request to its last token."""
        return np.asarray(self.last_token - self.sent_at)

    @property
    def tpot(self) -> Times:
        """Mean time between a request's tokens, for the requests that have more than one."""
        several = self.num_output > 1
        return np.asarray((self.last_token - self.first_token)[several] / (self.num_output[several] - 1))


def _join_gaps(records: Sequence[Record]) -> tuple[Times, Times, Times]:
    """Times between tokens, when each ended and how often it occurred, over all engines."""
    ended, gaps, counts = zip(*(record.timed_gaps for record in records), strict=True)
    return np.concatenate(ended), np.concatenate(gaps), np.concatenate(counts)
