"""Who sends requests, and when: an open loop follows a clock, a closed loop waits for answers."""

from __future__ import annotations

import heapq
from bisect import bisect_right

from infercast.serve.workload.intake import Round
from infercast.serve.workload.request import Request, Workload


class Clients:
    """Releases the requests of a workload to the engine.

    ``path_seconds`` is what a request spends on its way into the engine's queue, once a client has sent it, and
    ``token_seconds`` what each token of its prompt adds. Requests stay in the order in which they were sent.
    ``turn_seconds`` is what one thread before the engine spends on each (`intake`).
    """

    def __init__(
        self, workload: Workload, path_seconds: float = 0.0, token_seconds: float = 0.0, turn_seconds: float = 0.0
    ) -> None:
        self._requests = workload.requests
        self._path_seconds = path_seconds
        self._token_seconds = token_seconds
        self._turn_seconds = turn_seconds
        self._round = self._next_round = Round()
        self._next = 0
        # Closed loop: the moments at which a client is free to send, a heap.
        self._free_at: list[float] | None = None
        if workload.concurrency is not None:
            self._free_at = [0.0] * min(workload.concurrency, len(self._requests))
        self.wait_for_answers = self.sends_at_once = self._free_at is not None
        self.next_arrival: float | None = None
        """When the next request reaches the engine's queue; None if no client will send one before an answer."""
        self._look_ahead()

    def pop(self) -> tuple[int, Request, float]:
        """The next request: its index, itself, and when its client sent it."""
        sent = self._sent_at
        if self._free_at is not None:
            heapq.heappop(self._free_at)
        index = self._next
        self._next += 1
        self._round = self._next_round
        self._look_ahead()
        return index, self._requests[index], sent

    def answer(self, time: float, index: int) -> None:
        """A client has its whole answer and may send the next request."""
        if self._free_at is not None:
            heapq.heappush(self._free_at, time)
            self._look_ahead()

    def _look_ahead(self) -> None:
        self.next_arrival = None
        if self._next < len(self._requests) and self._free_at != []:
            sent = self._requests[self._next].arrival
            if self._free_at is not None and self._free_at[0] > sent:
                sent = self._free_at[0]
            self._sent_at = sent
            self.next_arrival = sent + (self._path_seconds + self._token_seconds * self._requests[self._next].num_input)
            if self._turn_seconds:
                self._next_round = self._round.then(sent, self._turn_seconds, self._sent_by)
                self.next_arrival += self._next_round.ends - sent

    def _sent_by(self, time: float) -> int:
        """Requests that have not been handed on and will have been sent at a moment, as far as that is known."""
        if self._free_at is not None:
            return min(sum(free <= time for free in self._free_at), len(self._requests) - self._next)
        return bisect_right(self._requests, time, lo=self._next, key=lambda request: request.arrival) - self._next
