"""Whether a run reached a steady state, from when to when it was in one, and how long it must be.

A run begins with an empty engine that fills up and ends with one that empties. What users of a deployment that is
always on would see lies between: from the end of the ramp-up to a moment after which requests still come for about as
long as one stays, so that those that are counted are not served by an engine that empties. The ramp-up ends where the
number of requests in the system, cut off up to there, is known best (the rule MSER of White, 1997: least variance of
its mean); in a closed loop, where that number never changes, no earlier than the first request of each client.

A run whose length nobody chose goes on until that part is long enough: the number in the system no longer grows, and
the medians of TTFT and TPOT are known to `PRECISION` by the means of batches (`luck`). It is simulated anew with more
of the same requests, of which the shorter run is the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals.luck import Batches
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served

if TYPE_CHECKING:
    from infercast.forecast.slo import Slo

Array = npt.NDArray[Any]

BINS = 100
"""Equal stretches of the time in which requests arrive."""
RESIDENCES = 5
"""A steady part must be as long as a request stays, so many times; a shorter one is ruled by how it began."""
SETTLING, SETTLED, FIRST = 3, 5, 50
"""A busy engine settles slowly: decode steps of ``a + b n`` seconds for n requests let their number approach its level
within the time ``R`` that one stays times ``R / R0``, ``R0`` being that of a request alone. A steady part begins no
earlier than three times what that is above ``R``, and lasts for five times it. The first requests of a run show what
one alone takes."""
LEAST_REQUESTS = 100
"""Fewer show no percentile."""
GROWTH = 0.05
"""A number in the system that grows by more than this share from one half of a part to the next, and by more than
chance makes of it, is not steady."""
FILLS, MUCH = 3.0, 0.25
"""A run that is so many times as long as a request stays has filled up, unless there are so much more in its last third
than in the one before."""
STAYS = 90
"""Requests still come for as long after the last one that counts as so many per cent of all requests stay."""
GROUPS = 20
"""Stretches of a part that tell what chance does."""
PRECISION, TAIL_PRECISION, LIMIT_PRECISION = 0.014, 0.25, 0.04
"""Standard errors that a run goes on for: of the medians of TTFT and TPOT, of their 99th percentiles, and of what an
SLO limits unless it is clear on which side of its limit it lies ..."""
CLEAR, RATE_PRECISION = 2.5, 0.007
"""... by so many standard errors; and of tokens a second, where requests do not come at a rate of their own."""
MOST_REQUESTS, MOST_FOR_PRECISION, MOST_STRETCHES = 50_000, 20_000, 400_000
"""A run is cut at so many requests, at fewer where it is steady and only chance is left, or at so many batches that
were planned."""
NEARLY, LEAST_TIMES, MOST_TIMES = 1.2, 1.5, 6.0
"""A run that should be so many times as long is left as it is; the next one is so many times as long at least, and at
most."""
ASKED, ENOUGH, OVERLOAD, CUT = "asked", "precise", "overloaded", "limit"
"""Why a run ends where it does: so many requests were asked for, results are known well, no length would help, or it
would take too long."""


class SteadyState(NamedTuple):
    """The part of a run between ramp-up and drain; times in seconds after the first request was sent."""

    reached: bool
    begin: float
    end: float
    """When the last request that counts was sent; others come after it for about as long as one stays."""
    num_requests: int
    """Sent in that part."""
    num_needed: int | None = None
    """How many requests would do, where there were too few; None: no number would, or these do."""
    obstacle: str = ""
    """Why it was not reached."""
    settled: bool = False
    """Whether requests came and went evenly, however few they were."""
    filled: bool = False
    """Whether the number in the system had stopped growing when the last request came, as far as so few tell."""
    stopped: str = ASKED
    """Why the run has as many requests as it has: one of the four words above."""

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
    last, residence = float(sent.max()), float((done - sent).mean())
    closed = workload.concurrency is not None
    if workload.rate is None and not closed and last < RESIDENCES * residence:
        return SteadyState(False, 0.0, last, sent.size, obstacle="requests do not come at a steady rate")
    filled = _has_filled(sent, done, last, residence)
    end = last - float(np.percentile(done - sent, STAYS))
    in_system = workload.concurrency or sent.size / max(last, 1e-9) * residence
    if end < RESIDENCES * residence:
        return _too_short(sent.size, last, in_system, filled=filled)
    edges = np.linspace(0.0, end, BINS + 1)
    # The number in a closed loop never changes; there it is the answers that come in waves at first.
    level = np.histogram(done, edges)[0].astype(float) if closed else mean_in_system(sent, done, edges)
    first = _ramp_up(level)
    if workload.concurrency is not None:
        generation = np.percentile(done[np.argsort(sent)[: workload.concurrency]], STAYS)
        first = min(max(first, int(np.searchsorted(edges, generation))), BINS - 1)
    relaxation = residence if closed else _relaxation(served, residence)
    begin = max(float(edges[first]), SETTLING * (relaxation - residence))
    inside = int(np.count_nonzero((sent >= begin) & (sent <= end)))
    is_long = end - begin >= max(RESIDENCES * residence, SETTLED * relaxation)
    settled = first <= BINS // 2 and is_long and not _grows(level[first:])
    if not settled:
        times = (SETTLING + SETTLED) * relaxation / max(end, 1e-9)
        return _too_short(sent.size, last, max(in_system, times * sent.size / (3 * RESIDENCES)), filled=filled)
    if inside < LEAST_REQUESTS:
        few = "there are too few requests"
        return SteadyState(False, begin, end, inside, 2 * LEAST_REQUESTS, few, settled=True, filled=True)
    return SteadyState(True, begin, end, inside, settled=True, filled=True)


def further_requests(
    served: Record | Served,
    workload: Workload,
    steady: SteadyState,
    stretches: int,
    slo: Slo | None = None,
    medians: bool = True,
) -> tuple[int | None, str]:
    """How many requests a run should have instead, in which so many batches were planned; or None, and why not more."""
    count = len(workload.requests)
    if steady.reached:
        start = float(served.sent_at.min())
        batches = Batches(served, workload, start + steady.begin, start + steady.end)
        asked = [*(_for_medians(batches) if medians else ()), *(() if slo is None else _for_slo(batches, slo))]
        times = max(asked, default=0.0)
        if times <= NEARLY:
            return None, ENOUGH
    else:
        times = (steady.num_needed or 2 * count) / count
    wanted = count * min(max(1.15 * times, LEAST_TIMES), MOST_TIMES)
    requests = MOST_FOR_PRECISION if steady.reached else MOST_REQUESTS
    most = min(float(requests), count * MOST_STRETCHES / max(stretches, 1))
    return (None, CUT) if most < 1.1 * count else (two_digits(min(wanted, most)), "")


def _for_medians(batches: Batches) -> Iterator[float]:
    """How many times as long a steady part would have to be for each percentile that is always told."""
    for name in ("ttft", "tpot"):
        for fraction, target in ((0.5, PRECISION), (0.99, TAIL_PRECISION)):
            yield (batches.error(name, fraction) / target) ** 2
    yield (batches.rate_error() / RATE_PRECISION) ** 2


def _for_slo(batches: Batches, slo: Slo) -> Iterator[float]:
    """The same for what is promised."""
    for limit in slo.limits:
        values, fraction = batches.values[limit.quantity], None if limit.percentile is None else limit.percentile / 100
        if values.size:
            value = float(values.mean() if fraction is None else np.percentile(values, 100 * fraction))
            error = batches.error(limit.quantity, fraction)
            is_clear = abs(log(limit.seconds / max(value, 1e-12))) > CLEAR * error
            yield 0.0 if is_clear else (error / LIMIT_PRECISION) ** 2


def _has_filled(sent: Array, done: Array, last: float, residence: float) -> bool:
    """Whether a run is some times as long as requests stay, and no more of them are there at its end than before."""
    if last < FILLS * residence:
        return False
    level = mean_in_system(sent, done, np.linspace(0.0, last, 4))
    chance = np.sqrt(2.0 * max(level[1], 0.0) / max(1.0, last / 3 / residence))
    return bool(level[2] - level[1] <= max(MUCH * level[1], 2.0 * chance))


def _relaxation(served: Record | Served, residence: float) -> float:
    """Seconds in which the number in an engine gets most of the way to its level, from how much requests slow down."""
    first = np.argsort(served.sent_at, kind="stable")[:FIRST]
    gaps = served.num_output - 1
    wait = np.percentile((served.first_token - served.sent_at)[first], 20)
    long = first[gaps[first] >= max(1.0, float(np.median(gaps[first])))]
    pace = ((served.last_token - served.first_token)[long] / gaps[long]).min() if long.size else 0.0
    return residence * max(1.0, residence / max(float(wait + pace * gaps.mean()), 1e-12))


def _too_short(num_requests: int, end: float, in_system: float, *, filled: bool) -> SteadyState:
    """A run that needs several times as many requests as are in the system at one time, or at least twice its own."""
    needed = max(3 * RESIDENCES * in_system, 2.0 * num_requests, 2.0 * LEAST_REQUESTS)
    long = "requests stay too long for so short a run"
    return SteadyState(False, 0.0, end, num_requests, two_digits(needed), long, filled=filled)


def two_digits(needed: float) -> int:
    """A number of requests, rounded up."""
    rounded: int = 10 ** max(0, len(str(ceil(needed))) - 2)
    return rounded * ceil(needed / rounded)


def _ramp_up(level: Array) -> int:
    """How many stretches to leave out so that the mean of the others is known best; at most half of them."""
    spreads = [level[first:].var() / (level.size - first) for first in range(level.size // 2 + 1)]
    return int(np.argmin(spreads))


def _grows(level: Array) -> bool:
    """Whether the second half is above the first, by more than chance would have it."""
    groups = np.array([part.mean() for part in np.array_split(level, min(GROUPS, level.size))])
    half = groups.size // 2
    before, after = groups[:half], groups[half:]
    rest = np.concatenate([before - before.mean(), after - after.mean()])
    alike = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-30)))
    chance = 2.0 * float(rest.std()) * 2.0 / np.sqrt(groups.size) * np.sqrt((1.0 + alike) / (1.0 - alike))
    grown = float(after.mean() - before.mean())
    return bool(grown > max(GROWTH * float(before.mean()), chance))


def mean_in_system(sent: Array, done: Array, edges: Array) -> Array:
    """Requests in the system in each stretch, on average."""
    return np.asarray(np.diff(time_since(np.sort(sent), edges) - time_since(np.sort(done), edges)) / np.diff(edges))


def time_since(moments: Array, edges: Array) -> Array:
    """The sum over all moments (in order) of the time from each to each edge, where it is later."""
    sums = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, edges, side="right")
    return np.asarray(count * edges - sums[count])
