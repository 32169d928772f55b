"""The host-memory tier of a KV cache: its size and contents, the link to it, and the bytes that travelled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd
from typing import Any

import numpy.typing as npt

# A link that copies travel one after the other, such as PCIe in one direction.


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a copy takes the link, and what handing it over takes the thread that does."""

    rate: float
    """Bytes a second."""
    latency: float = 0.0
    """Seconds of a copy of next to nothing."""
    submit_seconds: float = 0.0
    """What handing over takes, before which the copy does not begin ..."""
    submit_piece_seconds: float = 0.0
    """... and what each of its pieces adds."""

    def seconds(self, num_bytes: float) -> float:
        """Of one copy that has the link for itself."""
        return self.latency + num_bytes / self.rate

    def handing_over(self, num_pieces: int) -> float:
        """Seconds of the thread for a copy of this many pieces."""
        return self.submit_seconds + num_pieces * self.submit_piece_seconds


class Link:
    """Copies in the order in which they were handed over, and sums over them."""

    def __init__(self, speed: LinkSpeed) -> None:
        self.speed = speed
        self.free_at = 0.0
        """When the last copy ends."""
        self.num_copies = 0
        self.num_bytes = 0
        self.seconds = 0.0
        """What the copies took, from the moment when nothing was before them any more."""

    def copy(self, now: float, num_bytes: int, num_pieces: int = 1, after: float = 0.0) -> tuple[float, float]:
        """A copy that is handed over now and waits for what happens ``after``; returns when the thread is free again,
        and when the copy ends.
        """
        begun = max(now, after, self.free_at)
        handed_over = now + self.speed.handing_over(num_pieces)
        self.free_at = max(handed_over, begun) + self.speed.seconds(num_bytes)
        self.num_copies += 1
        self.num_bytes += num_bytes
        self.seconds += self.free_at - begun
        return handed_over, self.free_at


# Which blocks the tier in the host's memory has, and which it gives up first.
#
# A block is known by a number that stands for its content. It is *idle*, or copies to or from it are under way; only
# idle blocks can give way to others, the least recently used first. Rules as in vLLM 0.25 and 0.32
# (v1/kv_offload/cpu/ manager.py and policies/lru.py).


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
        """Evict this many idle blocks, or none; some are ``kept``."""
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


# What a run did with the tier of its KV cache in the host's memory.


@dataclass(frozen=True, slots=True)
class LinkTotals:
    """Copies in one direction."""

    num_copies: int
    num_bytes: int
    """Of one GPU."""
    seconds: float
    """What the copies took, without waiting for each other but with being handed over."""


@dataclass(frozen=True, slots=True)
class TierTotals:
    """Sums over a run, in the terms of vLLM's counters where it has them."""

    num_blocks: int
    peak_blocks: int
    """The most blocks that were used at the same time."""
    num_refused: int
    """Times when there was no room for new blocks, because copies were under way to or from all others."""
    num_queried: int
    """Tokens that the GPU did not have, of requests that started, and preempted ones that started again ..."""
    num_hit: int
    """... and those that the tier had (``external_prefix_cache_queries`` and ``_hits``)."""
    load: LinkTotals
    store: LinkTotals
    waited: float
    """Seconds in which steps waited until blocks that they wanted were copied to the host."""
    num_loaded: npt.NDArray[Any]
    """Of each request, prompt tokens that came from the tier when it first started."""
    load_began: npt.NDArray[Any]
    """When each request's first copy from the tier was handed over; not a number for those without."""


# A second tier of the KV cache in the host's memory: how large it is, what goes there, and what the way there takes.
#
# Blocks are copied to the tier as soon as their tokens are computed, not when the GPU forgets them. A request whose
# beginning the GPU has forgotten and the tier has not gets its blocks from there instead of computing them.


@dataclass(frozen=True, slots=True)
class Offload:
    """The tier of one engine."""

    num_blocks: int
    """Blocks of the tier, each for as many tokens as ``factor`` blocks of the GPU."""
    block_bytes: int
    """Bytes of a block of one GPU, which all GPUs of the engine copy at the same time ..."""
    block_pieces: int
    """... and in how many pieces: one a layer, or one."""
    load: LinkSpeed
    """From the host to a GPU, which may go on at the same time as ..."""
    store: LinkSpeed
    """... copies to the host."""
    factor: int = 1
    prompts_only: bool = True
    """Blocks of answers are not stored, unless a later prompt computes them."""
    store_threshold: int = 0
    """How often a block must have been looked for, or offered, before it is stored; below 2: not at all."""
    holders_first: bool = False
    """Requests that hold blocks while they wait are looked at before all others; otherwise in the order of the queue,
    in which the first may need the very blocks that another one holds."""
    spares_under_way: bool = False
    """No request is preempted while a step in flight writes its blocks: others that need them wait."""
    stores_ends: bool = False
    """The last blocks of a request that has ended are stored with the step after; and who gave way does not hand over
    again what it did before."""
    by_request: bool = False
    """A block of the tier is as recent as the last request with it that has ended, not as its last copy or lookup; and
    it counts how often it was offered to be stored, not how often it was looked for."""
    empty_step_seconds: float = 0.0
    """An iteration of the engine's loop without a step, because all waiting requests wait for copies."""
