"""Conversations turn by turn: the next request of a session is sent some seconds after the answer before it.

A workload is ``in_turns`` where that is asked for. Its requests carry a ``session``; those of one session follow each
other in the order of the workload, and each waits for the answer before it, then for its ``think`` seconds (a person
who reads and writes, or an agent's tool that runs). Requests without a session follow the clock.
"""

from __future__ import annotations

import heapq

from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.source import Source

NOBODY = -1
"""In place of a request that follows."""


class Turns:
    """Which request begins a session, and which one follows another."""

    def __init__(self, workload: Workload) -> None:
        self._requests = requests = workload.requests
        self.following = [NOBODY] * len(requests)
        """For each request the next one of its session."""
        self.starts: list[int] = []
        """Requests that wait for no answer, in order of arrival."""
        before: dict[int, int] = {}
        for index, request in enumerate(requests):
            if request.session is None:
                self.starts.append(index)
                continue
            if (last := before.get(request.session, NOBODY)) == NOBODY:
                self.starts.append(index)
            else:
                self.following[last] = index
            before[request.session] = index

    def sent_after(self, answered: float, index: int) -> float:
        """When a request is sent whose session has had its answer at a moment."""
        request = self._requests[index]
        return max(request.arrival, answered + request.think)


class SessionClients:
    """Releases the requests of sessions to one engine, as `Clients` does for requests that stand alone."""

    wait_for_answers, sends_at_once = True, False

    def __init__(self, workload: Workload, path_seconds: float = 0.0, token_seconds: float = 0.0) -> None:
        self._requests = workload.requests
        self._path_seconds, self._token_seconds = path_seconds, token_seconds
        self._turns = Turns(workload)
        self._num_begun = 0
        self._is_closed = workload.concurrency is not None
        # Requests whose moment is known: when each is sent, the first one first.
        self._due: list[tuple[float, int]] = []
        self.next_arrival: float | None = None
        """When the next request reaches the engine's queue; None if none comes before an answer."""
        # An open loop looks one session ahead, a closed one begins so many at once.
        for _ in range(workload.concurrency or 1):
            self._begin(0.0)
        self._look_ahead()

    def pop(self) -> tuple[int, Request, float]:
        """The next request: its index, itself, and when its client sent it."""
        sent, index = heapq.heappop(self._due)
        if not self._is_closed and index == self._last_begun:
            self._begin(0.0)
        self._look_ahead()
        return index, self._requests[index], sent

    def answer(self, time: float, index: int) -> None:
        """A session has an answer: its next turn is known, or in a closed loop another one may begin."""
        following = self._turns.following[index]
        if following != NOBODY:
            heapq.heappush(self._due, (self._turns.sent_after(time, following), following))
        elif self._is_closed:
            self._begin(time)
        self._look_ahead()

    def _begin(self, time: float) -> None:
        """The next session, no earlier than its own arrival."""
        if self._num_begun < len(self._turns.starts):
            self._last_begun = index = self._turns.starts[self._num_begun]
            self._num_begun += 1
            heapq.heappush(self._due, (max(time, self._requests[index].arrival), index))

    def _look_ahead(self) -> None:
        self.next_arrival = None
        if self._due:
            sent, index = self._due[0]
            self.next_arrival = sent + (self._path_seconds + self._token_seconds * self._requests[index].num_input)


def source_of(
    workload: Workload, path_seconds: float = 0.0, token_seconds: float = 0.0, turn_seconds: float = 0.0
) -> Source:
    """Who sends the requests of a workload to one engine; sessions hardly ever send together: no turns."""
    if workload.in_turns:
        return SessionClients(workload, path_seconds, token_seconds)
    return Clients(workload, path_seconds, token_seconds, turn_seconds)
