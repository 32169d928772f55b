"""Clients of several engines: an open loop follows a clock, a closed loop and sessions wait for answers."""

from __future__ import annotations

import heapq
from math import inf
from typing import Protocol

from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.sessions import NOBODY, Turns


class Receiver(Protocol):
    """What takes requests in."""

    def send(self, index: int, request: Request, sent: float) -> None:
        """A request leaves for it."""


class Senders:
    """Clients of a whole system."""

    def __init__(self, workload: Workload, pool: Receiver) -> None:
        self._workload, self._pool, self._requests = workload, pool, workload.requests
        self._turns = Turns(workload) if workload.in_turns else None
        self._starts = iter(range(len(self._requests)) if self._turns is None else self._turns.starts)
        self._is_closed = workload.concurrency is not None
        self.wait_for_answers = self._is_closed or workload.in_turns
        # When a client may send, and the request that it has to send; NOBODY: the next that has not been sent.
        self._free_at: list[tuple[float, int]] = []

    def begin(self) -> None:
        """Send what needs no answer first."""
        for _ in range(min(len(self._requests), self._workload.concurrency or len(self._requests))):
            self._send(0.0, NOBODY)

    def answer(self, time: float, index: int) -> None:
        """A client has its answer and may send the next request."""
        following = NOBODY if self._turns is None else self._turns.following[index]
        if self._turns is not None and following != NOBODY:
            heapq.heappush(self._free_at, (self._turns.sent_after(time, following), following))
        elif self._is_closed:
            heapq.heappush(self._free_at, (time, NOBODY))

    def go_on(self, until: float) -> None:
        """Who has an answer by then sends, in order: engines do not tell of their answers in the order of time."""
        while self._free_at and self._free_at[0][0] <= until:
            time, index = heapq.heappop(self._free_at)
            if self._send(time, index) and until == inf and self._turns is not None:
                until = time  # all think, and the first to go on may be the first to make room for another session

    def _send(self, time: float, index: int) -> bool:
        """Whether there was anything to send."""
        if index == NOBODY:
            index = next(self._starts, NOBODY)
        if index == NOBODY:
            return False
        request = self._requests[index]
        self._pool.send(index, request, max(time, request.arrival))
        return True
