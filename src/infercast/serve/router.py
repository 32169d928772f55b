"""Which engine gets a request: policies of a router before several equal engines."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from infercast.errors import UnknownNameError
from infercast.serve.request import Request

TOO_FULL = 1.5
"""A prefix is followed to the engine that has it unless that one has so many times the mean load ..."""
ALWAYS_ROOM = 8
"""... and more requests than this beyond it."""


class Loads:
    """Requests that each engine has taken and not answered, as of a moment that only moves forward."""

    def __init__(self, num_engines: int) -> None:
        self.counts = [0] * num_engines
        self._ends: list[tuple[float, int]] = []

    def sent(self, engine: int) -> None:
        """A request goes to an engine."""
        self.counts[engine] += 1

    def answered(self, engine: int, time: float) -> None:
        """An engine will have answered one by then."""
        heapq.heappush(self._ends, (time, engine))

    def move_to(self, time: float) -> None:
        """Forget what has been answered by then."""
        while self._ends and self._ends[0][0] <= time:
            self.counts[heapq.heappop(self._ends)[1]] -= 1


Choose = Callable[[Request, Loads], int]


def round_robin(num_engines: int) -> Choose:
    """One after the other."""
    turn = -1

    def choose(request: Request, loads: Loads) -> int:
        nonlocal turn
        turn = (turn + 1) % num_engines
        return turn

    return choose


def least_loaded(num_engines: int) -> Choose:
    """The engine with the fewest requests; among equals the one whose turn it is."""
    turn = 0

    def choose(request: Request, loads: Loads) -> int:
        nonlocal turn
        chosen = min(range(num_engines), key=lambda engine: (loads.counts[engine], (engine - turn) % num_engines))
        turn = (chosen + 1) % num_engines
        return chosen

    return choose


def prefix_aware(num_engines: int) -> Choose:
    """The engine that last saw the start of this prompt, unless it is much fuller than the others."""
    homes: dict[object, int] = {}
    otherwise = least_loaded(num_engines)

    def choose(request: Request, loads: Loads) -> int:
        start = request.prefix[0].content if request.prefix else None
        home = homes.get(start) if start is not None else None
        mean = sum(loads.counts) / num_engines
        if home is not None and loads.counts[home] <= max(TOO_FULL * mean, mean + ALWAYS_ROOM):
            return home
        chosen = otherwise(request, loads)
        if start is not None:
            homes[start] = chosen
        return chosen

    return choose


POLICIES: dict[str, Callable[[int], Choose]] = {
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "prefix_aware": prefix_aware,
}


def make_policy(name: str, num_engines: int) -> Choose:
    """A policy by name."""
    if name not in POLICIES:
        raise UnknownNameError("router", name, POLICIES)
    return POLICIES[name](num_engines)
