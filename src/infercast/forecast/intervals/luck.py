"""What the draw of arrivals and lengths does to results: another seed gives other requests, and other latencies.

Of the steady part of a run its own batches tell (`steady_luck`): requests that follow each other are put into twenty
batches, and what their means differ by says how well the mean of all is known, or the share below a percentile.
Batches that are alike to their neighbours count for less. The interval is that of an endless run.

Of a run of so many requests, ramp-up and drain included, the interval is that of another such run (`luck_of`). A few
further workloads are drawn and served, mostly shorter than the run itself. If requests had nothing to do with each
other, the spread of a mean or a percentile over such draws would follow from the distribution of the latency alone. A
queue makes them alike, so the spread is larger: by which factor is read off the draws, and the same factor is applied
to a run of full length. docs/validation.md says how often the result of another seed lies within.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
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
BATCHES, STUDENT_OF_BATCHES = 20, 1.328
"""Of a steady part, and the standard errors on either side that hold 80 % where so many tell the error."""
STRATA, LEAST_KEPT = 50, 2 * BATCHES
LEAST = 1e-8
"""A variance (of logarithms) that nobody cares about."""


class Batches:
    """The requests of a steady part in the order in which they were sent, in twenty batches.

    Where all requests of a run together come at just the rate and have just the lengths of what they are drawn from
    (``spread_out``), what a batch shows because it got more or longer ones than others is no error of the whole: it is
    left out, as far as it follows from the load of a batch and of the one before it, and from the lengths of prompts.
    """

    def __init__(self, served: Record | Served, workload: Workload, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        inside = np.flatnonzero((served.sent_at >= begin) & (served.sent_at <= end))
        self.inside = inside[np.argsort(served.sent_at[inside], kind="stable")]
        self.several = served.num_output[self.inside] > 1
        span = (served.last_token - served.first_token)[self.inside][self.several]
        self.values = {
            "ttft": served.ttft[self.inside],
            "tpot": span / (served.num_output[self.inside][self.several] - 1),
            "e2e": served.end_to_end[self.inside],
        }
        self._workload, self._served = workload, served
        self.is_spread_out = workload.drawn is not None and workload.drawn.spread_out and self.inside.size >= LEAST_KEPT

    @cached_property
    def _places(self) -> Array:
        """The batch of each request."""
        return np.arange(self.inside.size) * BATCHES // max(self.inside.size, 1)

    @cached_property
    def _inputs(self) -> Array:
        requests = self._workload.requests
        return np.array([requests[index].num_input for index in self.inside.tolist()], dtype=float)

    @cached_property
    def _controls(self) -> Array:
        """What is known of the sum over all batches: their prompts, answers and, at a rate, seconds; off their means.

        The seconds of the batch before count, too: whoever came then is still there.
        """
        outputs = self._served.num_output[self.inside].astype(float)
        known = [np.bincount(self._places, each, BATCHES) for each in (self._inputs, outputs)]
        if self._workload.rate is not None:
            sent = self._served.sent_at[self.inside]
            seconds = np.diff([*sent[np.searchsorted(self._places, np.arange(BATCHES))], self.end])
            known += [seconds, np.roll(seconds, 1)]
        return np.column_stack([np.ones(BATCHES), *(each / each.mean() - 1.0 for each in known)])

    @cached_property
    def _strata(self) -> Array:
        """Parts of the requests by the length of their prompts, about as large as each other; equals are together."""
        edges = np.unique(np.quantile(self._inputs, np.arange(1, STRATA) / STRATA))
        return np.searchsorted(edges, self._inputs)

    def error(self, name: str, fraction: float | None) -> float:
        """The standard error (of the logarithm) of the mean of a latency, or of a percentile."""
        values, several = self.values[name], self.several if name == "tpot" else slice(None)
        if values.size < LEAST_KEPT or not values.any():
            return 0.0 if not values.size else 1.0
        middle = float(values.mean() if fraction is None else np.percentile(values, 100 * fraction))
        scored = values / middle if fraction is None else (values <= middle).astype(float)
        error = self._error(scored, self._places[several], self._strata[several] if self.is_spread_out else None)
        return error if fraction is None else _around(np.sort(values), fraction, error)

    @cached_property
    def gaps(self) -> tuple[Array, Array, Array]:
        """The batch in time of each time between tokens, and the times and how often each occurred."""
        ended, gaps, counts = self._served.timed_gaps
        inside = (ended > self.begin) & (ended <= self.end)
        places = ((ended[inside] - self.begin) / (self.end - self.begin) * BATCHES).astype(np.int64)
        return np.minimum(places, BATCHES - 1), gaps[inside], counts[inside]

    def rate_error(self) -> float:
        """The standard error of tokens a second; none where as much is served as comes, at a rate that is known."""
        if self.is_spread_out and self._workload.rate is not None:
            return 0.0
        places, _, counts = self.gaps
        tokens = np.bincount(places, counts, BATCHES)
        return error_of_mean(tokens / max(float(tokens.mean()), 1e-30))

    def _error(self, scored: Array, places: Array, strata: Array | None) -> float:
        sizes = np.maximum(np.bincount(places, minlength=BATCHES), 1)
        means = np.bincount(places, scored, BATCHES) / sizes
        whole = error_of_mean(means)
        if strata is None:
            return max(whole, sqrt(float(scored.var()) / scored.size))
        of_strata = np.bincount(strata, scored, STRATA) / np.maximum(np.bincount(strata, minlength=STRATA), 1)
        scored = scored - of_strata[strata]
        means = np.bincount(places, scored, BATCHES) / sizes
        left = means - self._controls @ np.linalg.lstsq(self._controls, means, rcond=None)[0]
        freedom = (BATCHES - 1) / (BATCHES - self._controls.shape[1])
        rest = max(error_of_mean(left) ** 2 * freedom, float(scored.var()) / scored.size)
        # What was cut off at both ends had its part of the load, too.
        cut = 1.0 - self.inside.size / len(self._workload.requests)
        return sqrt(rest + cut * max(0.0, whole**2 - rest))


def error_of_mean(means: Array) -> float:
    """The standard error of the mean of batches; those that are alike to their neighbours count for less."""
    rest = means - means.mean()
    alike = float(np.clip((rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-30), 0.0, 0.8))
    return sqrt(float(means.var(ddof=1)) / means.size * (1.0 + alike) / (1.0 - alike))


def _around(ranked: Array, fraction: float, off: float) -> float:
    """What a standard error of the share below a percentile is for the percentile itself, as a logarithm."""
    low, high = (np.clip(ranked.size * level, 0, ranked.size - 1) for level in (fraction - off, fraction + off))
    return float(np.log(ranked[int(high)] / max(float(ranked[int(low)]), 1e-12)) / 2)


def steady_luck(served: Record | Served, workload: Workload, begin: float, end: float) -> Array:
    """Half widths of 80 % intervals (logarithms) of what an endless run would show, from a steady part of this one."""
    batches, fractions = Batches(served, workload, begin, end), (None, *FRACTIONS)
    ttft, tpot, whole = ([batches.error(name, each) for each in fractions] for name in ("ttft", "tpot", "e2e"))
    places, gaps, counts = batches.gaps
    of_tokens = [_gaps_error(gaps, counts, places, each) for each in fractions]
    rate = batches.rate_error()
    return STUDENT_OF_BATCHES * np.array([*ttft, *tpot, *of_tokens, *whole, rate])


def _gaps_error(gaps: Array, counts: Array, places: Array, fraction: float | None) -> float:
    """The same of times between tokens, each of which occurred so often in one of the batches."""
    totals = np.bincount(places, counts, BATCHES)
    if not gaps.size or not totals.all():
        return 0.0
    if fraction is None:
        means = np.bincount(places, counts * gaps, BATCHES) / totals
        return error_of_mean(means / means.mean())
    order = np.argsort(gaps)
    shares = np.cumsum(counts[order]) / counts.sum()
    ranked = gaps[order]
    middle = ranked[np.searchsorted(shares, fraction)]
    off = error_of_mean(np.bincount(places, counts * (gaps <= middle), BATCHES) / totals)
    ends = np.clip([fraction - off, fraction + off], 0.0, 1.0 - 1e-12)
    low, high = ranked[np.searchsorted(shares, ends)].tolist()
    return float(np.log(high / max(low, 1e-12)) / 2)


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
