"""Copies between the KV cache and its tier in the host's memory: which blocks a request has there, and what goes where.

A request's blocks are looked up after those that the GPU has. Blocks are handed over to be stored with the step that
computes them. Rules as in vLLM 0.25 and 0.32 (kv_connector/v1/offloading/scheduler.py).
"""

from __future__ import annotations

from infercast.serve.cache.offload import Offload
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tier import HostTier
from infercast.serve.scheduler.sequence import Sequence

PLACES = 32
"""Bits of a block's number that tell its place in a prompt; the others tell what the prompt is."""


class Move:
    """One copy of blocks of a sequence."""

    __slots__ = ("end", "is_store", "keys", "num_bytes", "num_pieces", "sequence")

    def __init__(self, sequence: Sequence, keys: list[int], num_bytes: int, num_pieces: int, *, is_store: bool) -> None:
        self.sequence, self.keys, self.is_store = sequence, keys, is_store
        self.num_bytes, self.num_pieces = num_bytes, num_pieces
        self.end = 0.0
        """When the last byte is there."""


class _Books:
    """Of one request: its blocks' numbers, how many of them were handed over, and its copies under way."""

    __slots__ = ("keys", "met", "moves", "stored")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.met: set[int] = set()
        """Those that it loaded, stored or found stored."""
        self.stored = 0
        self.moves: list[Move] = []


class Moves:
    """What a scheduler asks of the tier, and what it has to copy."""

    def __init__(self, offload: Offload, shape: KvShape, *, in_order: bool = False) -> None:
        groups = len(shape.windows)
        self.offload = offload
        self.tier = HostTier(
            offload.num_blocks // groups,
            offload.store_threshold,
            in_order=in_order,
            by_request=offload.by_request,
        )
        self.loads: list[Move] = []
        """To begin with the step that is being planned ..."""
        self.stores: list[Move] = []
        """... and those to be handed over at the start of the step after it."""
        self.flushed: list[Move] = []
        """What must have ended before the step may begin."""
        self.num_under_way = 0
        self.num_queried = self.num_hit = 0
        """Tokens that were looked for in the tier when requests started, and those found."""
        self._shape, self._size = shape, shape.block_size * offload.factor
        self._windows = [window for window in shape.windows if window]
        self._full = groups - len(self._windows)
        self._books: dict[Sequence, _Books] = {}
        self._being_loaded: set[int] = set()
        self._outlived: dict[Move, None] = {}
        """Stores of requests that have ended, whose blocks others may be given."""

    def look_up(self, sequence: Sequence, computed: int, known: int) -> int | None:
        """Tokens after the ``computed`` ones that the tier has; None: ask again in the next step."""
        books = self._books.setdefault(sequence, _Books())
        if books.moves:
            return None
        keys = self._keys_of(sequence, books, known)
        found = self._find(keys, computed, known)
        if not self.offload.by_request:
            self.tier.touch(keys)
        return found

    def _find(self, keys: list[int], computed: int, known: int) -> int | None:
        size, start = self._size, computed // self._size
        # Where layers have windows, the last token is left to be computed; otherwise that is seen to later.
        most = min(len(keys) * size, known - 1 if self._windows else known)
        if most - computed < size:
            return 0
        count = self.tier.look_up(keys[start:])
        if count is None:
            return None
        found = min(most, size * (start + count)) - computed
        if not count or found < size:
            return 0
        loading = self._being_loaded
        return None if loading and not loading.isdisjoint(keys[start : start + count]) else found

    def begin_load(self, sequence: Sequence, computed: int, found: int) -> None:
        """A request that holds blocks for all of these tokens waits for what was found."""
        books, size = self._books[sequence], self._size
        first, end = computed // size, -(-(computed + found) // size)
        keys = books.keys[first:end]
        self.tier.begin_load(keys)
        books.met.update(keys)
        self._being_loaded.update(keys)
        count = -(-found // self._shape.block_size)
        in_windows = sum([min(count, -(-window // self._shape.block_size)) for window in self._windows])
        move = self._move(sequence, keys, self._full * count + in_windows, is_store=False)
        self.loads.append(move)
        books.stored = end

    def begin_store(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hand over blocks up to so many tokens; False: there is no room, and it has to be tried again."""
        books = self._books.get(sequence)
        if books is None:
            return True
        keys = self._keys_of(sequence, books, num_tokens)
        end = num_tokens // self._size
        if end <= books.stored:
            if not self.offload.stores_ends:
                books.stored = end  # who gave way begins again, and what follows is handed over again
            return True
        new = self.tier.begin_store(keys[books.stored : end], books.met)
        if new is None:
            return False
        books.stored = end
        if new:
            if not self.offload.by_request:
                self.tier.touch(keys)
            count = len(new) * self.offload.factor * (self._full + len(self._windows))
            self.stores.append(self._move(sequence, new, count, is_store=True))
        return True

    def flush(self, sequence: Sequence) -> None:
        """Who gives way lets go of blocks that are being stored: that has to end first."""
        books = self._books.get(sequence)
        if books is not None:
            self.flushed += books.moves

    def reuse(self, sequence: Sequence, num_tokens: int) -> None:
        """A request begins with blocks that another one left, which may still be being stored."""
        if self._outlived:
            books = self._books[sequence]
            mine = set(books.keys[: num_tokens // self._size])
            self.flushed += [move for move in self._outlived if not mine.isdisjoint(move.keys)]

    def end(self, move: Move) -> None:
        """The scheduler hears that a copy has ended."""
        self.num_under_way -= 1
        if move.is_store:
            self.tier.end_store(move.keys)
            self._outlived.pop(move, None)
        else:
            self.tier.end_load(move.keys)
            self._being_loaded.difference_update(move.keys)
        books = self._books.get(move.sequence)
        if books is not None:
            books.moves.remove(move)

    def forget(self, sequence: Sequence) -> None:
        """A request has ended; its stores may go on."""
        books = self._books.pop(sequence, None)
        if books is not None:
            self._outlived.update(dict.fromkeys(books.moves))
            if self.offload.by_request:
                self.tier.touch([key for key in books.keys if key in books.met])

    def _move(self, sequence: Sequence, keys: list[int], count: int, *, is_store: bool) -> Move:
        offload = self.offload
        move = Move(sequence, keys, count * offload.block_bytes, count * offload.block_pieces, is_store=is_store)
        self._books[sequence].moves.append(move)
        self.num_under_way += 1
        return move

    def _keys_of(self, sequence: Sequence, books: _Books, num_tokens: int) -> list[int]:
        """Numbers of a request's full blocks up to so many tokens, or of more if they were asked for before."""
        keys, factor = books.keys, self.offload.factor
        start, end = len(keys) * factor, num_tokens // self._size * factor
        if start < end:
            for edge, first, stop in (*sequence.path, (sequence.own_edge, sequence.shared, end)):
                low, high = max(start, first), min(end, stop)
                # The last block of each group of blocks stands for it, as it stands for all before it.
                low += (factor - 1 - low) % factor
                keys += [(edge << PLACES) + place for place in range(low, high, factor)]
        return keys
