"""Request by request: how far each one is off, and whether they come out in the right order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.serve import Record
from infercast.validate.measured import MeasuredRun

FEWEST = 5
"""An order of fewer requests says nothing."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Absolute errors of single requests as fractions of what was measured."""

    ttft_median: float
    ttft_p90: float
    tpot_median: float | None
    """None where no request has a second token."""
    tpot_p90: float | None
    start_order: float | None
    """Spearman's rank correlation of the moments of first tokens; None for a handful of requests."""
    ttft_order: float | None
    """The same of the times to first token: who waits long, and who does not."""


def scatter_of(run: MeasuredRun, record: Record) -> Scatter:
    """Both sides are in order of arrival, so requests face each other."""
    ttft = np.abs(record.ttft / run.ttft - 1)
    tpot = np.abs(record.tpot / run.tpot - 1) if run.tpot.size else None
    first_measured = run.ttft + np.array([request.arrival for request in run.workload.requests])
    return Scatter(
        ttft_median=float(np.median(ttft)),
        ttft_p90=float(np.quantile(ttft, 0.9)),
        tpot_median=None if tpot is None else float(np.median(tpot)),
        tpot_p90=None if tpot is None else float(np.quantile(tpot, 0.9)),
        start_order=rank_correlation(first_measured, record.first_token),
        ttft_order=rank_correlation(run.ttft, record.ttft),
    )


def rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float | None:
    """Spearman's; equal values share their mean rank. None for too few, or where one side is all the same."""
    if first.size < FEWEST:
        return None
    ranks = [_ranks(values) for values in (first, second)]
    spread = [float(np.std(each)) for each in ranks]
    if 0.0 in spread:
        return None
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spread[0] * spread[1]))


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
