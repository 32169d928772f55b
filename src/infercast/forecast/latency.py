"""A latency summed up: its mean and its percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FRACTIONS = (0.5, 0.9, 0.95, 0.99)
NAMES = ("mean", "p50", "p90", "p95", "p99")
"""What is said of every latency, in the order of the fields of `Percentiles`."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A latency over all requests, or over all tokens, in seconds."""

    mean: float
    """Seconds on average."""
    p50: float
    """Seconds that half of them stay below, the median."""
    p90: float
    """Seconds that 90 % stay below."""
    p95: float
    """Seconds that 95 % stay below."""
    p99: float
    """Seconds that 99 % stay below."""

    @property
    def values(self) -> tuple[float, ...]:
        """All of them in seconds, in the order of `NAMES`."""
        return self.mean, self.p50, self.p90, self.p95, self.p99


def percentiles(values: npt.NDArray[Any], counts: npt.NDArray[Any] | None = None) -> Percentiles:
    """Mean and percentiles, each value counted ``counts`` times."""
    if counts is None:
        counts = np.ones(values.size, dtype=np.int64)
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    cumulated = np.cumsum(counts)
    # The same percentiles as of the values written out: interpolated between the two ranks beside them.
    positions = np.array(FRACTIONS) * (cumulated[-1] - 1)
    ranks = np.floor(positions)
    below = values[np.searchsorted(cumulated, ranks, side="right")]
    above = values[np.searchsorted(cumulated, np.ceil(positions), side="right")]
    between = (below + (above - below) * (positions - ranks)).tolist()
    return Percentiles(float((values * counts).sum() / cumulated[-1]), *between)
