"""One thread that takes requests in before the engine sees them: a server's event loop.

It first does what needs no waiting (parse, check, render the chat template) for all requests that have come when it
begins, one after the other; only then it goes on with each of them (tokens, and the way to the engine), again one
after the other. So requests that come together start together, and reach the engine in single file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Intake(NamedTuple):
    """What the thread spends on each request, in seconds."""

    turn: float = 0.0
    """Before it goes on with any of those that have come."""
    gap: float = 0.0
    """Between two that it hands to the engine."""


NOTHING = Intake()
"""A thread that costs nothing, or none."""


class Handed(NamedTuple):
    """Where the thread stands once it has handed a request on."""

    ends: float = 0.0
    """When the requests that were taken in together go on."""
    left: int = 0
    """Those of them that are still to be handed on."""
    at: float = -1.0
    """When the last one reached the engine."""

    def then(self, sent: float, path: float, intake: Intake, waiting: Callable[[float], int]) -> Handed:
        """The same after the next request, which was sent at a moment and has a path to the engine.

        ``waiting`` tells how many requests, this one among them, will have been sent at a moment.
        """
        ends, left = self.ends, self.left - 1
        if left < 0:
            begins = max(sent, ends)
            count = max(1, waiting(begins)) if intake.turn else 1
            ends, left = begins + count * intake.turn, count - 1
        at = ends if intake.turn else sent
        return Handed(ends, left, max(at + path, self.at + intake.gap))
