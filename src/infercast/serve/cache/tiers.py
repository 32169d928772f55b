"""The host memory tier of a KV cache: its size and contents, the link to it, and bytes transferred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import gcd
from typing import Any

import numpy.typing as npt

from infercast.lazy_classes import dataclass

ARRIVING = -1  # In place of a block's reader count: it has not arrived yet
MOST_COUNTED = 64_000  # Blocks with lookup counts, where these matter
NOTHING: tuple[Sequence[int], int] = ((), 0)
PLACES = 32  # Bits of a block's key for its position in the prompt; the others identify the prompt

# A link with serialised copies, such as PCIe in one direction.


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    rate: float  # Bytes per second
    latency: float = 0.0  # Seconds of an empty copy
    submit_seconds: float = 0.0  # Submission time, before which the copy does not begin ...
    submit_piece_seconds: float = 0.0  # ... and the time added per piece.

    def seconds(self, num_bytes: float) -> float:
        """One copy without contention."""
        return self.latency + num_bytes / self.rate


class CopyQueue:
    def __init__(self, speed: LinkSpeed) -> None:
        self.speed = speed
        self.free_at = 0.0  # When the last copy ends
        self.num_copies = 0
        self.num_bytes = 0  # Per GPU
        self.seconds = 0.0  # Copy time with submission, each from when its predecessors were done

    def copy(self, now: float, num_bytes: int, num_pieces: int = 1, after: float = 0.0) -> tuple[float, float]:
        """Submit a copy that waits until ``after``; returns when the thread is free, and when the copy ends."""
        begun = max(now, after, self.free_at)
        # Seconds of the host thread to submit a copy of this many pieces
        handed_over = now + (self.speed.submit_seconds + num_pieces * self.speed.submit_piece_seconds)
        self.free_at = max(handed_over, begun) + self.speed.seconds(num_bytes)
        self.num_copies += 1
        self.num_bytes += num_bytes
        self.seconds += self.free_at - begun
        return handed_over, self.free_at


# The content of the host memory tier, and its eviction order. A block is identified by a key for its content. It is
# *idle*, or copies to or from it are in flight; only idle blocks can be evicted, least recently used first. Rules as in
# vLLM 0.25, 0.32 and 0.33 (v1/kv_offload/cpu/ manager.py and policies/lru.py).


class Use:
    """Blocks that one request loaded, stored or found stored, and its place among the requests that use any."""

    __slots__ = ("met", "rank")

    def __init__(self) -> None:
        self.met: set[int] = set()
        self.rank = 0


class HostTier:
    """``num_blocks`` blocks; with ``store_threshold`` above 1, a block is stored after that many lookups."""

    def __init__(
        self, num_blocks: int, store_threshold: int = 0, *, in_order: bool = False, by_request: bool = False,
        by_position: bool = False,
    ) -> None:  # fmt: skip
        """``in_order``: blocks of a copy idle in order; ``by_request`` and ``by_position`` rank what is evicted."""
        self.num_blocks = num_blocks
        self._blocks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._by_request, self._by_position = by_request, by_position
        # If by request: what to evict first, with entries that no longer hold, and each block's rank.
        self._heap: list[tuple[tuple[int, int], int]] = []
        self._ranks: dict[int, tuple[int, int]] = {}
        self._num_ranks = 0
        self._threshold, self._in_order = store_threshold, in_order
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._touched: tuple[Sequence[int], int] = NOTHING  # What was touched last, if nothing has changed since
        self.num_refused = 0  # Times a request's blocks did not fit
        self.peak = 0  # Peak number of blocks in use

    @property
    def counts_lookups(self) -> bool:
        """True if lookups have side effects."""
        return self._threshold > 1 and not self._by_request

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, keys: Iterable[int]) -> int | None:
        """Number of leading blocks present; None: some of them are still arriving."""
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
        """Count blocks offered together: none is dropped for another."""
        counts = self._counts
        new = [key for key in keys if key not in counts]
        room = MOST_COUNTED - (len(keys) - len(new))
        for key in keys:
            if key in counts:
                self._count(key)
        for key in new[:room]:
            self._count(key)

    def touch(self, keys: Sequence[int]) -> None:
        """Mark a request's blocks as recently used; its last ones are evicted first."""
        if self._touched[0] is keys and self._touched[1] == len(keys):
            return  # already the most recent
        for key in reversed(keys):
            if self._by_request and key in self._blocks:
                self._num_ranks += 1
                self._set_rank(key, (self._num_ranks, 0))
            elif key in self._idle:
                self._idle.move_to_end(key)
        self._touched = keys, len(keys)

    def _set_rank(self, key: int, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        if key in self._idle:
            self._make_idle(key)

    def _make_idle(self, key: int) -> None:
        self._idle[key] = None
        if self._by_request:
            heappush(self._heap, (self._ranks[key], key))
            if len(self._heap) > 64 + 4 * len(self._idle):
                self._heap = [(self._ranks[each], each) for each in self._idle]
                heapify(self._heap)

    def _note(self, keys: Iterable[int], use: Use) -> None:
        """A request uses blocks, some of them for the first time."""
        keys = [key for key in keys if key not in use.met]
        use.met.update(keys)
        if not keys or not self._by_position:
            return
        if not use.rank:
            self._num_ranks += 1
            use.rank = self._num_ranks
        for key in keys:
            rank = self._rank(key, use)
            if key in self._blocks and self._ranks[key] < rank:
                self._set_rank(key, rank)

    def _rank(self, key: int, use: Use | None) -> tuple[int, int]:
        if use is not None and self._by_position:
            return use.rank, -(key % (1 << PLACES))
        self._num_ranks += 1
        return self._num_ranks, 0

    def begin_load(self, keys: Sequence[int], use: Use | None = None) -> None:
        """A copy starts reading these blocks."""
        self._touched = NOTHING
        if use is not None:
            self._note(keys, use)
        for key in keys:
            self._blocks[key] += 1
            self._idle.pop(key, None)

    def end_load(self, keys: Sequence[int]) -> None:
        self._touched = NOTHING
        for key in self._as_released(keys):
            self._blocks[key] -= 1
            if not self._blocks[key]:
                self._make_idle(key)

    def begin_store(self, keys: Sequence[int], use: Use | None = None) -> list[int] | None:
        """Allocate what is missing; None: no room now. ``use``: of the request, which also has what it would store."""
        self._touched = NOTHING
        blocks, offered = self._blocks, keys
        if self._threshold > 1:
            if self._by_request:
                self._count_offer(keys)
            keys = [key for key in keys if self._counts.get(key, 0) >= self._threshold]
        new = [key for key in keys if key not in blocks]
        if use is not None:
            self._note([*new, *[key for key in offered if blocks.get(key, ARRIVING) != ARRIVING]], use)
        missing = len(blocks) + len(new) - self.num_blocks
        kept = offered if self._by_request else keys
        if missing > 0 and not self._evict(missing, {key for key in kept if key in blocks}):
            self.num_refused += 1
            return None
        for key in new:
            blocks[key] = ARRIVING
            if self._by_request:
                self._ranks[key] = self._rank(key, use)
        self.peak = max(self.peak, len(blocks))
        return new

    def end_store(self, keys: Sequence[int]) -> None:
        self._touched = NOTHING
        for key in self._as_released(keys):
            self._blocks[key] = 0
            self._make_idle(key)

    def _evict(self, count: int, kept: set[int]) -> bool:
        idle, blocks = self._idle, self._blocks
        if count > len(idle):
            return False
        others = (key for key in idle if key not in kept)
        gone = self._first(count, kept) if self._by_request else [*islice(others, count)]
        if len(gone) < count:
            return False
        for key in gone:
            del blocks[key], idle[key]
            self._ranks.pop(key, None)
        return True

    def _first(self, count: int, kept: set[int]) -> list[int]:
        """Idle blocks of the lowest ranks; what stays is put back."""
        heap, gone, put_back = self._heap, dict[int, None](), list[tuple[tuple[int, int], int]]()
        while heap and len(gone) < count:
            rank, key = entry = heappop(heap)
            if key not in self._idle or self._ranks[key] != rank or key in gone:
                continue
            if key in kept:
                put_back.append(entry)
            else:
                gone[key] = None
        if len(gone) < count:
            put_back += [(self._ranks[key], key) for key in gone]
        for entry in put_back:
            heappush(heap, entry)
        return [*gone]

    def _as_released(self, keys: Sequence[int]) -> Iterable[int]:
        """The iteration order of an engine that keeps them in a set: arbitrary, but the same in every run."""
        if self._in_order:
            return keys
        count = len(keys)
        scattered = 0.618  # Stride between consecutive blocks as a share of all, where their order is arbitrary
        step = int(scattered * count) | 1
        while gcd(step, count) > 1:
            step += 2
        return [keys[number * step % count] for number in range(count)]


# A run's totals for the host memory tier.


@dataclass(frozen=True, slots=True)
class TierTotals:
    """Totals over a run, in the terms of vLLM's counters where it has them."""

    num_blocks: int
    peak_blocks: int  # Peak number of blocks in use
    num_refused: int  # Times new blocks did not fit, because all others had copies in flight
    num_queried: int  # Tokens missing on the GPU when requests started, or restarted after preemption ...
    num_hit: int  # ... and those found in the tier (``external_prefix_cache_queries`` and ``_hits``).
    load: CopyQueue
    store: CopyQueue
    waited: float  # Seconds that steps waited for blocks to be copied to the host before reuse
    num_loaded: npt.NDArray[Any]  # Per request: prompt tokens loaded from the tier at its first start
    load_began: npt.NDArray[Any]  # When each request's first copy from the tier was submitted; NaN for those without


# A second KV cache tier in host memory: its size, what it stores, and transfer times. Blocks are copied to the tier as
# soon as their tokens are computed, not when the GPU evicts them. A request with a prefix that the GPU has evicted and
# the tier has not loads it instead of recomputing it.


@dataclass(frozen=True, slots=True)
class Offload:
    num_blocks: int  # Blocks in the tier, each for the tokens of ``factor`` GPU blocks
    block_bytes: int  # Bytes of a block per GPU; all GPUs of the engine copy at the same time ...
    block_pieces: int  # ... and its pieces: one per layer, or one.
    load: LinkSpeed  # From host to GPU, which overlaps with ...
    store: LinkSpeed  # ... copies to the host.
    factor: int = 1
    prompts_only: bool = True  # Blocks of answers are not stored, unless a later prompt computes them
    store_threshold: int = 0  # Lookups or offers before a block is stored; below 2: stored at once
    holders_first: bool = False
    """Waiting requests that hold blocks are tried first; in queue order the first may need the blocks of another."""
    spares_under_way: bool = False  # A request is not preempted while an in-flight step writes its blocks; others wait
    stores_ends: bool = False
    """A finished request's last blocks are stored with the next step; a preempted one submits no block again."""
    offers_again: bool = False  # ... unless it starts again.
    by_request: bool = False  # A block is as recent as the last finished request with it; offers count, not lookups
    by_position: bool = False  # While a request runs, its blocks are as recent as its first use, its last ones less so
    reserves_drafts: bool = False  # A request's blocks are loaded only if those of a step with drafts are free as well
    keeps_last: bool = False  # A request's last block is stored and loaded even if drafts may still change it
    empty_step_seconds: float = 0.0  # A turn of the loop without a step, because all waiting requests wait for copies
