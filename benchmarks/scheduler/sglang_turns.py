"""Engines driven side by side as SGLang's loop drives its scheduler, and what they decide as text."""

from collections.abc import Iterator
from typing import Any, Protocol

from sglang_cases import Case

MOST_TURNS = 20_000


class Engine(Protocol):
    """A scheduler with the loop around it."""

    def add(self, index: int) -> None:
        """A client sends a request."""

    def turn(self) -> list[Any]:
        """Plan and launch a step, then take in results: of the step before with overlap, of this one without.

        Returns who computes how many tokens after how many (the rows), who gave way, and the tokens that were free and
        that could be freed after planning.
        """

    def is_busy(self) -> bool:
        """Whether it has requests, or a step whose result it has not taken in."""


def turns(case: Case, *engines: Engine) -> Iterator[list[Any]]:
    """What each of the engines decides in every turn; a request is seen by the turn that it was drawn for."""
    order = sorted(range(len(case.requests)), key=lambda index: case.requests[index]["turn"])
    turn = sent = 0
    while turn < MOST_TURNS:
        while sent < len(order) and case.requests[order[sent]]["turn"] <= turn:
            for engine in engines:
                engine.add(order[sent])
            sent += 1
        turn += 1
        busy = any(engine.is_busy() for engine in engines)
        if not busy and sent == len(order):
            return
        decisions = [engine.turn() for engine in engines]  # an idle turn counts: it sets the promises back
        if busy:
            yield decisions
    raise RuntimeError(f"no end after {turn} turns")


class Script:
    """Decisions as lines of text: who computes (new:computed tokens, where it does not just go on), who gave way, and
    the tokens that are free and that can be freed.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._reached: dict[int, int] = {}

    def add(self, decision: list[Any]) -> None:
        """One more turn."""
        rows, retracted, free, evictable = decision
        words = []
        for index, new, computed in rows:
            goes_on = new == 1 and self._reached.get(index) == computed
            words.append(f"{index}" if goes_on else f"{index}:{new}:{computed}")
            self._reached[index] = computed + new
        self.lines.append(f"{' '.join(words)}|{' '.join(map(str, retracted))}|{free}|{evictable}")
