"""What intervals are given for, as one row of numbers: mean and percentiles of each latency, and tokens a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals.uncertainty import EIGHTY
from infercast.forecast.latency import FRACTIONS, NAMES, percentiles
from infercast.serve import Record
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

AROUND = 0.5
"""How far around a percentile others are looked at, as a share of what is left on its shorter side."""


def results_of(served: Record | Served) -> Array:
    """TTFT, TPOT, time between tokens, end to end and tokens a second; not a number where there is none."""
    gaps, counts = served.gaps
    summaries = [
        percentiles(values, weights).values if values.size else (np.nan,) * len(NAMES)
        for values, weights in ((served.ttft, None), (served.tpot, None), (gaps, counts), (served.end_to_end, None))
    ]
    duration = float(served.last_token.max() - served.sent_at.min())
    return np.array([*np.ravel(summaries), served.num_output.sum() / duration])


def smoothed_of(served: Record | Served) -> Array:
    """The same with percentiles as means over ranks around each: how they move hangs on fewer accidents."""
    gaps, counts = served.gaps
    rows = [
        _smoothed(values, weights) if values.size else np.full(len(NAMES), np.nan)
        for values, weights in ((served.ttft, None), (served.tpot, None), (gaps, counts), (served.end_to_end, None))
    ]
    duration = float(served.last_token.max() - served.sent_at.min())
    return np.array([*np.ravel(rows), served.num_output.sum() / duration])


def _smoothed(values: Array, counts: Array | None) -> Array:
    """The mean, and geometric means of quantiles around each percentile."""
    order = np.argsort(values)
    ranked, weights = values[order], np.ones(values.size) if counts is None else counts[order]
    reached = np.cumsum(weights) / weights.sum()
    found = [float((ranked * weights).sum() / weights.sum())]
    for fraction in FRACTIONS:
        around = fraction + AROUND * min(fraction, 1 - fraction) * np.linspace(-1, 1, 15)
        places = np.minimum(np.searchsorted(reached, around), ranked.size - 1)
        found.append(float(np.exp(np.log(np.maximum(ranked[places], 1e-12)).mean())))
    return np.array(found)


def chance_in(served: Record | Served) -> Array:
    """What the luck of ranks adds to each of these: nothing to means, to the many gaps between tokens and to rates."""
    nothing = [0.0] * len(NAMES)
    ttft, tpot, end_to_end = (
        [0.0, *(chance_of(values, fraction) for fraction in FRACTIONS)] if values.size else nothing
        for values in (served.ttft, served.tpot, served.end_to_end)
    )
    return np.array([*ttft, *tpot, *nothing, *end_to_end, 0.0])


def chance_of(values: Array, fraction: float, count: int | None = None) -> float:
    """Half the width of the 80 % interval of a percentile of ``count`` such values, as a logarithm."""
    ranked = np.sort(values)
    off = EIGHTY * np.sqrt(fraction * (1 - fraction) / (count or ranked.size))
    low, high = (np.clip(ranked.size * level, 0, ranked.size - 1) for level in (fraction - off, fraction + off))
    return float(np.log(ranked[int(high)] / ranked[int(low)]) / 2)
