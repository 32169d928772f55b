"""Steady state, saturation and capacity: is a run long enough, does a deployment keep up with its load.

The steady part lies between ramp-up and drain. The ramp-up ends where the mean number of requests in the system, cut
off up to there, has the least variance (MSER; White, 1997); in a closed loop, no earlier than the first request of each
client. A run without a given length goes on until that part is long enough: the number in the system no longer grows,
and the medians of TTFT and TPOT are known to `PRECISION` by the means of batches.

*stable*: requests are served as fast as they come. *filling*: their number still grew in a run that was too short.
*overloaded*: the queue grows for as long as requests come. *backlogged*: a trace's queue takes long to clear.

Capacity is the rate of an engine that is kept full; its first requests are in the middle of their answers, else all
would end together. Random requests are drawn again: a thousand of them differ by a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice, product
from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np

from infercast.forecast.slo import Array, Slo, quantile
from infercast.forecast.uncertainty import Batches, redraw
from infercast.lazy_classes import NamedTuple
from infercast.serve import Record, Replica, Request, Workload, simulate
from infercast.serve.record import ServedRequests
from infercast.units import format_seconds

if TYPE_CHECKING:
    from infercast.forecast.sketch import Sketch

BINS = 100  # Equal stretches of the time in which requests arrive
RESIDENCES = 5  # Least length of a steady part in residence times; a shorter one depends on how it began
SETTLING, SETTLED, FIRST = 3, 5, 50
"""A busy engine settles within ``R * R / R0``, of the times that a request stays (``R``) and stays alone (``R0``). A
steady part begins no earlier than three times what that is above ``R``, and lasts for five times it."""
LEAST_REQUESTS = 100  # Fewer show no percentile
GROWTH, FAR_GROWTH = 0.05, 0.5
"""A number in the system that grows by more than this between halves, and than by chance, is not steady; the second
beside a sketch that does not grow (without end it were 2)."""
FILLS, MUCH = 3.0, 0.25  # A run of so many residence times has filled up, unless its last third has this share more
STAYS = 90  # Requests still come for this percentile of the residence time after the last one that counts
GROUPS = 20  # Groups of a part, to estimate its noise
PRECISION, TAIL_PRECISION, LIMITED_PRECISION, LIMIT_PRECISION = 0.014, 0.25, 0.1, 0.04
"""Standard errors that a run goes on for: of the medians of TTFT and TPOT, of their 99th percentiles, and of what an
SLO limits, twice: the second unless it is clear on which side of its limit it lies ..."""
CLEAR, RATE_PRECISION = 2.5, 0.007  # ... by so many standard errors; and of tokens per second, unless there is a rate
ROUGH_LIMITS = 2.0
"""What an SLO limits may be off by so many times as much in a run that is made to decide about it alone. Such a run is
no longer than one that shows by itself whether it keeps up (`LONG`)."""
MOST_REQUESTS, MOST_FOR_PRECISION, MOST_BESIDE, MOST_STRETCHES = 50_000, 20_000, 12_000, 400_000
"""Limits of a run: requests, requests once it is steady and only precision is missing (with a sketch beside it, fewer
know as much), and planned batches."""
MOST_IN_LOOP, ROUNDS = 4_000, 50
"""Waves of a closed loop with requests of one length never even out: it is cut at these requests, or per client."""
NEARLY, AGAIN, ONWARD, EVENING = 1.2, (1.5, 6.0), (1.2, 3.0), 1.3
"""Factors on a run's length: below the first it stays; else longer within the next two, or going on, within the two
after; and at least the last where only what a sketch shows is far from the long run."""
ASKED, ENOUGH, OVERLOAD, CUT, MISSED, LATE = "asked", "precise", "overloaded", "limit", "missed", "time"
"""Why a run ends: given length, well known, no length helps, too long; a plan's candidate misses the SLO; no time."""
MOST_ROUND, MOST_STEP_BY_STEP = 1000, 300
"""Of a longer workload only this many requests are served, with the same mean lengths."""
DRAWN, SEED = 10_000, 20  # Number and seed of random requests that are drawn again for it
CHOICES = 100  # Random subsets that are compared
STABLE, FILLING, BACKLOGGED, OVERLOADED = "stable", "filling", "backlogged", "overloaded"
FEW, FEW_OF_ALL = 10, 0.02  # Requests that wait: fewer, or so small a share of all, are no backlog
LONG, SEATS, OUTGROWN = 6_000, 4, 0.02
"""A run of this many requests, and this multiple of the seats, decides by itself whether it keeps up with more than the
computed capacity: not if this share of the requests of its second half is left ..."""
LONGER, FAR_OUTGROWN = 20_000, 0.05  # ... and one of this length, whether it keeps up with less.
FAR_BEYOND, MOSTLY_LEFT = 1.15, 0.1  # A shorter run at this multiple of the capacity, with so much left, need not go on


class SteadyState(NamedTuple):
    """The part of a run between ramp-up and drain; times in seconds after the first request was sent."""

    reached: bool
    begin: float
    end: float  # When the last request that counts was sent; others come after it for about as long as one stays
    num_requests: int  # Sent in that part
    num_needed: int | None = None  # Requests that would do better, where these were few; None: none would, or these do
    obstacle: str = ""  # Why it was not reached
    settled: bool = False  # Whether requests came and went evenly, however few they were
    filled: bool = False  # Whether the number in the system had stopped growing when the last request came
    stopped: str = ASKED  # Why the run has as many requests as it has: one of the words above
    sketch: Sketch | None = None  # Beside which the requests of a run that went on were chosen

    @property
    def sentence(self) -> str:
        if self.reached:
            return f"from {self.begin:,.1f} to {self.end:,.1f} s, {self.num_requests:,} requests"
        enough = "" if self.num_needed is None else f"; about {self.num_needed:,} requests would do"
        return f"not reached: {self.obstacle}{enough}"


def find_steady(served: Record | ServedRequests, workload: Workload, known: float = 0.0) -> SteadyState:
    """The steady part, if there is one; where it begins may be ``known`` of a run that a sketch says keeps up."""
    sent = served.sent_at - served.sent_at.min()
    done = served.last_token - served.sent_at.min()
    last, residence = float(sent.max()), float((done - sent).mean())
    closed = workload.concurrency is not None
    if workload.rate is None and not closed and last < RESIDENCES * residence:
        return SteadyState(False, 0.0, last, sent.size, obstacle="requests do not come at a steady rate")
    filled = _has_filled(sent, done, last, residence)
    end = last - quantile(done - sent, STAYS / 100)
    in_system = workload.concurrency or sent.size / max(last, 1e-9) * residence
    if end < RESIDENCES * residence:
        return _too_short(sent.size, last, in_system, filled=filled)
    edges = np.linspace(0.0, end, BINS + 1)
    # The number in a closed loop never changes; there it is the answers that come in waves at first.
    level = np.histogram(done, edges)[0].astype(float) if closed else mean_in_system(sent, done, edges)
    # The ramp-up to leave out, so that the mean of the rest is known best; at most half.
    first = int(np.argmin([level[cut:].var() / (level.size - cut) for cut in range(level.size // 2 + 1)]))
    if workload.concurrency is not None:
        generation = quantile(done[np.argsort(sent)[: workload.concurrency]], STAYS / 100)
        first = min(max(first, int(np.searchsorted(edges, generation))), BINS - 1)
    relaxation = residence if closed else _relaxation(served, residence)
    begin = known or max(float(edges[first]), SETTLING * (relaxation - residence))
    first = int(np.searchsorted(edges[:-1], begin)) if known else first
    inside = int(np.count_nonzero((sent >= begin) & (sent <= end)))
    is_long = end - begin >= max(RESIDENCES * residence, SETTLED * relaxation)
    settled = first <= BINS // 2 and is_long and not _grows(level[first:], FAR_GROWTH if known else GROWTH)
    if not settled:
        times = (SETTLING + SETTLED) * relaxation / max(end, 1e-9)
        return _too_short(sent.size, last, max(in_system, times * sent.size / (3 * RESIDENCES)), filled=filled)
    if inside < LEAST_REQUESTS:
        few = "there are too few requests"
        return SteadyState(False, begin, end, inside, 2 * LEAST_REQUESTS, few, settled=True, filled=True)
    return SteadyState(True, begin, end, inside, settled=True, filled=True)


def further_requests(
    served: Record | ServedRequests, workload: Workload, steady: SteadyState, state: State, stretches: int,
    slo: Slo | None = None, medians: Callable[[], bool] = lambda: True, rejects: float = inf,
    within: tuple[float, float] = AGAIN, rough: float = 1.0,
) -> tuple[int | None, str]:  # fmt: skip
    """How many requests a longer run should have; or None, and why this one ends. ``rough``: a factor on all errors."""
    if state.word == OVERLOADED:
        return None, OVERLOAD
    count = len(workload.requests)
    if steady.reached:
        start = float(served.sent_at.min())
        batches = Batches(served, workload, start + steady.begin, start + steady.end, steady.sketch)
        precision, known = (LIMIT_PRECISION, LIMITED_PRECISION) if medians() else (ROUGH_LIMITS * LIMIT_PRECISION, inf)

        def longer() -> tuple[float, float]:
            """A factor on the length of the steady part, and by how many errors a limit is missed."""
            limits = [] if slo is None else [*_for_slo(batches, slo, precision, known)]
            asked = [times for times, _ in limits]
            if medians():
                for name, (fraction, target) in product(("ttft", "tpot"), ((0.5, PRECISION), (0.99, TAIL_PRECISION))):
                    asked.append((batches.error(name, fraction) / target) ** 2)
                asked.append((batches.rate_error() / RATE_PRECISION) ** 2)
            return max(asked, default=0.0) / rough**2, max((missed for _, missed in limits), default=-inf)

        times, missed = longer()
        if times <= NEARLY:
            return None, ENOUGH
        if missed >= rejects:
            return None, MISSED
        if steady.sketch is not None:
            batches.evened = True
            times = max(longer()[0], EVENING)
    else:
        times = (steady.num_needed or 2 * count) / count
    wanted = count * min(max(1.15 * times, within[0]), within[1])
    precise = MOST_FOR_PRECISION if workload.concurrency is None else max(MOST_IN_LOOP, ROUNDS * workload.concurrency)
    precise = min(precise, MOST_FOR_PRECISION if steady.sketch is None else MOST_BESIDE)
    requests = precise if steady.reached else MOST_REQUESTS
    requests = requests if medians() else min(requests, LONG)
    most = min(float(requests), count * MOST_STRETCHES / max(stretches, 1))
    return (None, CUT) if most < 1.1 * count else (two_digits(min(wanted, most)), "")


def _for_slo(batches: Batches, slo: Slo, precision: float, known: float) -> Iterator[tuple[float, float]]:
    """For each limit the factor on the length that decides about it, and the errors that it is missed by."""
    for limit in slo.limits:
        values, fraction = batches.values[limit.quantity], None if limit.percentile is None else limit.percentile / 100
        if values.size:
            value = float(values.mean()) if fraction is None else quantile(values, fraction)
            error = batches.error(limit.quantity, fraction)
            room = log(limit.seconds / max(value, 1e-12))
            sure, missed_by = abs(room) / CLEAR, -room / max(error, 1e-12)
            yield (error / min(max(precision, sure), known)) ** 2, missed_by


def _has_filled(sent: Array, done: Array, last: float, residence: float) -> bool:
    """Whether a run is some times as long as requests stay, and no more of them are there at its end than before."""
    if last < FILLS * residence:
        return False
    level = mean_in_system(sent, done, np.linspace(0.0, last, 4))
    chance = np.sqrt(2.0 * max(level[1], 0.0) / max(1.0, last / 3 / residence))
    return bool(level[2] - level[1] <= max(MUCH * level[1], 2.0 * chance))


def _relaxation(served: Record | ServedRequests, residence: float) -> float:
    """Seconds in which the number in an engine gets most of the way to its level, from how much requests slow down."""
    first = np.argsort(served.sent_at, kind="stable")[:FIRST]
    gaps = served.num_output - 1
    wait = quantile((served.first_token - served.sent_at)[first], 0.2)
    long = first[gaps[first] >= max(1.0, float(np.median(gaps[first])))]
    pace = ((served.last_token - served.first_token)[long] / gaps[long]).min() if long.size else 0.0
    return residence * max(1.0, residence / max(float(wait + pace * gaps.mean()), 1e-12))


def _too_short(num_requests: int, end: float, in_system: float, *, filled: bool) -> SteadyState:
    """A run that needs several times as many requests as are in the system at one time, or at least twice its own."""
    needed = max(3 * RESIDENCES * in_system, 2.0 * num_requests, 2.0 * LEAST_REQUESTS)
    long = "requests take too long for such a short run"
    return SteadyState(False, 0.0, end, num_requests, two_digits(needed), long, filled=filled)


def two_digits(needed: float) -> int:
    rounded: int = 10 ** max(0, len(str(ceil(needed))) - 2)
    return rounded * ceil(needed / rounded)


def _grows(level: Array, least: float) -> bool:
    """Whether the second half is above the first by such a share, and by more than chance would have it."""
    groups = np.array([part.mean() for part in np.array_split(level, min(GROUPS, level.size))])
    half = groups.size // 2
    before, after = groups[:half], groups[half:]
    rest = np.concatenate([before - before.mean(), after - after.mean()])
    alike = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-30)))
    chance = 2.0 * float(rest.std()) * 2.0 / np.sqrt(groups.size) * np.sqrt((1.0 + alike) / (1.0 - alike))
    grown = float(after.mean() - before.mean())
    return bool(grown > max(least * float(before.mean()), chance))


def mean_in_system(sent: Array, done: Array, edges: Array) -> Array:
    return np.asarray(np.diff(time_since(np.sort(sent), edges) - time_since(np.sort(done), edges)) / np.diff(edges))


def time_since(moments: Array, edges: Array) -> Array:
    """The sum over all moments (in order) of the time from each to each edge, where it is later."""
    sums = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, edges, side="right")
    return np.asarray(count * edges - sums[count])


def full_rate(replica: Replica, workload: Workload) -> float:
    """Requests a second that an engine finishes while others are waiting."""
    return kept_full(replica, workload, lambda requests: simulate(replica, requests))


def kept_full(
    replica: Replica, workload: Workload, serve: Callable[[Workload], Record | ServedRequests], engines: int = 1
) -> float:
    """The same of ``engines`` equal ones together, as ``serve`` runs them."""
    # Where every step is simulated by itself, fewer requests say the same to half a per cent, in a third of the time.
    step_by_step = engines > 1 or replica.stages is not None
    one_round = typical(workload, replica, MOST_STEP_BY_STEP if step_by_step else MOST_ROUND).requests
    one_round = tuple(replace(each, patience=0.0) if each.patience else each for each in one_round)
    seats = engines * num_seats(replica, one_round)
    least_counted = 300
    rounds = ceil(max(least_counted, seats / 2) / len(one_round))
    before, counted = seats + (seats // 2 if step_by_step else seats), rounds * len(one_round)
    fresh = [replace(request, arrival=0.0) for request in one_round]
    requests = [*_half_answered(one_round, seats), *islice(cycle(fresh), before - seats + counted)]
    with np.errstate(over="ignore"):  # on a GPU described as slow beyond measure, sums of times have no number
        starts = np.sort(serve(Workload(tuple(requests))).first_token)
    return counted / float(starts[before + counted - 1] - starts[before - 1])


def typical(workload: Workload, replica: Replica, most: int = MOST_ROUND) -> Workload:
    """At most so many requests with the same mean prompts, answers and blocks held over time."""
    whole = redraw(workload, replica, seed=SEED, count=DRAWN) or workload
    requests = whole.requests
    if len(requests) <= most:
        return replace(whole, drawn=None)
    inputs, outputs = (np.array([getattr(each, name) for each in requests]) for name in ("num_input", "num_output"))
    traits = np.stack([inputs, outputs, (inputs + outputs / 2) * outputs]).astype(float)
    traits /= traits.mean(axis=1, keepdims=True)
    random = np.random.default_rng(SEED)
    choices = [np.sort(random.choice(len(requests), most, replace=False)) for _ in range(CHOICES)]
    best = min(choices, key=lambda chosen: float(np.abs(traits[:, chosen].mean(axis=1) - 1.0).max()))
    return replace(whole, requests=tuple(requests[index] for index in best.tolist()), drawn=None)


def num_seats(replica: Replica, requests: tuple[Request, ...]) -> int:
    """How many sequences an engine holds at once: as many as it may plan, or as its KV cache has room for."""
    return max(1, min(replica.policy.max_num_seqs, room_for(replica, requests)))


def room_for(replica: Replica, requests: tuple[Request, ...]) -> int:
    outputs = np.array([request.num_output for request in requests], dtype=float)
    budget = replica.policy.max_num_batched_tokens
    blocks = replica.kv_shape.most_blocks(
        np.array([each.num_input + each.num_output // 2 for each in requests]), budget
    )
    # Long answers stay longer, so more of those that are there at one time have them.
    return int(replica.num_blocks / (outputs @ np.broadcast_to(blocks, outputs.shape) / outputs.sum()))


def _half_answered(requests: tuple[Request, ...], count: int) -> Iterator[Request]:
    """Requests as they would be found at some moment: the longer the likelier, at any point of their answers."""
    answered = np.cumsum([request.num_output for request in requests])
    found = np.searchsorted(answered, (np.arange(count) + 0.5) / count * answered[-1])
    golden = 0.6180339887498949  # Multiples of it, without their whole parts, are spread evenly however many there are
    for place, index in enumerate(found.tolist()):
        request = requests[index]
        done = int(place * golden % 1.0 * request.num_output)
        left = replace(request, arrival=0.0, num_input=request.num_input + done, num_output=request.num_output - done)
        yield left if request.declared is None else replace(left, declared=request.declared - done)


class State(NamedTuple):
    """How a deployment copes with what comes."""

    word: str
    capacity: float | None = None  # Requests a second that can be served; None if the run shows it is above what comes
    offered: float | None = None  # Requests a second that arrive; None without a steady rate
    to_clear: float = 0.0  # Seconds from the last arrival until the queue is empty
    assumed: str = ""  # What decides about it and is not known, with the option that says it
    queue: str = ""  # How many clients of a closed loop wait, and why, if many do

    @property
    def saturation(self) -> State | None:
        """Both rates, if it is overloaded by a steady rate."""
        if self.word != OVERLOADED or self.capacity is None or self.offered is None:
            return None
        return self

    @property
    def is_steady(self) -> bool:
        """Whether results do not depend on the length of the run, so that cost and odds make sense."""
        return self.word in (STABLE, BACKLOGGED)

    @property
    def sentence(self) -> str:
        word = f"{self.word} if {self.assumed}" if self.assumed else self.word
        if self.saturation is not None:
            return (
                f"{word}: {_three_digits(self.offered)} requests/s arrive but only about "
                f"{_three_digits(self.capacity)} requests/s can be served, so the queue grows without end and "
                "latencies have no steady value"
            )
        most = "" if self.capacity is None else f"; up to about {_three_digits(self.capacity)} requests/s can be served"
        if self.queue:
            return f"queued{word.removeprefix(self.word)}: {self.queue}"
        if self.word == STABLE:
            return f"{word}: requests are served as fast as they come{most}"
        if self.word == FILLING:
            return f"{word}: the run ended before the number of requests in the system stopped growing{most}"
        return f"{word}: the queue takes {format_seconds(self.to_clear)} to clear after the last request{most}"


def _three_digits(rate: float | None) -> str:
    """Large rates as whole numbers: 100,000 and not 1e+05."""
    assert rate is not None
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def find_state(
    replica: Replica, workload: Workload, served: Record | ServedRequests, steady: SteadyState, *, engines: int = 1,
    capacity: Callable[[], float] | None = None, is_late: Callable[[int], bool] = lambda _: False,
) -> State:  # fmt: skip
    """How ``engines`` equal ones cope; ``capacity`` computes their joint capacity if it is not the sum. A long run
    decides by itself. In a shorter one a growing queue may be that of a healthy deployment, so the capacity decides,
    unless the run proves that there is room (steady, hardly any waiting, half of the seats free at all times) or
    ``is_late``, told how many requests a capacity takes, says that there is no time.
    """
    if workload.concurrency is not None:
        return State(STABLE)
    to_clear = float(served.started_at.max() - served.sent_at.max())  # from the last arrival on
    if workload.rate is not None and workload.in_turns:
        # Sessions go on as fast as they are answered, and what a round of their prompts takes depends on their order.
        return State(STABLE if steady.filled else FILLING, offered=workload.rate, to_clear=to_clear)
    if workload.rate is None:
        return _state_of_trace(replica, workload, served, to_clear, engines)
    has_room = _has_room(replica, workload, served, engines)
    seats = engines * num_seats(replica, workload.requests)
    if has_room and (steady.settled or is_late(2 * seats + MOST_STEP_BY_STEP)):
        return State(STABLE if steady.settled or steady.filled else FILLING, offered=workload.rate)
    most = engines * full_rate(replica, workload) if capacity is None else capacity()
    rate, left, finished = workload.rate, *second_half(served)
    is_long = served.sent_at.size >= max(LONG, min(SEATS * seats, LONGER))
    if is_long and rate > most:
        is_overloaded = left > OUTGROWN
        most = most if is_overloaded else rate
    elif rate <= most:
        is_overloaded = is_long and served.sent_at.size >= LONGER and left > FAR_OUTGROWN
        most = finished if is_overloaded else most
    elif workload.open_ended:
        is_overloaded = rate > FAR_BEYOND * most and left > MOSTLY_LEFT
    else:
        is_overloaded = rate > most
    word = OVERLOADED if is_overloaded else STABLE if steady.filled and rate <= most else FILLING
    if word == STABLE and workload.drawn is None and _has_backlog(served, to_clear) and _ends_above(served):
        word = BACKLOGGED
    return State(word, most, workload.rate, to_clear)


def state_beside(workload: Workload, served: ServedRequests, capacity: Callable[[], float], state: State) -> State:
    """The state of a run with outages: a queue that they leave says nothing of how all replicas together cope."""
    if workload.rate is None or workload.in_turns or state.word == STABLE:
        return state
    most, to_clear = capacity(), float(served.started_at.max() - served.sent_at.max())
    word = OVERLOADED if workload.rate > most else BACKLOGGED if _has_backlog(served, to_clear) else STABLE
    return State(word, most, workload.rate, to_clear)


def second_half(served: Record | ServedRequests) -> tuple[float, float]:
    """The share of the second half's requests by which their number in the system grew, and those finished a second."""
    start, end = float(served.sent_at.min()), float(served.sent_at.max())
    half = (start + end) / 2
    late = int(np.count_nonzero(served.sent_at > half))
    left = served.in_system_at(end) - served.in_system_at(half)
    return left / max(late, 1), (late - left) / max(end - half, 1e-9)


def judged(steady: SteadyState, state: State) -> SteadyState:
    """The steady part, which no deployment has that is overloaded or not known to keep up, however even it looks."""
    if state.word == OVERLOADED:
        beyond = "requests come faster than they can be served"
        return steady._replace(reached=False, settled=False, num_needed=None, obstacle=beyond)
    if state.word == FILLING and steady.reached:
        near = "requests come about as fast as they can be served, and the run is too short to decide"
        return steady._replace(reached=False, num_needed=LONG, obstacle=near)
    return steady


def _state_of_trace(
    replica: Replica, workload: Workload, served: Record | ServedRequests, to_clear: float, engines: int
) -> State:
    """The state of a trace; with shared prefixes it is not checked for overload, since hits depend on the order."""
    if not _has_backlog(served, to_clear):
        return State(STABLE, to_clear=to_clear)
    start, end = float(served.sent_at.min()), float(served.sent_at.max())
    if second_half(served)[0] <= 0.1 or workload.has("prefix"):
        return State(BACKLOGGED, to_clear=to_clear)
    capacity = engines * full_rate(replica, workload)
    word = OVERLOADED if served.sent_at.size / (end - start) > capacity else BACKLOGGED
    return State(word, capacity, to_clear=to_clear)


def _has_room(replica: Replica, workload: Workload, served: Record | ServedRequests, engines: int) -> bool:
    """Whether half of the seats were free at all times and hardly any request had to wait."""
    sent, started, done = served.sent_at, served.started_at, served.last_token
    most = engines * num_seats(replica, workload.requests)
    changes = np.repeat([1, -1], sent.size)[np.argsort(np.concatenate([sent, done]), kind="stable")]
    waiting, staying = float((started - sent).sum()), float((done - sent).sum())
    return int(np.cumsum(changes).max()) < 0.5 * most and waiting < 0.1 * staying


def _has_backlog(served: Record | ServedRequests, to_clear: float) -> bool:
    """Whether those that wait when the last request comes take longer to be started than one takes to be served."""
    num_waiting = int(np.count_nonzero(served.started_at > served.sent_at.max()))
    enough = max(FEW, FEW_OF_ALL * served.sent_at.size)
    return num_waiting >= enough and to_clear > float(np.median(served.last_token - served.started_at))


def _ends_above(served: Record | ServedRequests) -> bool:
    """Whether more requests are in the system when the last one comes than there were on average, by far."""
    start, end = float(served.sent_at.min()), float(served.sent_at.max())
    stayed = np.minimum(served.last_token, end) - served.sent_at
    average = float(stayed.sum()) / max(end - start, 1e-9)
    far_above = 3.0  # A queue by chance has a length of three times its mean one time in twenty
    return served.in_system_at(end) > far_above * average
