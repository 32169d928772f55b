"""Telling a busy deployment from one that can never keep up, in one word.

*stable*: what comes is served as fast as it comes. *filling*: more and more requests were in the system up to the end
of a run that was too short, although the deployment can keep up with the rate. *overloaded*: requests come faster than
they can be served, so the queue grows for as long as they do. *backlogged*: of a trace, a queue built up that takes
long to clear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from infercast.forecast.capacity import full_rate, num_seats
from infercast.forecast.steady import SteadyState
from infercast.serve import Record, Replica, Workload
from infercast.serve.fleet.served import Served

STABLE, FILLING, BACKLOGGED, OVERLOADED = "stable", "filling", "backlogged", "overloaded"
FEW, FEW_OF_ALL = 10, 0.02
"""Requests that wait: fewer, or so small a share of all, are no backlog."""
HALF_FULL = 0.5
LONG, SEATS, OUTGROWN = 6_000, 4, 0.02
"""A run of so many requests, and of so many times the seats, shows by itself whether it keeps up with more than what
is worked out to be served: not if so large a share of what came in its second half is left ..."""
LONGER, FAR_OUTGROWN = 20_000, 0.05
"""... and one so long whether it keeps up with less."""
FAR_BEYOND, MOSTLY_LEFT = 1.25, 0.1
"""A shorter one of which more is left, at so many times what can be served, need not go on."""
FAR_ABOVE = 3.0
"""A queue by chance has a length of three times its mean one time in twenty."""


class Saturation(NamedTuple):
    """Arrivals outrun the deployment: its backlog grows for as long as they go on."""

    offered: float
    """Requests a second that arrive."""
    capacity: float
    """Requests a second that are finished when there is always another one waiting."""

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"overloaded: {_three_digits(self.offered)} requests/s arrive but only about "
            f"{_three_digits(self.capacity)} requests/s can be served, so the queue grows without end and latencies "
            "have no steady value"
        )


class State(NamedTuple):
    """How a deployment copes with what comes."""

    word: str
    capacity: float | None = None
    """Requests a second that can be served; None where the run itself shows that it is more than what comes."""
    offered: float | None = None
    """Requests a second that arrive; None without a steady rate."""
    to_clear: float = 0.0
    """Seconds from the last arrival until nobody waits any more."""

    @property
    def saturation(self) -> Saturation | None:
        """Both rates, of an overloaded deployment whose requests come at a steady rate."""
        if self.word != OVERLOADED or self.capacity is None or self.offered is None:
            return None
        return Saturation(self.offered, self.capacity)

    @property
    def is_steady(self) -> bool:
        """Whether results are those of any such run, so that a cost and odds may be told from them."""
        return self.word in (STABLE, BACKLOGGED)

    @property
    def sentence(self) -> str:
        """For people."""
        if (saturation := self.saturation) is not None:
            return saturation.sentence
        most = "" if self.capacity is None else f"; up to about {_three_digits(self.capacity)} requests/s can be served"
        if self.word == STABLE:
            return f"stable: requests are served as fast as they come{most}"
        if self.word == FILLING:
            return f"filling: the run ended before the number of requests in the system stopped growing{most}"
        return f"{self.word}: the queue takes {self.to_clear:,.3g} s to clear after the last request{most}"


def _three_digits(rate: float) -> str:
    """Large rates as whole numbers: 100,000 and not 1e+05."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def find_state(
    replica: Replica,
    workload: Workload,
    served: Record | Served,
    steady: SteadyState,
    *,
    engines: int = 1,
    capacity: Callable[[], float] | None = None,
) -> State:
    """How ``engines`` equal ones cope; ``capacity`` tells what they serve together if it is not just their sum.

    A queue that grows is a sign of overload, but a short run of a healthy deployment shows it too, and an engine with
    room for a thousand sequences takes in far too many requests before anybody waits. So a long run tells by itself. Of
    a shorter one the rate that the deployment reaches when it is kept full decides, which is worked out unless the run
    proves that there is room: it was steady, next to nobody waited and half of the seats were free at all times. That
    rate may be several per cent off, and an engine may serve more with fewer requests in it; a run that decides its own
    length goes on where it matters.
    """
    if workload.concurrency is not None:
        return State(STABLE)
    to_clear = _seconds_to_clear(served)
    if workload.rate is not None and workload.in_turns:
        # Sessions go on as fast as they are answered, and what a round of their prompts takes depends on their order.
        return State(STABLE if steady.filled else FILLING, offered=workload.rate, to_clear=to_clear)
    if workload.rate is None:
        return _state_of_trace(replica, workload, served, to_clear, engines)
    if steady.settled and _has_room(replica, workload, served, engines):
        return State(STABLE, offered=workload.rate)
    most = engines * full_rate(replica, workload) if capacity is None else capacity()
    rate, left, finished = workload.rate, *_second_half(served)
    is_long = served.sent_at.size >= max(LONG, SEATS * engines * num_seats(replica, workload.requests))
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


def _second_half(served: Record | Served) -> tuple[float, float]:
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
        near = "requests come about as fast as they can be served, and the run is too short to tell"
        return steady._replace(reached=False, num_needed=LONG, obstacle=near)
    return steady


def _state_of_trace(
    replica: Replica, workload: Workload, served: Record | Served, to_clear: float, engines: int
) -> State:
    """The same where requests come as they came once: what they do to an engine is known, however long they wait.

    A trace whose queue grows to its end, at more than can be served, is overloaded, too. With shared prefixes that is
    not asked: what is found in the cache depends on the order, and a round would find all of the round before.
    """
    if not _has_backlog(served, to_clear):
        return State(STABLE, to_clear=to_clear)
    start, end = float(served.sent_at.min()), float(served.sent_at.max())
    half = (start + end) / 2
    num_late = int(np.count_nonzero(served.sent_at > half))
    grows = served.in_system_at(end) - served.in_system_at(half) > 0.1 * num_late > 0
    if not grows or any(request.prefix for request in workload.requests):
        return State(BACKLOGGED, to_clear=to_clear)
    capacity = engines * full_rate(replica, workload)
    word = OVERLOADED if served.sent_at.size / (end - start) > capacity else BACKLOGGED
    return State(word, capacity, to_clear=to_clear)


def _has_room(replica: Replica, workload: Workload, served: Record | Served, engines: int) -> bool:
    """Whether half of the seats were free at all times and next to nobody had to wait."""
    sent, started, done = served.sent_at, served.started_at, served.last_token
    most = engines * num_seats(replica, workload.requests)
    times = np.concatenate([sent, done])
    changes = np.repeat([1, -1], sent.size)[np.argsort(times, kind="stable")]
    waiting, staying = float((started - sent).sum()), float((done - sent).sum())
    return int(np.cumsum(changes).max()) < HALF_FULL * most and waiting < 0.1 * staying


def _seconds_to_clear(served: Record | Served) -> float:
    """From the last arrival until the last request is started."""
    return float(served.started_at.max() - served.sent_at.max())


def _has_backlog(served: Record | Served, to_clear: float) -> bool:
    """Whether those that wait when the last request comes take longer to be started than one takes to be served."""
    end = served.sent_at.max()
    num_waiting = int(np.count_nonzero(served.started_at > end))
    enough = max(FEW, FEW_OF_ALL * served.sent_at.size)
    return num_waiting >= enough and to_clear > float(np.median(served.last_token - served.started_at))


def _ends_above(served: Record | Served) -> bool:
    """Whether more requests are in the system when the last one comes than there were on average, by far."""
    start, end = float(served.sent_at.min()), float(served.sent_at.max())
    stayed = np.minimum(served.last_token, end) - served.sent_at
    average = float(stayed.sum()) / max(end - start, 1e-9)
    return served.in_system_at(end) > FAR_ABOVE * average
