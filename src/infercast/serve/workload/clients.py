"""Clients of an engine: open loop, closed loop and sessions, and the queue a loop takes their requests from."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from infercast.serve.workload.api_server import ApiServers, ServerCosts, StepLog
from infercast.serve.workload.request import Request, Workload, calls_before

Round = tuple[float, int]  # Requests an API server takes in together: when they go on, and how many still have to
NOBODY = -1  # in place of a following request

# Where an engine's requests come from.


class Arrivals(Protocol):
    sends_at_once: bool  # Whether an answer mostly leads to a request at once, so that looking further is not worth it

    @property
    def next_arrival(self) -> float | None:
        """A time before which no request reaches the engine's queue; None if none comes before an answer."""

    def move_to(self, time: float) -> None:
        """All steps up to then are known. A request that was to come by then has come, or comes later."""

    def pop(self) -> tuple[int, Request | None, float]:
        """The next request: its index, itself, and when its client sent it.

        None: its client has left, and when; NaN if it sends the request again.
        """


class Source(Arrivals, Protocol):
    """Clients of one engine, or a router in front of several."""

    wait_for_answers: bool  # Whether an answer may lead to the next request

    def answer(self, time: float, index: int) -> None: ...  # A client has its whole answer to request ``index``


class Arrival(NamedTuple):
    """A request on its way to an engine, or the news that its client has left; in the order they were sent."""

    sent: float
    number: int
    arrival: float
    request: Request


class ArrivalQueue:
    """Requests a router has sent to one engine."""

    wait_for_answers = True  # whoever drives the engine looks at each of them

    def __init__(self, *, sends_at_once: bool = False) -> None:
        self._waiting: deque[Arrival] = deque()
        self.next_arrival: float | None = None  # Of the first delivery
        self.answered: list[tuple[int, float]] = []
        """Requests that the engine has answered since its router looked, and when their clients had all tokens."""
        self.sends_at_once = sends_at_once

    def put(self, delivery: Arrival) -> None:
        if not self._waiting:
            self.next_arrival = delivery.arrival
        self._waiting.append(delivery)

    def move_to(self, time: float) -> None:
        """Deliveries come when they were said to."""

    def pop(self) -> tuple[int, Request | None, float]:
        sent, number, _, request = self._waiting.popleft()
        self.next_arrival = self._waiting[0].arrival if self._waiting else None
        return number, request, sent

    def drop(self, index: int) -> bool:
        """Take a delivery back; False if the engine has it already."""
        found = next((each for each in self._waiting if each.number == index), None)
        if found is None:
            return False
        self._waiting.remove(found)
        self.next_arrival = self._waiting[0].arrival if self._waiting else None
        return True

    def answer(self, time: float, index: int) -> None:
        """Tell the router."""
        self.answered.append((index, time))


# A workload is ``in_turns`` if its requests carry a ``session``: requests of one session follow each other in the order
# of the workload, each after the previous answer plus its ``think`` seconds (a person reading and writing, or an
# agent's tool running), or ``after`` several answers, of sub-agents say. What waits for nothing follows the clock, or
# a free client, who is free again when all is answered that its request has led to.


class Clients:
    """Releases the requests of a workload to the engines, in the order they were sent.

    ``path_seconds`` is a request's time from client to queue, ``token_seconds`` what each prompt token adds,
    ``image_seconds`` what images do, at all and for each pixel; these come on top of its time at the API ``servers``:
    in rounds, or in an event loop that sends answers as well.
    """

    def __init__(
        self, workload: Workload, path_seconds: float = 0.0, token_seconds: float = 0.0,
        costs: ServerCosts | None = None, servers: int = 1, image_seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        self.requests = dict(enumerate(workload.requests))  # That have not reached an engine
        self._num_known = len(workload.requests)
        self._path_seconds, self._token_seconds, self._image_seconds = path_seconds, token_seconds, image_seconds
        costs = ServerCosts() if costs is None else costs
        self._costs, self._in_rounds = costs, any(costs) and not costs.part
        self.servers = ApiServers(costs, servers) if costs.part else None
        self._left: deque[tuple[float, int, float]] = deque()
        """Requests that have left these: when each reaches an engine, its index, and when it was sent."""
        self._starts, self._following, self._waits, self._open = _turns_of(workload)
        self._arrivals = [self.requests[index].arrival for index in self._starts]
        self._num_begun = self._num_sent = 0
        self.further: Callable[[], Sequence[Request]] | None = None
        """Called for more requests when the last one is sent, until there are none; not for sessions."""
        # Two heaps: requests that follow an answer with their send times, and free clients of a closed loop.
        self._due: list[tuple[float, int]] = []
        self._free: list[tuple[float, int]] | None = None
        if workload.concurrency is not None:
            self._free = [(0.0, NOBODY)] * min(workload.concurrency, len(self._starts))
        self.sends_at_once = self._free is not None and not self._following
        self.wait_for_answers = self._free is not None or bool(self._following)
        self._rounds: list[Round] = [(0.0, 0)] * servers
        self._next_round = self._rounds[0]
        self._sent_at: float | None = None  # When the next request is sent ...
        self._next = NOBODY  # ... and which it is
        self.next_arrival: float | None = None
        self._look_ahead()
        self._see_next()

    def listen(self, logs: Sequence[StepLog]) -> None:
        """To the steps of the engines: the API servers send their tokens."""
        if self.servers is not None:
            self.servers.listen(logs)

    def pop(self) -> tuple[int, Request, float]:
        if self.servers is None:
            index, sent = self._send()
        else:
            _, index, sent = self._left.popleft()
            self._see_next()
        return index, self.requests.pop(index), sent

    def put(self, index: int, request: Request, now: float) -> None:
        """A request that was not known before, which a client sends now."""
        self.requests[index] = request
        self._starts.append(index)
        self._arrivals.append(now)
        self._look_ahead()
        self.move_to(now)

    def put_back(self, index: int, request: Request, now: float) -> None:
        """A client sends a request again."""
        self.requests[index] = request
        heapq.heappush(self._due, (now, index))
        self._look_ahead()
        self._see_next()

    def drop(self, index: int) -> bool:
        """The client of such a request leaves; False if an engine has it already."""
        if self.requests.pop(index, None) is None:
            return False
        if self.servers is None:
            place = self._starts.index(index, self._num_begun)
            del self._starts[place], self._arrivals[place]
            self._look_ahead()
        else:
            self._left = deque(each for each in self._left if each[1] != index)
            self._see_next()
        return True

    def move_to(self, time: float) -> None:
        """Let the API servers work up to a time of which all steps are known."""
        if (servers := self.servers) is None:
            return
        while self._sent_at is not None and self._sent_at <= time:
            servers.put(self._sent_at, self._next)
            self._send()
        for end, index, sent in servers.move_to(time):
            if index in self.requests:  # else its client has left
                self._left.append((end + self._path(index), index, sent))
        self._see_next()

    def _send(self) -> tuple[int, float]:
        sent, index = self._sent_at, self._next
        assert sent is not None
        if self._due and self._due[0] == (sent, index):
            heapq.heappop(self._due)
        else:
            self._num_begun += 1
            if self._free is not None:
                heapq.heappop(self._free)
        self._rounds[self._num_sent % len(self._rounds)] = self._next_round
        self._num_sent += 1
        self._look_ahead()
        return index, sent

    def _path(self, index: int) -> float:
        request = self.requests[index]
        seconds = self._path_seconds + self._token_seconds * request.num_input
        if not request.images:
            return seconds
        request_seconds, pixel_seconds = self._image_seconds
        return seconds + request_seconds + pixel_seconds * sum(each.pixels for each in request.images)

    def _see_next(self) -> None:
        """Set the time before which nothing comes, where API servers have to work until something does."""
        if self.servers is None:
            return
        if self._left:
            self.next_arrival = self._left[0][0]
            return
        soonest = self.servers.soonest
        if self._sent_at is not None and (soonest is None or self._sent_at + self._costs.work < soonest[0]):
            soonest = self._sent_at + self._costs.work, self._next
        self.next_arrival = None if soonest is None else soonest[0] + self._path(soonest[1])

    def answer(self, time: float, index: int) -> None:
        """A client has its whole answer: schedule the session's next turn, or free the client."""
        following, is_last = self._following.get(index, ()), index not in self._following
        for each in following:
            left, latest = self._waits.get(each, (1, time))
            latest, request = max(latest, time), self.requests[each]
            if left > 1:
                self._waits[each] = left - 1, latest
            else:
                heapq.heappush(self._due, (max(request.arrival, latest + request.think), each))
        if index in self._open:
            self._open[index][0] -= 1
            is_last = not self._open[index][0]
        if is_last and self._free is not None:
            heapq.heappush(self._free, (time, NOBODY))
        elif not following:
            return
        self._look_ahead()
        self._see_next()

    def _look_ahead(self) -> None:
        if self.further is not None and self._num_begun == len(self._starts):
            # All requests are sent; perhaps others follow
            assert self.further is not None
            requests, count = self.further(), self._num_known
            self._num_known += len(requests)
            self.requests |= enumerate(requests, count)
            self._starts += range(count, self._num_known)
            self._arrivals += [request.arrival for request in requests]
            if not requests:
                self.further = None
        begun, free, due, found = self._num_begun, self._free, self._due, None
        if begun < len(self._starts) and (free is None or free):
            sent = self._arrivals[begun]
            if free is not None and free[0][0] > sent:
                sent = free[0][0]
            found = sent, self._starts[begun]
        if due and (found is None or due[0][0] < found[0]):
            found = due[0]
        self._sent_at, self._next = (None, NOBODY) if found is None else found
        if self.servers is not None or found is None:
            self.next_arrival = None
            return
        sent, index = found
        self.next_arrival = sent + self._path(index)
        if self._in_rounds:
            costs, (ends, left) = self._costs, self._rounds[self._num_sent % len(self._rounds)]
            if left:
                ends += costs.hand_over
            else:
                begins = sent if sent > ends else ends
                left = self._sent_by(begins) or 1
                ends = begins + left * costs.turn
            self._next_round = ends, left - 1
            self.next_arrival += ends - sent

    def _sent_by(self, time: float) -> int:
        """Requests to the next one's server that will have been sent at a moment, as far as that is known."""
        arrivals, begun = self._arrivals, self._num_begun
        count = bisect_right(arrivals, time, lo=begun) - begun
        if self._free is not None:
            count = min(count, sum(free <= time for free, _ in self._free))
        count += sum(due <= time for due, _ in self._due) if self._due else 0
        return -(-count // len(self._rounds))


def _turns_of(
    workload: Workload,
) -> tuple[list[int], dict[int, tuple[int, ...]], dict[int, tuple[int, float]], dict[int, list[int]]]:
    """Requests that wait for no answer, in order of arrival; by answer, those that wait for it; those that wait for
    several, with their number and the latest so far; and of each tree of calls, how many are not answered.
    """
    if not workload.in_turns:
        return [*range(len(workload.requests))], {}, {}, {}
    starts: list[int] = []
    following: dict[int, tuple[int, ...]] = {}
    waits: dict[int, tuple[int, float]] = {}
    trees: dict[int, list[int]] = {}
    has_branches = workload.has("after")
    for index, before in enumerate(calls_before(workload.requests)):
        for each in before:
            following[each] = (*following.get(each, ()), index)
        if not before:
            starts.append(index)
        elif len(before) > 1:
            waits[index] = len(before), 0.0
        if has_branches:
            tree = trees[index] = trees[before[0]] if before else [0]
            tree[0] += 1
    return starts, following, waits, trees
