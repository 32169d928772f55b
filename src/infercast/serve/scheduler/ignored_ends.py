"""Room by the time at which others end, where every request produces all that it declares and nothing is cached.

Whoever has the fewest tokens left ends first and gives back what it holds. At each of these moments there must be some
room left for those who go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infercast.serve.scheduler.decode_batch import DeclaredSequence

RESERVE = 1
"""Tokens of each sequence that goes on for which there must be more than room."""

State = tuple[float, int]
"""Tokens that a sequence has left, and those that it holds."""


class Timetable:
    """When those who run will end."""

    def __init__(self, running: Callable[[], Iterable[State]], ratio: float) -> None:
        """``ratio``: the share of a declared answer that is reckoned with where the end of a text counts."""
        self._running, self._ratio = running, ratio
        self._states: list[State] | None = None

    def has_room(self, sequence: DeclaredSequence, beside: list[DeclaredSequence], free: int) -> bool:
        """Whether a sequence may start, with others of the same step ``beside`` it and so many tokens ``free`` then.

        Like the engine, it stays in the timetable even if it may not.
        """
        state = state_of(sequence, sequence.num_produced, self._ratio)
        if self._states is None:
            states = [state, *self._running(), *(state_of(each, each.num_produced, self._ratio) for each in beside)]
            self._states = sorted([each for each in states if each[0] > 0], key=lambda each: each[0])
        elif state[0] > 0:
            self._insert(state)
        given_back = 0
        for number, (left, held) in enumerate(self._states):
            going_on = len(self._states) - number
            if free + given_back - left * going_on <= RESERVE * going_on:
                return False
            given_back += held
        return True

    def _insert(self, state: State) -> None:
        """Before the first that has as much left or more; who has most of all comes before the last."""
        assert self._states is not None
        place = max(len(self._states) - 1, 0)
        for number, (left, _) in enumerate(self._states):
            if state[0] <= left:
                place = number
                break
        self._states.insert(place, state)


def state_of(sequence: DeclaredSequence, num_produced: int, ratio: float) -> State:
    """What a sequence has left and holds, with so many tokens known."""
    declared = sequence.num_declared if sequence.ignores_end else sequence.num_declared * ratio
    return declared - num_produced, sequence.num_input + num_produced
