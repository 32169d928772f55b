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

from infercast.serve.cache.holding import Copy, Holding, Name, Table
from infercast.serve.cache.lookup import Lookup
from infercast.serve.cache.prefix import PrefixNames
from infercast.serve.cache.shape import KvShape
from infercast.serve.workload.request import Request


class KvCache:
    """``num_blocks`` blocks that all groups of layers share.

    With ``sparse_windows``, a group with a window keeps only those blocks findable from which the same prompt, or one
    that was seen to begin like it, can go on.
    """

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True, sparse_windows: bool = False) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        """Blocks that somebody holds."""
        self.shape = shape
        self._block_size = shape.block_size
        self.caching = caching
        self.sparse_windows = sparse_windows
        self._groups = tuple(KvShape(shape.block_size, (window,)) for window in shape.windows)
        self._windowed = tuple(group for group, window in enumerate(shape.windows) if window)
        self._names = PrefixNames(shape.block_size)
        self._num_blank = num_blocks
        # Copies with one block each, and runs (whole numbers) with as many as they have left.
        self._unused: OrderedDict[Copy | int, int] = OrderedDict()
        self._num_runs = 0
        self._found: dict[Name, Copy] = {}
        self._lookup = Lookup(shape, self._found)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, findable ones among them."""
        return self.num_blocks - self.num_held

    def new_holding(self, index: int, request: Request) -> Holding:
        """For a sequence that holds nothing yet."""
        shared = self._names.shared_keys(request) if self.caching and request.prefix else []
        return Holding(index, shared, tuple([Table() for _ in self.shape.windows]), request.num_input)

    def longest_prefix(self, holding: Holding, num_tokens: int) -> int:
        """Tokens of a sequence's beginning that are cached: whole blocks, and never all of its tokens."""
        if not self.caching:
            return 0
        most = (num_tokens - 1) // self._block_size
        if not holding.left_behind:
            most = min(most, len(holding.shared))
        hit, longest = self._lookup(holding, most) if most else (0, 0)
        if self.sparse_windows:
            for group in self._windowed:
                holding.tables[group].tails = self._lookup.tails(group, holding, longest if longest > hit else 0)
        return hit * self._block_size

    def admit(self, holding: Holding, num_cached: int, new_tokens: int, num_tokens: int, chunk: int) -> bool:
        """Start a sequence with the ``num_cached`` tokens that `longest_prefix` found and room for ``new_tokens``.

        It starts only if all the blocks for its ``num_tokens``, computed at most ``chunk`` a step, were free now.
        """
        count = num_cached // self._block_size
        found = self._lookup.found(holding, num_cached) if count else []
        held_by_none = sum([not copy.holders for copies in found for copy in copies])
        if self.blocks_to_start(num_cached, new_tokens, num_tokens, chunk) + held_by_none > self.num_free:
            return False
        for group, copies in enumerate(found):
            table = holding.tables[group]
            table.first, table.length = count - len(copies), count
            table.copies.update(zip(range(table.first, count), copies, strict=True))
            for copy in copies:
                if not copy.holders:
                    del self._unused[copy]
                    self.num_held += 1
                copy.holders += 1
        holding.num_named = count
        return self.grow(holding, num_cached, new_tokens)

    def blocks_to_start(self, num_cached: int, new_tokens: int, num_tokens: int, chunk: int) -> int:
        """Blocks beyond the cached ones that must be free: for the first step, and for the most that are ever held."""
        size = self._block_size
        count, needed = num_cached // size, -(-(num_cached + new_tokens) // size)
        if not self._windowed:
            return (max(needed, -(-num_tokens // size)) - count) * len(self._groups)
        # Group by group: a window's few blocks must not make up for what full attention still needs.
        whole = sum([max(0, group.most_blocks(num_tokens, chunk) - count) for group in self._groups])
        return max((needed - count) * len(self._groups), whole)

    def grow(self, holding: Holding, computed: int, new_tokens: int) -> bool:
        """Make room for ``new_tokens`` after ``computed`` ones, or take nothing and say no."""
        needed = -(-(computed + new_tokens) // self._block_size)
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

    def slide(self, holding: Holding, computed: int) -> None:
        """Release the blocks that no token after ``computed`` ones looks at; the last of them is forgotten first."""
        for group in self._windowed:
            table = holding.tables[group]
            first = min(self.shape.first_in_window(group, computed), table.length)
            if first > table.first:
                for position in range(first - 1, table.first - 1, -1):
                    self._release(holding, group, position)
                table.first = first

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
                self._lookup.forget(entry)

    def name_full_blocks(self, holding: Holding, num_tokens: int) -> None:
        """Let others find the blocks that these tokens fill, already while they are being computed."""
        full = num_tokens // self._block_size
        if full <= holding.num_named or not self.caching:
            return
        # Nobody else looks for what is not shared, so its name matters only where it was left behind before.
        last = full if holding.left_behind else min(full, len(holding.shared))
        keys = [holding.key(position) for position in range(holding.num_named, last)]
        for group, table in enumerate(holding.tables):
            copies, add = table.copies, self._lookup.add
            for position, key in enumerate(keys, holding.num_named):
                if position >= table.first and (table.tails is None or table.keeps(position)):
                    copies[position] = add(Copy((group, key), 1))
        holding.num_named = full

    def free(self, holding: Holding, *, done: bool = True) -> None:
        """Give everything back; the last block of a sequence is the first to be forgotten.

        A sequence that is not ``done`` may come back and find its own blocks again.
        """
        for group, table in enumerate(holding.tables):
            end = table.length
            if done and not holding.left_behind:
                end = min(end, max(len(holding.shared), table.first))
                full = table.count_kept(end, holding.num_named) if self.caching else 0
                self._give_back(table.length - end, full)
            for position in range(end - 1, table.first - 1, -1):
                self._release(holding, group, position)
            table.first = table.length = 0
        holding.left_behind |= not done
        holding.num_named = holding.capacity = 0

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
        table = holding.tables[group]
        copy = table.copies.pop(position, None)
        if copy is not None:
            copy.holders -= 1
        elif position < holding.num_named and table.keeps(position):
            copy = self._lookup.add(Copy((group, holding.key(position)), 0))
        else:
            self._num_blank += 1
        if copy is None or not copy.holders:
            self.num_held -= 1
            if copy is not None:
                self._unused[copy] = 1
