"""The paged KV cache: blocks that sequences hold, and full blocks that later requests may find again.

Whoever asks for memory receives it or is told no. Blocks have no numbers, for nobody can tell one from another: what
counts is how many are held and what can still be found. A free block is, in the order in which it is handed out,
*blank* (nothing can be found in it) or *unused* (complete and findable, least recently used first; handing it out
forgets its content).

Only content that somebody may look for is kept by name: the shared beginnings of prompts, and what a sequence leaves
behind before it is done. What a request that is done has computed on its own is never asked for again, so its blocks
wait to be handed out as one *run* without a name.

A model whose layers look at different spans of the past (sliding windows) has one block table a kind of layer, called
a group; blocks of all groups come from the same pool.
"""

from __future__ import annotations

from collections import OrderedDict

from infercast.engine.kv import KvShape
from infercast.serve.holding import Holding, Table
from infercast.serve.prefix import BlockKey, PrefixNames
from infercast.serve.request import Request

Name = tuple[int, BlockKey]
"""A group, and the content of a block in it."""


class KvCache:
    """``num_blocks`` blocks that all groups of layers share."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        """Blocks that somebody holds."""
        self.shape = shape
        self._block_size = shape.block_size
        self.caching = caching
        self._groups = tuple(KvShape(shape.block_size, (window,)) for window in shape.windows)
        self._windowed = any(shape.windows)
        self._names = PrefixNames(shape.block_size)
        self._num_blank = num_blocks
        # Names with one block each, and runs (whole numbers) with as many as they have left.
        self._unused: OrderedDict[Name | int, int] = OrderedDict()
        self._num_runs = 0
        self._holders: dict[Name, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, findable ones among them."""
        return self.num_blocks - self.num_held

    def new_holding(self, index: int, request: Request) -> Holding:
        """For a sequence that holds nothing yet."""
        shared = self._names.shared_keys(request) if self.caching and request.prefix else []
        return Holding(index, shared, tuple([Table() for _ in self.shape.windows]))

    def longest_prefix(self, holding: Holding, num_tokens: int) -> int:
        """Tokens of a sequence's beginning that are cached: whole blocks, and never all of its tokens."""
        if not self.caching:
            return 0
        hit = (num_tokens - 1) // self.shape.block_size
        if not holding.left_behind:
            hit = min(hit, len(holding.shared))
        if not hit:
            return 0
        # Full attention needs every block from the start; windows need only the last few before the end.
        for group, window in enumerate(self.shape.windows):
            if not window:
                position = 0
                while position < hit and (group, holding.key(position)) in self._holders:
                    position += 1
                hit = position
        windowed = [group for group, window in enumerate(self.shape.windows) if window]
        while hit and not all(self._has_window(group, holding, hit) for group in windowed):
            hit -= 1
        return hit * self.shape.block_size

    def admit(self, holding: Holding, num_cached: int, new_tokens: int, num_tokens: int, chunk: int) -> bool:
        """Start a sequence with the ``num_cached`` tokens that `longest_prefix` found and room for ``new_tokens``.

        It starts only if all the blocks for its ``num_tokens``, computed at most ``chunk`` a step, were free now.
        """
        count = num_cached // self.shape.block_size
        found = self._found_names(holding, num_cached) if count else []
        held_by_none = sum([self._holders[name] == 0 for name in found])
        if self.blocks_to_start(num_cached, new_tokens, num_tokens, chunk) + held_by_none > self.num_free:
            return False
        for name in found:
            self._hold(name, own=name[1][0] == holding.index)
        if count:
            for group, table in enumerate(holding.tables):
                table.first, table.length = self.shape.first_in_window(group, num_cached), count
        holding.num_named = count
        return self.grow(holding, num_cached, new_tokens)

    def blocks_to_start(self, num_cached: int, new_tokens: int, num_tokens: int, chunk: int) -> int:
        """Blocks beyond the cached ones that must be free: for the first step, and for the most that are ever held."""
        size = self.shape.block_size
        count, needed = num_cached // size, -(-(num_cached + new_tokens) // size)
        if not self._windowed:
            return (max(needed, -(-num_tokens // size)) - count) * len(self._groups)
        # Group by group: a window's few blocks must not make up for what full attention still needs.
        whole = sum([max(0, group.most_blocks(num_tokens, chunk) - count) for group in self._groups])
        return max((needed - count) * len(self._groups), whole)

    def grow(self, holding: Holding, computed: int, new_tokens: int) -> bool:
        """Make room for ``new_tokens`` after ``computed`` ones, or take nothing and say no."""
        needed = -(-(computed + new_tokens) // self._block_size)
        if self._windowed:
            for group, window in enumerate(self.shape.windows):
                if window:
                    self._drop_before(holding, group, self.shape.first_in_window(group, computed))
        missing = sum([needed - table.length for table in holding.tables])
        if self.num_held + missing > self.num_blocks:
            return False
        self.take(missing)
        self.cover(holding, needed)
        return True

    def cover(self, holding: Holding, needed: int) -> None:
        """A sequence holds so many blocks of each group now."""
        for table in holding.tables:
            table.length = needed
        holding.capacity = needed * self._block_size

    def take(self, count: int) -> None:
        """Hand out free blocks: blank ones first, then those whose content was used least recently."""
        self.num_held += count
        self._num_blank -= count
        if self._num_blank < 0:
            self._forget()

    def _forget(self) -> None:
        """Make blank what was used least recently; the rest of a run is as good as blank then."""
        while self._num_blank < 0:
            entry, blocks = self._unused.popitem(last=False)
            self._num_blank += blocks
            if not isinstance(entry, int):
                del self._holders[entry]

    def name_full_blocks(self, holding: Holding, num_tokens: int) -> None:
        """Let others find the blocks that these tokens fill, already while they are being computed."""
        full = num_tokens // self._block_size
        if full <= holding.num_named or not self.caching:
            return
        # Nobody else looks for what is not shared, so its name matters only where it was left behind before.
        last = full if holding.left_behind else min(full, len(holding.shared))
        for position in range(holding.num_named, last):
            key, own = holding.key(position), position >= len(holding.shared)
            for group, table in enumerate(holding.tables):
                if position < table.first:
                    continue
                if (group, key) in self._holders:
                    table.hidden.add(position)
                elif not own:
                    self._holders[group, key] = 1
        holding.num_named = full

    def free(self, holding: Holding, *, done: bool = True) -> None:
        """Give everything back; the last block of a sequence is the first to be forgotten.

        A sequence that is not ``done`` may come back and find its own blocks again.
        """
        for group, table in enumerate(holding.tables):
            own = len(holding.shared) if done else table.length
            self._release_own(holding, group, max(own, table.first))
            for position in range(min(own, table.length) - 1, table.first - 1, -1):
                self._release(holding, group, position)
            table.first = table.length = 0
            table.hidden.clear()
        holding.left_behind |= not done
        holding.num_named = holding.capacity = 0

    def _release_own(self, holding: Holding, group: int, start: int) -> None:
        """All blocks from ``start`` on, which nobody will look for: those with a name are one run of unused ones."""
        table = holding.tables[group]
        blocks = table.length - start
        if blocks <= 0:
            return
        run = holding.num_named - start if self.caching else 0
        if table.hidden:
            run -= sum(position >= start for position in table.hidden)
        self._give_back(blocks, run)

    def retire(self, num_tokens: int) -> None:
        """A sequence is done that had computed so many tokens, had none in common with others and never gave way."""
        blocks, full = -(-num_tokens // self._block_size), num_tokens // self._block_size if self.caching else 0
        for _ in self._groups:
            self._give_back(blocks, full)

    def _give_back(self, blocks: int, run: int) -> None:
        """So many blocks are free, of which a run is full."""
        self.num_held -= blocks
        if run > 0:
            self._num_runs += 1
            self._unused[self._num_runs] = run
            blocks -= run
        self._num_blank += blocks

    def _release(self, holding: Holding, group: int, position: int) -> None:
        """One holder less; without holders a complete block waits to be found or handed out."""
        table, name = holding.tables[group], (group, holding.key(position))
        holders = 0
        if position >= holding.num_named or position in table.hidden or not self.caching:
            table.hidden.discard(position)
            self._num_blank += 1
        else:
            holders = self._holders[name] = self._holders.get(name, 1) - 1
            if not holders:
                self._unused[name] = 1
        self.num_held -= not holders

    def _hold(self, name: Name, *, own: bool) -> None:
        """One holder more of what was found; a sequence's own content needs no name while it is held."""
        if not self._holders[name]:
            del self._unused[name]
            self.num_held += 1
        if own:
            del self._holders[name]
        else:
            self._holders[name] += 1

    def _found_names(self, holding: Holding, num_cached: int) -> list[Name]:
        """The cached blocks of all groups for that many tokens; those before a window are not needed."""
        count = num_cached // self.shape.block_size
        return [
            (group, holding.key(position))
            for group in range(len(self._groups))
            for position in range(self.shape.first_in_window(group, num_cached), count)
        ]

    def _drop_before(self, holding: Holding, group: int, first: int) -> None:
        """Release the blocks that no later token looks at."""
        table = holding.tables[group]
        first = min(first, table.length)
        for position in range(first - 1, table.first - 1, -1):
            self._release(holding, group, position)
            holding.left_behind = True
        table.first = max(first, table.first)

    def _has_window(self, group: int, holding: Holding, hit: int) -> bool:
        """Whether a group has all the blocks that the token after ``hit`` blocks looks at."""
        first = self.shape.first_in_window(group, hit * self.shape.block_size)
        return all((group, holding.key(position)) in self._holders for position in range(first, hit))
