"""One thread that takes requests in before the engine sees them: a server's event loop.

What needs no waiting (parse, check, render the chat template) it does for all requests that have come when it begins,
one after the other; only then it goes on with each of them (tokens, and the way to the engine). So requests that come
together reach the engine together, after the work on all of them, and who comes meanwhile waits for the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Round(NamedTuple):
    """Requests that are taken in together."""

    ends: float = 0.0
    """When they go on."""
    left: int = 0
    """Those of them that are still to be handed on."""

    def then(self, sent: float, turn: float, waiting: Callable[[float], int]) -> Round:
        """The round of the next request, which was sent at a moment, with that request handed on.

        ``turn`` is what the thread spends on each; ``waiting`` tells how many requests, this one among them, will have
        been sent at a moment.
        """
        if self.left:
            return Round(self.ends, self.left - 1)
        begins = max(sent, self.ends)
        count = max(1, waiting(begins))
        return Round(begins + count * turn, count - 1)
