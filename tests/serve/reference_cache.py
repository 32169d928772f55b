"""The KV cache block by block: every block has a number, a name and holders. What the quick one is compared with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from infercast.serve.cache.blocks import KvShape
from infercast.serve.workload.request import Request, Segment

BlockKey = tuple[int, int]
"""(chain, position). Chains of shared content are negative; a request's own content has its index as chain."""
NO_BLOCK = -1
"""Stands in a table for a block that fell out of the window."""


class PrefixNames:
    """Hands out chains; one instance serves one cache."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chains: dict[tuple[int, int, int], int] = {}

    def shared_keys(self, request: Request) -> list[BlockKey]:
        """Keys of the blocks that lie wholly in the request's shared beginning, its answer too if that has a name."""
        keys: list[BlockKey] = []
        before = end = 0
        segments = request.prefix
        if request.answer is not None and sum([segment.num_tokens for segment in segments]) == request.num_input:
            segments = (*segments, Segment(request.answer, request.num_output))
        for segment in segments:
            # Blocks inside a segment do not depend on how long it goes on, what follows it does.
            inside = self._chain(before, segment.content, 0)
            before = self._chain(inside, segment.content, segment.num_tokens)
            end += segment.num_tokens
            # A block belongs to the segment that holds its last token.
            keys.extend((inside, position) for position in range(len(keys), end // self._block_size))
        return keys

    def _chain(self, before: int, content: int, num_tokens: int) -> int:
        """A number for one more piece of content after ``before``: equal histories, equal numbers."""
        return self._chains.setdefault((before, content, num_tokens), -len(self._chains) - 1)


@dataclass(slots=True)
class BlockAllocation:
    """What one sequence holds of the cache."""

    index: int
    keys: list[BlockKey]
    """Names of the sequence's blocks, as far as they were asked for."""
    tables: tuple[list[int], ...]
    """Block numbers for each group, in the order of the tokens."""
    num_input: int = 0
    junction: int = 0
    """Blocks that some layers found of what others have forgotten."""
    num_named: int = 0
    """Leading blocks that others can find."""
    states: list[int] = field(default_factory=list)
    """Numbers of the blocks that it holds whatever its length."""
    capacity: int = 0
    """Tokens that fit without asking for more."""

    def keys_up_to(self, count: int) -> list[BlockKey]:
        """At least the first ``count`` keys; what is not shared is the sequence's own."""
        self.keys.extend((self.index, position) for position in range(len(self.keys), count))
        return self.keys


class ReferenceCache:
    """Does what `KvCache` does, one block at a time."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True, sparse_windows: bool = False) -> None:
        self.num_blocks = num_blocks
        self.shape = shape
        self.caching = caching
        self.sparse_windows = sparse_windows
        self._groups = tuple(shape.group(number) for number in range(len(shape.windows)))
        self._new_states: set[tuple[int, BlockKey]] = set()
        self._names = PrefixNames(shape.block_size)
        self._spare: list[int] = []
        self._num_fresh = num_blocks
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._found: dict[tuple[int, BlockKey], list[int]] = {}
        self._key_of: dict[int, tuple[int, BlockKey]] = {}
        self._holders: dict[int, int] = {}

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, findable ones among them."""
        return len(self._spare) + self._num_fresh + len(self._unused)

    def new_holding(self, index: int, request: Request) -> BlockAllocation:
        """For a sequence that holds nothing yet."""
        keys = self._names.shared_keys(request) if self.caching else []
        return BlockAllocation(index, keys, tuple([] for _ in self.shape.windows), request.num_input)

    def longest_prefix(self, holding: BlockAllocation, num_tokens: int) -> int:
        """Tokens of a sequence's beginning that are cached: whole blocks, and never all of its tokens."""
        if not self.caching:
            return 0
        limit = (num_tokens - 1) // self.shape.block_size
        keys = holding.keys_up_to(limit)
        # Full attention needs every block from the start; windows need only the last few before the end.
        everywhere = [group for group, window in enumerate(self.shape.windows) if not window]
        hit = limit
        for group in everywhere:
            position = 0
            while position < hit and (group, keys[position]) in self._found:
                position += 1
            hit = position
        longest = hit if everywhere else 0
        windowed = [group for group, window in enumerate(self.shape.windows) if window]
        for group in windowed:
            alone = hit
            while alone and not self._has_window(group, keys, alone):
                alone -= 1
            longest = max(longest, alone)
        while hit and not all(self._has_window(group, keys, hit) for group in windowed):
            hit -= 1
        holding.junction = longest if longest > hit else 0
        return hit * self.shape.block_size

    def admit(self, holding: BlockAllocation, num_cached: int, new_tokens: int, num_tokens: int, chunk: int) -> bool:
        """Start a sequence with the ``num_cached`` tokens that `longest_prefix` found and room for ``new_tokens``.

        It starts only if all the blocks for its ``num_tokens``, computed at most ``chunk`` a step, were free now.
        """
        count = num_cached // self.shape.block_size
        if count and any((group, holding.keys[count - 1]) in self._new_states for group in self.shape.states):
            return False
        found = self._found_blocks(holding, num_cached)
        held_by_none = sum(self._holders[block] == 0 for blocks in found for block in blocks if block != NO_BLOCK)
        after = self.shape.blocks_for(num_cached + new_tokens)
        needed = sum(self._missing(group, len(blocks), after) for group, blocks in enumerate(found))
        # Group by group: a window's few blocks must not make up for what full attention still needs.
        whole = (
            count + 1 if group.states and group.aligned else group.most_blocks(num_tokens, chunk)
            for group in self._groups
        )
        least = max(needed, sum(max(0, most - len(blocks)) for most, blocks in zip(whole, found, strict=True)))
        if self.shape.state_blocks + least + held_by_none > self.num_free:
            return False
        for table, blocks in zip(holding.tables, found, strict=True):
            table.extend(blocks)
            for block in blocks:
                if block != NO_BLOCK:
                    self._holders[block] += 1
                    self._unused.pop(block, None)
        holding.num_named = num_cached // self.shape.block_size
        holding.states.extend(self._take() for _ in range(self.shape.state_blocks))
        return self.grow(holding, num_cached, new_tokens)

    def grow(self, holding: BlockAllocation, computed: int, new_tokens: int) -> bool:
        """Make room for ``new_tokens`` after ``computed`` ones, or take nothing and say no."""
        needed = self.shape.blocks_for(computed + new_tokens)
        missing = 0
        for group, table in enumerate(holding.tables):
            missing += self._missing(group, len(table), needed)
        if missing > self.num_free:
            return False
        for group, table in enumerate(holding.tables):
            for _ in range(needed - len(table) - self._missing(group, len(table), needed)):
                table.append(NO_BLOCK)
            while len(table) < needed:
                table.append(self._take())
        holding.capacity = needed * self.shape.block_size
        return True

    def _missing(self, group: int, before: int, after: int) -> int:
        """Blocks that a group takes to grow; of aligned states it is the last one alone."""
        return min(1, after - before) if self.shape.aligned and group in self.shape.states else after - before

    def renew(self, holding: BlockAllocation, num_tokens: int) -> None:
        """The last state of a prompt counts as new as long as its sequence holds it, by some engines' rules."""
        last = num_tokens // self.shape.block_size
        if not (self.shape.rules.renews and self.shape.aligned and self.caching):
            return
        if not last or last != (holding.num_input - 1) // self.shape.block_size:
            return
        keys = holding.keys_up_to(last)
        for group in self.shape.states:
            table = holding.tables[group]
            if last <= len(table) and table[last - 1] != NO_BLOCK:
                self._new_states.add((group, keys[last - 1]))

    def new_step(self) -> None:
        """Another step is planned."""
        self._new_states.clear()

    def slide(self, holding: BlockAllocation, computed: int) -> None:
        """Release the blocks that no token after ``computed`` ones looks at."""
        for group, table in enumerate(holding.tables):
            first = self.shape.first_in_window(group, computed)
            if group in self.shape.states:
                for position in reversed(range(min(first, len(table)))):
                    if table[position] != NO_BLOCK:
                        self._release(table[position])
                        table[position] = NO_BLOCK
            self._drop_before(table, first)

    def name_full_blocks(self, holding: BlockAllocation, num_tokens: int) -> None:
        """Let others find the blocks that these tokens fill, already while they are being computed."""
        full = num_tokens // self.shape.block_size
        if full <= holding.num_named or not self.caching:
            return
        keys = holding.keys_up_to(full)
        for group, table in enumerate(holding.tables):
            for position in range(holding.num_named, full):
                block = table[position]
                if block != NO_BLOCK and self._keeps(holding, group, position):
                    key = self._key_of[block] = (group, keys[position])
                    self._found.setdefault(key, []).append(block)
                    if group in self.shape.states:
                        self._new_states.add(key)
        holding.num_named = full

    def _keeps(self, holding: BlockAllocation, group: int, position: int) -> bool:
        """Whether a full block is worth finding: a window is left alone where no prompt can go on from it."""
        if not self.sparse_windows or not self.shape.windows[group]:
            return True
        size = self.shape.block_size
        ends = ((holding.num_input - 1) // size, holding.junction)
        return any(self.shape.first_in_window(group, end * size) <= position < end for end in ends)

    def free(self, holding: BlockAllocation, *, done: bool = True) -> None:
        """Give everything back; the last block of a sequence is the first to be forgotten."""
        for table in holding.tables:
            for block in reversed(table):
                if block != NO_BLOCK:
                    self._release(block)
            table.clear()
        for block in holding.states:
            self._release(block)
        holding.states.clear()
        holding.num_named = holding.capacity = 0

    def _found_blocks(self, holding: BlockAllocation, num_cached: int) -> list[list[int]]:
        """The cached blocks of each group for that many tokens; those before a window are not needed."""
        count = num_cached // self.shape.block_size
        tables = []
        for group in range(len(self.shape.windows)):
            first = self.shape.first_in_window(group, num_cached)
            blocks = [self._found[group, key][0] for key in holding.keys[first:count]]
            tables.append([NO_BLOCK] * first + blocks)
        return tables

    def _take(self) -> int:
        """The next free block, its old content forgotten."""
        if self._spare:
            block = self._spare.pop()
        elif self._num_fresh:
            self._num_fresh -= 1
            block = self._num_fresh
        else:
            block, _ = self._unused.popitem(last=False)
            key = self._key_of.pop(block)
            self._found[key].remove(block)
            if not self._found[key]:
                del self._found[key]
        self._holders[block] = 1
        return block

    def _release(self, block: int) -> None:
        """One holder less; without holders a complete block waits to be found or handed out."""
        self._holders[block] -= 1
        if self._holders[block] == 0:
            if block in self._key_of:
                self._unused[block] = None
            else:
                self._spare.append(block)

    def _drop_before(self, table: list[int], first: int) -> None:
        """Release the blocks that no later token looks at."""
        position = min(first, len(table)) - 1
        while position >= 0 and table[position] != NO_BLOCK:
            self._release(table[position])
            table[position] = NO_BLOCK
            position -= 1

    def _has_window(self, group: int, keys: Sequence[BlockKey], hit: int) -> bool:
        """Whether a group has all the blocks that the token after ``hit`` blocks looks at."""
        first = self.shape.first_in_window(group, hit * self.shape.block_size)
        return all((group, key) in self._found for key in keys[first:hit])
