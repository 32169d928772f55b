"""What one sequence holds of the KV cache: how many blocks, and which of them others can find."""

from __future__ import annotations

from dataclasses import field

from infercast.records import dataclass
from infercast.serve.prefix import BlockKey


@dataclass(slots=True)
class Table:
    """The blocks of one sequence in one group, by their position in it."""

    first: int = 0
    """Those before have fallen out of the window."""
    length: int = 0
    """Those from ``first`` up to here are held."""
    hidden: set[int] = field(default_factory=set)
    """Second copies, which cannot be found while the first one lives."""


@dataclass(slots=True)
class Holding:
    """What one sequence holds of the cache."""

    index: int
    shared: list[BlockKey]
    """Names of the leading blocks that other requests may have in common with it."""
    tables: tuple[Table, ...]
    """One for each group."""
    num_named: int = 0
    """Leading blocks that can be found."""
    capacity: int = 0
    """Tokens that fit without asking for more."""
    left_behind: bool = False
    """Whether some of its own blocks may still be findable from before it was preempted, or before its window."""

    def key(self, position: int) -> BlockKey:
        """The name of a block's content; what is not shared is the sequence's own."""
        return self.shared[position] if position < len(self.shared) else (self.index, position)
