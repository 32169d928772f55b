"""API servers between clients and engines: event loops of one thread each, which take requests in and send tokens out.

Work without waiting (parsing, validation, a chat template) is done in one round for all requests that have arrived when
it begins; only then does each go on. So requests that come together reach the engine together, one right behind the
other, after the work on all of them, and later ones wait for the next round.

A request waits for several turns of the loop on its way in, and each turn serves whatever else is ready: the text of
every token, and a part of the answer of every stream that has any. While the loop keeps up, that is its share of the
time. Once it does not, tokens of a stream are sent together, and a turn serves all streams.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from math import ceil

from infercast.lazy_classes import NamedTuple

TURNS, TOGETHER = 12, 6  # Turns of the event loop from a connection to the engine, of which requests share some ...
SHARED_WORK = 3.0  # ... and its work in them, of which a round has one part: from the log of a server of vLLM 0.33
MOST_SHARE = 0.5  # Of the loop's time that tokens take when it falls behind, since it slows the engine down as well
LEAST_LEFT = 0.1
MEMORY_SECONDS = 1.0  # Over which the rates of tokens and requests are counted


class ServerCosts(NamedTuple):
    """Seconds of an API server's thread."""

    turn: float = 0.0  # For a request, in a round
    token: float = 0.0  # For each token of an answer ...
    part: float = 0.0  # ... and each part of an answer that is sent
    hand_over: float = 0.0  # Between two requests of a round that the engine gets


class ApiServers:
    """What several servers are busy with; requests go round robin."""

    def __init__(self, costs: ServerCosts, count: int = 1) -> None:
        self.costs, self.count = costs, count
        self._answers: deque[tuple[float, int]] = deque()  # When answers were complete, and their tokens
        self._tokens = self.streams = 0  # Of answers, and of requests on their way
        self._began: float | None = None
        self._sends = costs.token + costs.part > 0

    def answer(self, time: float, num_output: int) -> None:
        """All of an answer was sent."""
        self.streams -= 1
        if self._sends:
            self._tokens += num_output
            insort(self._answers, (time, num_output))  # since several engines answer in any order
            if self._began is None or time < self._began:
                self._began = time

    def ready(self, time: float, *, follows: bool) -> float:
        """When a request that comes at a time goes on; ``follows``: it was sent upon an answer, amid other tokens."""
        costs = self.costs
        if self._began is None:
            return time
        while self._answers and self._answers[0][0] < time - MEMORY_SECONDS:
            self._tokens -= self._answers.popleft()[1]
        seconds = min(max(time - self._began, MEMORY_SECONDS / 4), MEMORY_SECONDS) * self.count
        rate, streams = self._tokens / seconds, self.streams / self.count
        own = SHARED_WORK * costs.turn
        left = 1.0 - own * len(self._answers) / seconds - min(costs.token * rate, MOST_SHARE)
        spare = left - costs.part * rate
        sending = streams * (costs.token + costs.part)
        waits = sending / 2 if follows else 0.0
        if spare > 0 and own / TURNS / spare * rate < streams:  # a turn is over before each stream has another token
            taken = own / spare - own
            together = 2 * taken
        else:
            taken = (own + TURNS * streams * costs.part) / max(left, LEAST_LEFT) - own
            together = taken * TOGETHER / TURNS
        if taken <= 0:
            return time
        since = time - self._began  # so that only what happens counts, not when the clock was started
        return time + max(0.0, ceil((since + waits + taken - together / 2) / together) * together - since)
