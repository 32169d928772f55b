"""What one sequence holds of the KV cache: how many blocks, and which of them others can find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from infercast.serve.cache.prefix import BlockKey

Name = tuple[int, BlockKey]
"""A group, and the content of a block in it."""


class Copy:
    """A full block that can be found by its content. Several may hold the same: the oldest of them is found."""

    __slots__ = ("holders", "name", "next")

    def __init__(self, name: Name, holders: int) -> None:
        self.name, self.holders = name, holders
        self.next: Copy | None = None
        """A younger copy of the same content."""


@dataclass(slots=True)
class Table:
    """The blocks of one sequence in one group, by their position in it."""

    first: int = 0
    """Those before have fallen out of the window."""
    length: int = 0
    """Those from ``first`` up to here are held."""
    copies: dict[int, Copy] = field(default_factory=dict)
    """Held blocks that others can find, or that the sequence itself may look for again."""
    tails: Sequence[range] | None = None
    """Positions that become findable when they are full; None: all of them."""

    def keeps(self, position: int) -> bool:
        """Whether a block becomes findable when it is full."""
        return self.tails is None or any(position in tail for tail in self.tails)

    def count_kept(self, start: int, end: int) -> int:
        """How many blocks from ``start`` to before ``end`` become findable."""
        if self.tails is None:
            return max(0, end - start)
        return len({position for tail in self.tails for position in tail if start <= position < end})


@dataclass(slots=True)
class Holding:
    """What one sequence holds of the cache."""

    index: int
    shared: list[BlockKey]
    """Names of the leading blocks that other requests may have in common with it."""
    tables: tuple[Table, ...]
    """One for each group."""
    num_input: int = 0
    """Tokens of its prompt."""
    num_named: int = 0
    """Leading blocks that can be found."""
    capacity: int = 0
    """Tokens that fit without asking for more."""
    left_behind: bool = False
    """Whether some of its own blocks may still be findable from before it was preempted."""

    def key(self, position: int) -> BlockKey:
        """The name of a block's content; what is not shared is the sequence's own."""
        return self.shared[position] if position < len(self.shared) else (self.index, position)
