"""Which blocks the tier in the host's memory has, and which it gives up first.

A block is known by a number that stands for its content. It is *idle*, or copies to or from it are under way; only idle
blocks can give way to others, the least recently used first. Rules as in vLLM 0.25 and 0.32 (v1/kv_offload/cpu/
manager.py and policies/lru.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from math import gcd

ARRIVING = -1
"""Instead of the number of copies that read a block: it is not there yet."""
MOST_COUNTED = 64_000
"""Blocks whose lookups are counted, where that matters."""
NOTHING: tuple[Sequence[int], int] = ((), 0)
SCATTERED = 0.618
"""The share of all blocks by which the next one is away, where their order is any."""


class HostTier:
    """``num_blocks`` blocks; one is stored once it has been looked for ``store_threshold`` times, if that is over 1."""

    def __init__(
        self, num_blocks: int, store_threshold: int = 0, *, in_order: bool = False, by_request: bool = False
    ) -> None:
        """``in_order``: blocks of one copy become idle in their order; an engine keeps them in a set, so in none.

        ``by_request``: blocks have the order in which they were first stored and then touched, whenever they are idle;
        and those are stored that were offered ``store_threshold`` times.
        """
        self.num_blocks = num_blocks
        self._blocks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._order: OrderedDict[int, None] = OrderedDict() if by_request else self._idle
        """Those that give way first come first."""
        self._by_request = by_request
        self._threshold, self._in_order = store_threshold, in_order
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._touched: tuple[Sequence[int], int] = NOTHING
        """What was touched last, if nothing has changed since."""
        self.num_refused = 0
        """Times when there was no room for the blocks of a request."""
        self.peak = 0
        """The most blocks that were used at the same time."""

    @property
    def counts_lookups(self) -> bool:
        """Whether looking for a block changes anything."""
        return self._threshold > 1 and not self._by_request

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, keys: Iterable[int]) -> int | None:
        """How many of the first blocks are there; None: some of them are on their way there."""
        blocks, found, is_pending, counts = self._blocks, 0, False, self.counts_lookups
        for key in keys:
            if counts:
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

    def _count_offer(self, keys: Sequence[int]) -> None:
        """Blocks are offered together: none of them is forgotten for another."""
        counts = self._counts
        new = [key for key in keys if key not in counts]
        room = MOST_COUNTED - (len(keys) - len(new))
        for key in keys:
            if key in counts:
                self._count(key)
        for key in new[:room]:
            self._count(key)

    def touch(self, keys: Sequence[int]) -> None:
        """Blocks of a request are met; its last ones are given up first."""
        if self._touched[0] is keys and self._touched[1] == len(keys):
            return  # they are the last ones that were met
        order = self._order
        for key in reversed(keys):
            if key in order:
                order.move_to_end(key)
        self._touched = keys, len(keys)

    def begin_load(self, keys: Iterable[int]) -> None:
        """A copy reads these blocks."""
        self._touched = NOTHING
        for key in keys:
            self._blocks[key] += 1
            self._idle.pop(key, None)

    def end_load(self, keys: Sequence[int]) -> None:
        """It has ended."""
        self._touched = NOTHING
        for key in self._as_released(keys):
            self._blocks[key] -= 1
            if not self._blocks[key]:
                self._idle[key] = None

    def begin_store(self, keys: Sequence[int], met: set[int] | None = None) -> list[int] | None:
        """Room for those of the blocks that are not there yet; None: there is none now.

        ``met`` learns which of them a request has there, or would have if there were room.
        """
        self._touched = NOTHING
        blocks, offered = self._blocks, keys
        if self._threshold > 1:
            if self._by_request:
                self._count_offer(keys)
            keys = [key for key in keys if self._counts.get(key, 0) >= self._threshold]
        new = [key for key in keys if key not in blocks]
        if met is not None:
            met.update(new, [key for key in offered if blocks.get(key, ARRIVING) != ARRIVING])
        missing = len(blocks) + len(new) - self.num_blocks
        kept = offered if self._by_request else keys
        if missing > 0 and not self._give_up(missing, {key for key in kept if key in blocks}):
            self.num_refused += 1
            return None
        for key in new:
            blocks[key] = ARRIVING
            if self._by_request:
                self._order[key] = None
        self.peak = max(self.peak, len(blocks))
        return new

    def end_store(self, keys: Sequence[int]) -> None:
        """Blocks have arrived."""
        self._touched = NOTHING
        for key in self._as_released(keys):
            self._blocks[key] = 0
            self._idle[key] = None

    def _give_up(self, count: int, kept: set[int]) -> bool:
        """Forget so many idle blocks, or none; some are ``kept``."""
        idle, blocks, order = self._idle, self._blocks, self._order
        if count > len(idle):
            return False
        if kept or self._by_request:
            gone = [*islice((key for key in order if key in idle and key not in kept), count)]
        else:
            gone = [*islice(order, count)]
        if len(gone) < count:
            return False
        for key in gone:
            del blocks[key], order[key]
            idle.pop(key, None)
        return True

    def _as_released(self, keys: Sequence[int]) -> Iterable[int]:
        """In the order in which an engine that keeps them in a set comes to them: any, the same in every run."""
        if self._in_order:
            return keys
        count = len(keys)
        step = int(SCATTERED * count) | 1
        while gcd(step, count) > 1:
            step += 2
        return [keys[number * step % count] for number in range(count)]
