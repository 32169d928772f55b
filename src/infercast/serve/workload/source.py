"""Where an engine's requests come from, as its loop sees it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from infercast.serve.workload.request import Request


class Arrivals(Protocol):
    """Requests as they come."""

    @property
    def next_arrival(self) -> float | None:
        """When the next request reaches the engine's queue at the earliest; None if none comes before an answer."""

    def pop(self) -> tuple[int, Request, float]:
        """The next request: its index, itself, and when its client sent it."""


class Source(Arrivals, Protocol):
    """Clients of one engine, or a router before several."""

    wait_for_answers: bool
    """Whether an answer may lead to the next request ..."""
    sends_at_once: bool
    """... and mostly does so without a pause, so that it is not worth to look further ahead."""

    def answer(self, time: float, index: int) -> None:
        """A client has its whole answer to the request of this index."""


class Delivery(NamedTuple):
    """A request on its way to an engine. Requests stay in the order in which they were sent."""

    sent: float
    number: int
    arrival: float
    request: Request


class Inbox:
    """What a router has sent to one engine."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self.has_answered = False
        self.wait_for_answers = self.sends_at_once = True  # whoever drives the engine looks at each of them

    @property
    def next_arrival(self) -> float | None:
        """Of the first delivery."""
        return self._waiting[0].arrival if self._waiting else None

    def put(self, delivery: Delivery) -> None:
        """Send a request."""
        self._waiting.append(delivery)

    def pop(self) -> tuple[int, Request, float]:
        """Take the first delivery."""
        delivery = self._waiting.popleft()
        return delivery.number, delivery.request, delivery.sent

    def answer(self, time: float, index: int) -> None:
        """The router looks up which request it was."""
        self.has_answered = True
