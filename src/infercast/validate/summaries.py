"""A run summed up, simulated and measured by the same definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.latency import FRACTIONS, NAMES
from infercast.serve import Record
from infercast.validate.measured import MeasuredRun

TTFT_FRACTIONS, TPOT_FRACTIONS = (0.5, 0.95, 0.99), (0.5, 0.95)
IN_RESULTS = (
    *(1 + FRACTIONS.index(each) for each in TTFT_FRACTIONS),
    *(len(NAMES) + 1 + FRACTIONS.index(each) for each in TPOT_FRACTIONS),
    -1,
)
"""Where a run's summary stands among all results that have intervals (`forecast.intervals.results`)."""


def quantile(values: npt.NDArray[Any], fraction: float) -> float:
    """The value at that rank without interpolation, as the measured summaries have it."""
    ranked = np.sort(values)
    return float(ranked[min(ranked.size - 1, int(ranked.size * fraction))])


def summary_of(record: Record) -> npt.NDArray[Any]:
    """TTFT p50, p95 and p99, TPOT p50 and p95, and output tokens a second.

    TPOT is not a number where nobody has a second token.
    """
    tpot, duration = record.tpot, float(record.last_token.max() - record.sent_at.min())
    return np.array(
        [
            *(quantile(record.ttft, fraction) for fraction in TTFT_FRACTIONS),
            *(quantile(tpot, fraction) if tpot.size else np.nan for fraction in TPOT_FRACTIONS),
            record.num_output.sum() / duration,
        ]
    )


def measured_summary(run: MeasuredRun) -> npt.NDArray[Any]:
    """The same as it was measured."""
    return np.array(
        [
            *(quantile(run.ttft, fraction) for fraction in TTFT_FRACTIONS),
            *(quantile(run.tpot, fraction) if run.tpot.size else np.nan for fraction in TPOT_FRACTIONS),
            run.output_tokens_per_second,
        ]
    )
