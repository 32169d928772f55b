"""Which blocks the tier in the host's memory has, and which it gives up first.

A block is known by a number that stands for its content. It is *idle*, or copies to or from it are under way; only idle
blocks can give way to others, the least recently used first. Rules as in vLLM 0.25 (v1/kv_offload/cpu/manager.py and
policies/lru.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

ARRIVING = -1
"""Instead of the number of copies that read a block: it is not there yet."""
MOST_COUNTED = 64_000
"""Blocks whose lookups are counted, where that matters."""
SCATTER = 0x9E3779B97F4A7C15
"""An odd number by which consecutive numbers are spread over all."""


class HostTier:
    """``num_blocks`` blocks; one is stored once it has been looked for ``store_threshold`` times, if that is over 1."""

    def __init__(self, num_blocks: int, store_threshold: int = 0, *, in_order: bool = False) -> None:
        """``in_order``: blocks of one copy become idle in their order; an engine keeps them in a set, so in none."""
        self.num_blocks = num_blocks
        self._blocks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._threshold, self._in_order = store_threshold, in_order
        self._counts: OrderedDict[int, int] = OrderedDict()
        self.num_refused = 0
        """Times when there was no room for the blocks of a request."""
        self.peak = 0
        """The most blocks that were used at the same time."""

    @property
    def counts_lookups(self) -> bool:
        """Whether looking for a block changes anything."""
        return self._threshold > 1

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, keys: Iterable[int]) -> int | None:
        """How many of the first blocks are there; None: some of them are on their way there."""
        blocks, found, is_pending = self._blocks, 0, False
        for key in keys:
            if self._threshold > 1:
                self._count(key)
            readers = blocks.get(key)
            if readers is None:
                break
            found += 1
            is_pending |= readers == ARRIVING
        return None if is_pending else found

    def _count(self, key: int) -> None:
        counts = self._counts
        if key not in counts and len(counts) >= MOST_COUNTED:
            counts.popitem(last=False)
        counts[key] = counts.get(key, 0) + 1
        counts.move_to_end(key)

    def touch(self, keys: Sequence[int]) -> None:
        """Blocks of a request are met; its last ones are given up first."""
        idle = self._idle
        for key in reversed(keys):
            if key in idle:
                idle.move_to_end(key)

    def begin_load(self, keys: Iterable[int]) -> None:
        """A copy reads these blocks."""
        for key in keys:
            self._blocks[key] += 1
            self._idle.pop(key, None)

    def end_load(self, keys: Collection[int]) -> None:
        """It has ended."""
        for key in self._as_released(keys):
            self._blocks[key] -= 1
            if not self._blocks[key]:
                self._idle[key] = None

    def begin_store(self, keys: Sequence[int]) -> list[int] | None:
        """Room for those of the blocks that are not there yet; None: there is none now."""
        if self._threshold > 1:
            keys = [key for key in keys if self._counts.get(key, 0) >= self._threshold]
        blocks = self._blocks
        new = [key for key in keys if key not in blocks]
        missing = len(blocks) + len(new) - self.num_blocks
        if missing > 0 and not self._give_up(missing, keys):
            self.num_refused += 1
            return None
        for key in new:
            blocks[key] = ARRIVING
        self.peak = max(self.peak, len(blocks))
        return new

    def end_store(self, keys: Collection[int]) -> None:
        """Blocks have arrived."""
        for key in self._as_released(keys):
            self._blocks[key] = 0
            self._idle[key] = None

    def _give_up(self, count: int, protected: Collection[int]) -> bool:
        """Forget so many idle blocks, or none; ``protected`` ones stay."""
        if count > len(self._idle):
            return False
        kept = set(protected)
        gone: list[int] = []
        for key in self._idle:
            if key not in kept:
                gone.append(key)
                if len(gone) == count:
                    break
        if len(gone) < count:
            return False
        for key in gone:
            del self._idle[key], self._blocks[key]
        return True

    def _as_released(self, keys: Collection[int]) -> Iterable[int]:
        """In the order in which an engine that keeps them in a set comes to them: any, the same in every run."""
        return keys if self._in_order else sorted(keys, key=_scattered)


def _scattered(key: int) -> int:
    return (key * SCATTER) & 0xFFFF_FFFF_FFFF_FFFF
