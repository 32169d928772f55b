"""Who does the work: candidates are judged one by one, in other processes, or on other machines.

`evaluate` is a pure function of a candidate and a question, so that it does not matter where it runs or in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Executor(Protocol):
    """Something that works through items."""

    @property
    def width(self) -> int:
        """How many items it works on at the same time; a search hands over that many, or more, at once."""

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item, in the order of the items; both can be pickled."""


class Serial:
    """One after the other, in this process."""

    width = 1

    def map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What the function makes of each item."""
        return map(function, items)
