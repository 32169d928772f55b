"""What the draw of arrivals and lengths does to results: another seed gives other requests, and other latencies.

A few further workloads are drawn and served, mostly shorter than the run itself. If requests had nothing to do with
each other, the spread of a mean or a percentile over such draws would follow from the distribution of the latency
alone. A queue makes them alike, so the spread is larger: by which factor is read off the draws, and the same factor is
applied to a run of full length. docs/validation.md says how often the result of another seed lies within.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals.redraw import redraw
from infercast.forecast.intervals.results import chance_of
from infercast.forecast.intervals.uncertainty import EIGHTY
from infercast.forecast.latency import FRACTIONS, NAMES, percentiles
from infercast.serve import Record, Replica, Workload
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

DRAWS = 4
STUDENT = 1.533
"""Standard deviations on either side that hold 80 %, where the standard deviation is known from five draws."""
APART = 1_000_003
"""Between the seeds of two draws, so that nobody who counts seeds up meets one."""
RESIDENCES, MEMORIES = 8, 10
"""A draw must be long enough to forget its start: so many times as many requests as are in the system at one time, and
as are alike."""
LENGTHS = 128, 1024
"""A draw has so many requests at least, if the run has, and so many at most ..."""
LENGTHS_STEP_BY_STEP = 48, 128
"""... and where no stretch of steps can be jumped over, which takes ten times as long."""
LEAST = 1e-8
"""A variance (of logarithms) that nobody cares about."""


def luck_of(
    workload: Workload,
    served: Record | Served,
    replica: Replica,
    serve: Callable[[Workload], Record | Served],
    lengths: tuple[int, int] = LENGTHS,
) -> Array | None:
    """Half widths of 80 % intervals (logarithms) within which the results of another seed lie; None if none was drawn.

    ``served`` is the run itself, ``serve`` runs another workload.
    """
    count, (least, most) = len(workload.requests), lengths
    # All at once: what happens depends on how many they are.
    needed = count if workload.rate is None and workload.concurrency is None else max(least, _memory(served))
    length = min(count, most, needed)
    drawn = _draws(workload, replica, length)
    if not drawn:
        return None
    others = [serve(other) for other in drawn]
    scale, both = length / count, sqrt(2.0)  # the run itself is a draw, too
    latencies = [
        _of_latency([getattr(run, name) for run in (served, *others)], length, count)
        for name in ("ttft", "tpot", "end_to_end")
    ]
    gaps = np.var(np.log([_of_tokens(run) for run in others]), axis=0, ddof=1)
    rates = float(np.var(np.log([_rate(run, length) for run in (served, *others)]), ddof=1))
    parts = [*latencies[:2], STUDENT * np.sqrt(gaps * scale), latencies[2], [_of_rate(workload, served, rates * scale)]]
    return both * np.concatenate(parts)


def _draws(workload: Workload, replica: Replica, length: int) -> list[Workload]:
    """Workloads of other seeds."""
    seed = 0 if workload.drawn is None else workload.drawn.seed
    seeds = (seed + APART * number for number in range(1, DRAWS + 1))
    found = (redraw(workload, replica, seed=each, count=length) for each in seeds)
    return [other for other in found if other is not None]


def _memory(served: Record | Served) -> int:
    """How many requests a draw needs: some times as many as are in the system, or as go through much the same."""
    stayed, span = served.end_to_end, float(np.ptp(served.sent_at))
    in_system = float(stayed.sum()) / max(span, 1e-9)
    alike = max(_num_alike(served.ttft), _num_alike(stayed))
    return int(min(1e9, max(RESIDENCES * in_system, MEMORIES * alike)))


def _num_alike(values: Array, batches: int = 10) -> float:
    """By which factor the variance of a mean is larger than of independent values, from the means of ten batches."""
    size = values.size // batches
    if size < 2 or not values.any():
        return 1.0
    means = values[: size * batches].reshape(batches, size).mean(axis=1)
    return float(size * means.var(ddof=1) / max(values.var(), 1e-30))


def _of_latency(values: list[Array], length: int, count: int) -> Array:
    """Half widths for a run of ``count`` requests: the first of the runs, of which the others have ``length``."""
    together = np.concatenate(values)
    if not all(each.size for each in values):
        return np.zeros(len(NAMES))
    variances = np.var(np.log([percentiles(each[:length]).values for each in values]), axis=0, ddof=1)
    short, whole = _if_independent(together, length), _if_independent(together, count)
    factors = (variances + LEAST) / (short**2 + LEAST)
    # What independent requests would have is known, not read off five draws, and is the least there can be.
    return np.asarray(np.maximum(EIGHTY, STUDENT * np.sqrt(factors)) * whole)


def _of_tokens(served: Record | Served) -> tuple[float, ...]:
    """Mean and percentiles of the time between tokens."""
    gaps, counts = served.gaps
    return percentiles(gaps, counts).values if gaps.size else (1.0,) * len(NAMES)


def _rate(served: Record | Served, length: int) -> float:
    """Tokens a second up to the end of the first requests."""
    duration = float(served.last_token[:length].max() - served.sent_at.min())
    return float(served.num_output[:length].sum()) / duration


def _if_independent(values: Array, count: int) -> Array:
    """Standard deviations (of logarithms) of mean and percentiles of so many independent ones of these values."""
    mean = float(values.std() / values.mean()) / sqrt(count)
    return np.array([mean, *(chance_of(values, fraction, count) / EIGHTY for fraction in FRACTIONS)])


def _of_rate(workload: Workload, served: Record | Served, variance: float) -> float:
    """Tokens a second are what was sent a second, where requests come at a rate: gaps and lengths tell the rest."""
    if workload.rate is None:
        return STUDENT * sqrt(variance)
    gaps = np.diff(np.sort(served.sent_at), prepend=0.0)
    off = served.num_output / served.num_output.mean() - gaps / max(float(gaps.mean()), 1e-30)
    return EIGHTY * float(off.std()) / sqrt(off.size)
