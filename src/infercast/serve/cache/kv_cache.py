"""The paged KV cache: allocated blocks, and full blocks in the prefix cache. Allocation succeeds or returns False.

A model with layers that attend to different spans has one block table per kind of layer, called a group, all from the
same pool. Recurrent layers with reusable states are groups too: their block is the state at its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from infercast.serve.cache.blocks import (
    BlockAllocation,
    BlockRun,
    BlockSpan,
    Ends,
    GroupBlocks,
    KvShape,
    Path,
    PrefixPaths,
    Reach,
)
from infercast.serve.workload.request import Request

# Prefix lookup: which blocks are cached, and how long a sequence's cached prefix is.

Part = tuple[BlockSpan, int, int]  # Blocks from one position to another, in the oldest span that has them
Pieces = tuple[tuple[int, int], ...]  # Blocks from one position to another, in order


class Lookup:
    def __init__(self, shape: KvShape) -> None:
        self._shape = shape._replace(retained=0)  # what is kept before a window is never looked up
        self.lines: dict[tuple[int, int], GroupBlocks] = {}
        kinds: dict[tuple[int, int], list[int]] = {}
        for group, window in enumerate(shape.windows):
            kinds.setdefault((window, shape.sizes[group]), []).append(group)
        self._everywhere = [groups for (window, _), groups in kinds.items() if not window]
        self._windowed = [groups for (window, _), groups in kinds.items() if window]
        self._ratios, self._sizes = [size // shape.block_size for size in shape.sizes], shape.sizes
        self._in_common = [shape.common_size // size for size in shape.sizes]
        """Blocks of each group per common block size, of which cached prefixes are multiples."""

    def line(self, edge: int, group: int) -> GroupBlocks:
        """The spans of an edge, created if needed."""
        line = self.lines.get((edge, group))
        if line is None:
            line = self.lines[edge, group] = GroupBlocks(edge, group)
        return line

    def forget(self, span: BlockSpan) -> None:
        line = span.line
        line.spans.remove(span)
        if not line.spans:
            del self.lines[line.edge, line.group]

    def __call__(
        self, holding: BlockAllocation, most: int, last: int | None = None, *, past_states: bool = False
    ) -> tuple[int, int]:
        """The longest prefix, up to ``most`` blocks, that all groups can continue from, and that of any one kind. Full
        attention needs every block from the start, windows only the last few before the end. With ``last``, kinds that
        draft find a block more, within this many tokens, and drop it again; ``past_states``: and a state further.
        """
        kinds = [*self._everywhere, *self._windowed]
        others = {number for number, groups in enumerate(kinds) if last is None or not self._shape.drops(groups[0])}
        dropped = {*others}
        hit, longest, is_first, holding.whole = most, 0, True, most
        while True:
            before = hit
            for number, groups in enumerate(kinds):
                is_whole = number < len(self._everywhere)
                if is_whole and not is_first:
                    continue  # it has found all up to here
                drops, count = number not in dropped, self._in_common[groups[0]]
                reach = hit * count
                if drops and last is not None:
                    reach = min(reach + 1, last // self._shape.sizes[groups[0]])
                if is_whole:
                    found = holding.whole = max(0, self._onward(holding, groups, 0, reach) - drops) // count
                elif drops and groups[0] in self._shape.states:
                    found = self._in_window(holding, groups, min(hit + 1, most) if past_states else hit)
                else:
                    found = self._in_window(holding, groups, reach, drops=drops) // count
                if not drops and found < hit:
                    dropped = {*others}
                elif drops:
                    dropped.add(number)
                hit = found
                longest = hit if is_whole and last is None else max(longest, hit)
            is_first = False
            is_alone = len(self._windowed) <= 1 if last is None else len(kinds) == 2 and bool(self._everywhere)
            if hit >= before or is_alone:
                return hit, longest

    def found(self, holding: BlockAllocation, group: int, count: int) -> list[Part]:
        """A group's cached blocks up to ``count``, in parts; those before its window are not needed."""
        position, parts = self._first(group, count) if self._shape.windows[group] else 0, list[Part]()
        ratio = self._ratios[group]
        for edge, _, last in holding.pieces(ratio) if holding.left_behind or ratio > 1 else holding.path:
            end = last if last < count else count
            while position < end:
                stop = end
                for span in self.lines[edge, group].spans:
                    if span.start <= position < span.end:
                        parts.append((span, position, span.end if span.end < stop else stop))
                        position = parts[-1][2]
                        break
                    if position < span.start < stop:  # an older copy of what comes later
                        stop = span.start
                else:
                    raise AssertionError("the lookup has found this block")
        return parts

    def tails(self, group: int, holding: BlockAllocation, marks: Iterable[int], *, drops: bool = False) -> list[range]:
        """Window blocks that the same prompt continues from (``drops``: after a drop) and those before ``marks``."""
        size, count = self._shape.common_size, self._in_common[group]
        if group in self._shape.states:
            ends = {Ends(size, drops).last(holding.num_input + more) // size for more in range(-drops, 1)}
            return [range(end - 1, end) for end in sorted({*ends, *marks}) if end]
        if drops:
            ends = {max(0, tokens // size - 1) for tokens in (holding.num_input - 1, holding.num_input)}
            ends.update(mark for mark in marks if mark)
            peeks = self._shape.drops(group)
            return [range(self._first(group, end * count), end * count + peeks) for end in sorted(ends)]
        ends = {(holding.num_input - 1) // size, *marks}
        return [range(self._first(group, end * count), end * count) for end in sorted(ends) if end]

    def window_blocks(self, group: int, end: int) -> int:
        """Blocks inside a window after this many computed ones."""
        return end - self._first(group, end)

    def _onward(self, holding: BlockAllocation, groups: list[int], position: int, most: int) -> int:
        """How far, up to ``most``, all of these groups find every block from a position on."""
        lines = self.lines
        ratio = self._ratios[groups[0]]
        for edge, _, end in holding.pieces(ratio) if holding.left_behind or ratio > 1 else holding.path:
            while position < end and position < most:
                reach = min(end, most)
                for group in groups:
                    line = lines.get((edge, group))
                    if line is None:
                        return position
                    reach = min(reach, line.reach(position))
                if reach == position:
                    return position
                position = reach
        return position

    def _in_window(self, holding: BlockAllocation, groups: list[int], most: int, *, drops: bool = False) -> int:
        """The last block up to ``most`` before which (``drops``: with which) the window is entirely cached."""
        first = groups[0]
        if self._shape.chunked and first not in self._shape.states:
            return self._onward(holding, groups, self._first(first, most), most)
        count = self._in_common[first]
        end = position = (most - drops) // count * count + drops
        for edge, start, _ in reversed(holding.pieces(self._ratios[first])):
            while position > start and position > self._first(first, end - drops):
                covered = [self._below(edge, group, start, position) for group in groups]
                if all(is_found for is_found, _ in covered):
                    position = max(down_to for _, down_to in covered)
                else:
                    missed = min(down_to for is_found, down_to in covered if not is_found)
                    position = end = (missed - drops) // count * count + drops
        if drops and count > 1 and end - drops < self.window_blocks(first, 1 << 30):
            return max(0, end - drops - count)  # a partial window is cut to a common end before it drops a block
        return max(0, end - drops)

    def _first(self, group: int, end: int) -> int:
        """The first block inside the window after this many computed ones."""
        return self._shape.first_in_window(group, end * self._sizes[group])

    def _below(self, edge: int, group: int, start: int, position: int) -> tuple[bool, int]:
        """Whether the block before ``position`` is cached, and down to where that holds."""
        line = self.lines.get((edge, group))
        if line is None:
            return False, start
        down_to = position
        while (span := line.at(down_to - 1)) is not None:
            down_to = span.start
        if down_to < position:
            return True, max(down_to, start)
        return False, max([start, *(span.end for span in line.spans if span.end < position)])


# Blocks that are held or were freed, by content where it may be looked up. Blocks have no numbers, for they are
# interchangeable: what counts is how many are held and what is cached. A free block is, in allocation order, *blank*
# (no cached content) or *unused* (cached, least recently used first; allocating it evicts its content). Only content
# that may be looked up is kept by name: shared prefixes, and what a preempted sequence leaves. The unshared blocks of a
# finished request are never looked up again, so they wait for reallocation as one anonymous *run*.


class KvCache:
    """``num_blocks`` blocks shared by all layer groups. With ``sparse_windows``, a sliding window group caches only
    those blocks from which the same prompt, or one seen to begin like it, can continue, and those before every multiple
    of ``retained_every`` tokens, if any. With ``drops_last``, the last block of a prefix hit is recomputed; ``ahead``:
    tokens after a block belong to its key.
    """

    def __init__(
        self, num_blocks: int, shape: KvShape, *, caching: bool = True, sparse_windows: bool = False,
        retained_every: int = 0, drops_last: bool = False, ahead: int = 0,
    ) -> None:  # fmt: skip
        self.num_blocks, self.shape, self.caching, self.sparse_windows = num_blocks, shape, caching, sparse_windows
        self.num_held = 0  # Blocks held by sequences
        self.num_groups = len(shape.windows)
        self._num_blank = num_blocks
        # Blocks freed together, and runs (integers) with their number of blocks.
        self._unused: OrderedDict[BlockRun | int, int] = OrderedDict()
        self._num_runs = 0
        self._lookup = Lookup(shape)
        self._sizes, self._common = shape.sizes, shape.common_size
        self._ratios = tuple(size // shape.block_size for size in shape.sizes)
        """Block size of each group relative to the smallest."""
        self._is_uneven = len({*shape.sizes}) > 1
        self._peeking = tuple(
            group for group, size in enumerate(self._sizes) if drops_last and size < self._common and shape.drops(group)
        )
        """Groups that also keep the first block beyond a common end, which is dropped again."""
        self._segment = retained_every // self._common
        self._drops_last = drops_last
        self._ahead = max(1, ahead)  # Tokens after a prefix hit, at least
        self.ends = Ends(shape.block_size, drops_last, shape.rules.exports, self._ahead)  # Of reusable aligned states
        self._block_size = shape.block_size
        self._groups = tuple(map(shape.group, range(self.num_groups)))
        self._windowed = tuple(group for group, window in enumerate(shape.windows) if window)
        self._sparse = tuple(group for group in self._windowed if sparse_windows and not shape.chunked)
        self._is_aligned = shape.aligned and bool(shape.states)
        self.is_plain = self.num_groups == 1 and not (self._windowed or shape.states or shape.state_blocks)
        """Whether every sequence has one table of blocks, and keeps all of them while it runs."""
        self._in_common = self._common // shape.block_size
        self.renews = self._is_aligned and shape.rules.renews
        self._new_states: set[tuple[int, int]] = set()  # Edges and positions of states cached by the step being planned
        self._paths = PrefixPaths(shape.block_size, ahead)

    @property
    def num_free(self) -> int:
        return self.num_blocks - self.num_held

    def take(self, count: int) -> None:
        """Allocate free blocks: blank ones first, then the least recently used."""
        self.num_held += count
        self._num_blank -= count
        if self._num_blank < 0:
            self._forget()

    def clear(self) -> None:
        """Forget everything that no sequence holds."""
        free = self.num_free
        self.take(free)
        self.num_held -= free
        self._num_blank += free

    def _forget(self) -> None:
        unused, lacking = self._unused, -self._num_blank
        while lacking > 0:
            entry = next(iter(unused))
            if isinstance(entry, int):
                lacking -= unused.pop(entry)
                continue
            span = entry.spans[-1]
            count = span.end - span.start
            if count > lacking:
                span.end -= lacking
                self._num_blank = 0
                return
            lacking -= count
            self._lookup.forget(span)
            entry.spans.pop()
            if not entry.spans:
                del unused[entry]
        self._num_blank = -lacking

    def _add(self, holding: BlockAllocation, line: GroupBlocks, start: int, end: int) -> None:
        if holding.spans is None:
            holding.spans = [[] for _ in range(self.num_groups)]
        own = holding.spans[line.group]
        last = own[-1] if own else None
        # Extend its last span, if it is the only holder and there is no newer copy.
        if last is not None and line.spans and last is line.spans[-1] and last.end == start and len(last.holders) == 1:
            last.end = end
            return
        span = BlockSpan(line, start, end)
        span.holders.add(holding)
        line.spans.append(span)
        own.append(span)

    def _release(self, holding: BlockAllocation, group: int, pieces: Pieces, *, named: bool) -> None:
        """Release a sequence's blocks of a group, last to first; ``named``: it may look up its own again."""
        spans = [] if holding.spans is None else holding.spans[group]
        released: list[BlockSpan] = []
        start, end = pieces[0][0], pieces[-1][1]
        freed = end - start if len(pieces) == 1 else sum([stop - begin for begin, stop in pieces])
        while spans and spans[0].start < end:
            span = spans[0]
            if span.end > end:
                span.cut(end)
            del spans[0]
            span.holders.discard(holding)
            if span.holders:
                freed -= span.end - span.start
            else:
                released.append(span)
        self.num_held -= freed
        parts: list[tuple[int, int]] = []
        if holding.named > holding.shared or holding.beyond:
            parts = self._own_parts(holding, group, pieces, released[-1] if released else None)
        if named:
            for part in parts:
                span = BlockSpan(self._lookup.line(holding.own_edge, group), *part)
                span.line.spans.append(span)
                released.append(span)
        elif parts:
            self._num_runs += 1
            run = self._unused[self._num_runs] = sum([stop - begin for begin, stop in parts])
            freed -= run
        if released:
            self._unused[BlockRun(released)] = 0
            freed -= sum([span.end - span.start for span in released])
        self._num_blank += freed

    def _own_parts(
        self, holding: BlockAllocation, group: int, pieces: Pieces, last: BlockSpan | None
    ) -> list[tuple[int, int]]:
        """Its own full blocks: after what it shares, and after its own earlier blocks, which are already named."""
        ratio = self._ratios[group]
        own = max(pieces[0][0], holding.shared // ratio, last.end if last is not None and last.line.edge < 0 else 0)
        known = holding.named // ratio + (group in holding.beyond)
        if not self.caching or known <= own:
            return []
        return [part for begin, stop in pieces for part in holding.kept(group, max(own, begin), min(stop, known))]

    def _hold(self, holding: BlockAllocation, span: BlockSpan | None, start: int, end: int) -> BlockSpan:
        """Add a holder to cached blocks within one span."""
        if span is not None and not span.start <= start < span.end:  # it was cut
            span = span.line.at(start)
        assert span is not None
        if span.start < start:
            span = span.cut(start)
        if span.end > end:
            span.cut(end)
        if span.bundle is not None:
            span.bundle.spans.remove(span)
            if not span.bundle.spans:
                del self._unused[span.bundle]
            span.bundle = None
            self.num_held += end - start
        span.holders.add(holding)
        return span

    def path(self, request: Request) -> Path:
        return self._paths.path(request) if self.caching and request.prefix else ()

    def longest_prefix(self, holding: BlockAllocation, num_tokens: int) -> int:
        """Cached tokens of a sequence's prefix: whole blocks, and never all of its tokens."""
        if not self.caching:
            return 0
        most = max(0, num_tokens - self._ahead) // self._common
        if not holding.left_behind:
            most = min(most, holding.shared // self._in_common)
        if self._drops_last:
            last = num_tokens if self.shape.rules.matches_all and self.num_groups > 1 else num_tokens - 1
            if not holding.left_behind:
                last = min(last, holding.shared * self._block_size)
            hit, longest = self._lookup(holding, most, last, past_states=self.shape.rules.past_attention)
        else:
            hit, longest = self._lookup(holding, most) if most else (0, 0)
        holding.junction = longest if longest > hit else 0
        if self._sparse or self._is_uneven:
            self._mark_tails(holding)
        return hit * self._common

    def _mark_tails(self, holding: BlockAllocation) -> None:
        """Determine which window blocks are worth caching."""
        # With uneven block sizes, prefixes end at common block boundaries, whatever else is kept.
        segment = self._segment if self.sparse_windows else 1
        last = (holding.num_input + holding.num_output) // self._common
        # The window before a multiple may begin before the last token, and serve together with what the prompt left.
        marks = range(segment, last + segment + 1, segment) if segment else ()
        for group in self._sparse if self.sparse_windows else self._windowed:
            drops = self._drops_last and group not in self.shape.states and self.shape.drops(group)
            blocks = segment * (self._common // self._sizes[group])
            if segment and self._lookup.window_blocks(group, 1 << 30) + drops >= blocks:
                continue  # every block is before some multiple
            marked = {holding.junction, *marks} if self.sparse_windows else {*marks}
            holding.tails[group] = self._lookup.tails(group, holding, marked, drops=self._drops_last)

    def admit(
        self, holding: BlockAllocation, num_cached: int, new_tokens: int, num_tokens: int, chunk: int,
        reserved: int = 0, spare: int = 0, reach: Reach | None = None,
    ) -> bool:  # fmt: skip
        """Start a sequence with the ``num_cached`` tokens that `longest_prefix` found and room for ``new_tokens``.
        Succeeds only if blocks are free for all ``num_tokens``, computed at most ``chunk`` per step, and for the new
        tokens on top of the ``reserved`` blocks, both with ``spare`` blocks left. Aligned states need to know what the
        step computes.
        """
        count = num_cached // self._common
        # A state may be further on than where full attention continues from.
        again = (count - holding.whole) * (self.num_groups - len(self._windowed)) if count > holding.whole else 0
        states = self.shape.state_blocks + again
        needed = spare + states + self._blocks_to_start(num_cached, new_tokens, num_tokens, chunk, reach)
        if reserved:
            first = num_cached // self._block_size, self.shape.blocks_for(num_cached + new_tokens)
            needed = max(needed, spare + states + self._missing(*first) + reserved)
        if needed > self.num_blocks - self.num_held:
            return False
        if count:
            if self._new_states and (self._edge(holding, count - 1), count - 1) in self._new_states:
                return False  # it is computed in the step being planned: no other sequence can start from it yet
            counts = [
                (count if group in self._windowed else min(count, holding.whole)) * (self._common // size)
                for group, size in enumerate(self._sizes)
            ]
            found = [self._lookup.found(holding, group, each) for group, each in enumerate(counts)]
            for parts in found:
                needed += sum([end - start for span, start, end in parts if not span.holders])
            if needed > self.num_blocks - self.num_held:
                return False
            holding.spans = [[self._hold(holding, *part) for part in parts] for parts in found]
            holding.first = [
                parts[0][1] if parts else counts[group] * (group in self._windowed) for group, parts in enumerate(found)
            ]
        holding.named = holding.length = holding.num_states = num_cached // self._block_size
        if states:
            self.take(states)
        if again:
            holding.named = count
            for edge, begin, end in holding.path:  # what full attention recomputes of a prefix hit is cached
                start, stop = max(holding.whole, begin), min(count, end)
                for group in range(self.num_groups) if start < stop else ():
                    if group not in self._windowed:
                        self._add(holding, self._lookup.line(edge, group), start, stop)
        return self.grow(holding, num_cached + new_tokens, reach)

    def is_cached(self, edge: int, position: int) -> bool:
        return any(span.end > position for span in self._lookup.line(edge, 0).spans)

    def may_fit(self, holding: BlockAllocation, num_tokens: int) -> bool:
        """Quick check before a prefix lookup: blocks that only the sequence itself can find save nothing."""
        if holding.path or self._windowed:
            return True
        return self.shape.blocks_for(num_tokens) * self.num_groups + self.shape.state_blocks <= self.num_free

    def _blocks_to_start(
        self, num_cached: int, new_tokens: int, num_tokens: int, chunk: int, reach: Reach | None = None
    ) -> int:
        """Blocks beyond the cached ones that must be free: for the first step, and for the sequence's peak."""
        size = self._block_size
        count, needed = num_cached // size, -(-(num_cached + new_tokens) // size)
        if not self._windowed and not self._is_uneven:
            return (max(needed, -(-num_tokens // size)) - count) * self.num_groups
        # Per group: a window's few blocks must not make up for what full attention still needs.
        whole = sum([self._most_to_start(group, count, num_tokens, chunk) for group in self._groups])
        if self._is_aligned and self.ends.is_left(num_cached, num_tokens, self.ends.last(num_tokens)):
            # A prompt beyond the longest length does not end in what must fit.
            whole += len(self.shape.states) if reach is None or self._is_kept(num_tokens, reach) else 0
        if reach is None:
            return max(self._missing(count, needed), whole)
        return max(self._missing(count, needed, self._states_for(reach, count)), whole)

    def _most_to_start(self, group: KvShape, count: int, num_tokens: int, chunk: int) -> int:
        """Blocks of one group beyond ``count`` cached ones, for all tokens of a sequence."""
        if group.states and group.aligned:
            return 1
        return max(0, group.most_blocks(num_tokens, chunk) - count * self._block_size // group.block_size)

    def _missing(self, before: int, after: int, states: int | None = None) -> int:
        """Blocks that all groups need to grow from ``before`` to ``after``; aligned states one, or ``states``."""
        more = after - before if after > before else 0
        if self._is_uneven:
            return sum([-(-after // ratio) + -before // ratio for ratio in self._ratios]) if more else 0
        if not self._is_aligned:
            return more * self.num_groups
        count = len(self.shape.states)
        return more * (self.num_groups - count) + count * (min(1, more) if states is None else states)

    def _is_kept(self, end: int, reach: Reach) -> bool:
        """Whether the state before ``end`` is one that later prompts may start from: with few kept, the prompt's."""
        return end >= reach.prompt_end or not self.sparse_windows or self._segment > 0

    def _states_for(self, reach: Reach, before: int) -> int:
        """Blocks that a group of aligned states needs for a step, after this many."""
        return 0 if reach.end <= before * self._block_size else 1 + self._leaves_two(reach)

    def _leaves_two(self, reach: Reach) -> bool:
        """True if a step also stores a state before its end: with sparse windows, only where a prompt ends."""
        return self._is_kept(reach.end, reach) and self.ends.is_left(reach.start, reach.end, self.ends.last(reach.end))

    def grow(self, holding: BlockAllocation, num_tokens: int, reach: Reach | None = None) -> bool:
        """Allocate room for this many tokens, or nothing and return False; aligned states for what a step computes."""
        needed = -(-num_tokens // self._block_size)
        states = None if reach is None else self._states_for(reach, holding.num_states)
        if needed > holding.length or states:
            missing = self._missing(holding.length, needed, states)
            if self.num_held + missing > self.num_blocks:
                return False
            self.take(missing)
        if reach is not None and states:
            self._skip_states(holding, -(-reach.end // self._block_size), reach)
        holding.length = max(holding.length, needed)
        return True

    def _skip_states(self, holding: BlockAllocation, needed: int, reach: Reach) -> None:
        """A step that fills several blocks stores a state in the last, maybe one earlier, and starts before them."""
        length, first = holding.num_states, holding.first[self.shape.states[0]]
        holding.num_states = needed
        if needed <= length + 1:
            return
        holding.earlier += range(first, length)
        kept = needed - 1
        if self._leaves_two(reach):
            left = self.ends.last(reach.end) // self._block_size - 1
            if left == needed - 2:
                kept = left
            else:
                holding.earlier.append(left)
                holding.exported = left
        for group in self.shape.states:
            holding.first[group] = kept

    def new_step(self) -> None:
        """Begin planning a step: the states of the last one are usable."""
        self._new_states.clear()

    def renew(self, holding: BlockAllocation, num_tokens: int) -> None:
        """A prompt's last useful state counts as new while its sequence holds it and computes with it."""
        if self._drops_last and self.shape.drafting is None and num_tokens % self._block_size:
            return
        last = num_tokens // self._block_size
        if last and last == self.ends.last(holding.num_input) // self._block_size and last <= holding.shared:
            held = holding.first[self.shape.states[0]] <= last - 1 < holding.num_states or last - 1 in holding.earlier
            if held:
                self._new_states.add((self._edge(holding, last - 1), last - 1))

    def _edge(self, holding: BlockAllocation, position: int) -> int:
        return next((edge for edge, first, end in holding.pieces() if first <= position < end), 0)

    def name(self, holding: BlockAllocation, num_tokens: int) -> None:
        """Let others find the blocks that these tokens fill, already while they are being computed."""
        full = num_tokens // self._common * self._in_common
        before, was = holding.named, holding.beyond
        if full <= before and not self._peeking:
            return
        rest = num_tokens - full * self._block_size if full else 0
        beyond = tuple([group for group in self._peeking if rest >= self._sizes[group]]) if self._peeking else ()
        if (full <= before and len(beyond) <= len(was)) or not self.caching:
            return
        holding.named, holding.beyond = full, beyond
        if before >= holding.shared:  # nobody else looks for that: it has a name only once it is left behind
            return
        if self._is_uneven:  # groups have different block sizes
            for group, ratio in enumerate(self._ratios):
                start, stop = before // ratio + (group in was), full // ratio + (group in beyond)
                for edge, first, end in holding.path:
                    begin = max(start, first // ratio, holding.first[group])
                    for part in holding.kept(group, begin, min(stop, end // ratio)):
                        self._add(holding, self._lookup.line(edge, group), *part)
            return
        for edge, first, end in holding.path:
            start, stop = max(before, first), min(full, end)
            for group in range(self.num_groups) if start < stop else ():
                is_state, exported = group in self.shape.states, holding.exported
                begin = max(start, holding.first[group])
                parts = holding.kept(group, begin, stop) if holding.tails else [(begin, stop)] if begin < stop else []
                if is_state and start <= exported < min(stop, holding.first[group]):
                    parts = [*holding.kept(group, exported, exported + 1), *parts]
                for part in parts:
                    self._add(holding, self._lookup.line(edge, group), *part)
                    if is_state:
                        self._new_states |= {(edge, position) for position in range(*part)}

    def slide(self, holding: BlockAllocation, computed: int, unsure: int = 0) -> None:
        """Release blocks that no token after ``computed`` reads (states: less ``unsure``), the last evicted first."""
        window, end = (-1, 0), -1
        behind = computed - unsure if computed > unsure else 0
        earlier = self._earlier(holding, behind) if holding.earlier else ()
        for group in self._windowed:
            is_state = group in self.shape.states
            kind = self.shape.windows[group], self._sizes[group]
            if kind != window:  # groups with the same window are adjacent
                window = kind
                end = self.shape.first_in_window(group, behind if is_state else computed)
                length = -(-holding.length // self._ratios[group]) if self._is_uneven else holding.length
                end = min(end, holding.num_states if is_state and self._is_aligned else length)
            start = holding.first[group]
            pieces: Pieces = ((start, end),) if end > start else ()
            if earlier and is_state:
                pieces = (*earlier, *pieces)
            if pieces:
                holding.first[group] = max(start, end)
                self._release(holding, group, pieces, named=True)

    def _earlier(self, holding: BlockAllocation, computed: int) -> Pieces:
        """States that steps before the last one started from, to be released."""
        end = self.shape.first_in_window(self.shape.states[0], computed)
        given = [place for place in holding.earlier if place + (place == holding.exported) < end]
        del holding.earlier[: len(given)]
        return tuple((position, position + 1) for position in given)

    def free(self, holding: BlockAllocation, *, done: bool = True) -> None:
        """Release all blocks, the last evicted first; a sequence that is not ``done`` may find its own again."""
        if holding.length:
            self.num_held -= self.shape.state_blocks
            self._num_blank += self.shape.state_blocks
        for group, pieces in self._held(holding):
            self._release(holding, group, pieces, named=not done)
        holding.left_behind |= not done
        holding.hold_nothing()

    def detach(self, holding: BlockAllocation, *, done: bool) -> BlockAllocation:
        """Reset a sequence to no blocks; returns its blocks, to be released later with `free`."""
        kept = holding.moved()
        for spans in kept.spans or ():
            for span in spans:
                span.holders.remove(holding)
                span.holders.add(kept)
        if not done:
            # It may find its own blocks again at once.
            for group, pieces in self._held(kept):
                spans = [] if kept.spans is None else kept.spans[group]
                for part in self._own_parts(kept, group, pieces, spans[-1] if spans else None):
                    self._add(kept, self._lookup.line(kept.own_edge, group), *part)
            kept.named, kept.beyond = 0, ()
            holding.left_behind = True
        return kept

    def _held(self, holding: BlockAllocation) -> list[tuple[int, Pieces]]:
        held: list[tuple[int, Pieces]] = []
        for group, first in enumerate(holding.first):
            is_state = self._is_aligned and group in self.shape.states
            length = holding.num_states if is_state else -(-holding.length // self._ratios[group])
            if length > first:
                pieces: Pieces = ((first, length),)
                if holding.earlier and is_state:
                    pieces = (*((position, position + 1) for position in holding.earlier), *pieces)
                held.append((group, pieces))
        return held
