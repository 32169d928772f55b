"""The paged KV cache: blocks that sequences hold, and full blocks that later requests may find again.

Whoever asks for memory receives it or is told no.

A model whose layers look at different spans of the past (sliding windows) has one block table a kind of layer, called
a group; blocks of all groups come from the same pool. Recurrent layers whose states can be found again are groups too:
a block of theirs is the state where it ends, and the next token looks at the last one alone.
"""

from __future__ import annotations

from infercast.serve.cache.holding import Holding
from infercast.serve.cache.paths import Path, PrefixPaths
from infercast.serve.cache.pool import BlockPool, Pieces
from infercast.serve.cache.shape import Ends, KvShape, Reach
from infercast.serve.workload.request import Request


class KvCache(BlockPool):
    """``num_blocks`` blocks that all groups of layers share.

    With ``sparse_windows``, a group with a window that slides keeps only those blocks findable from which the same
    prompt, or one that was seen to begin like it, can go on; and those before every multiple of ``retained_every``
    tokens, if any.
    With ``drops_last``, the last block of a prefix that is found is computed again.
    """

    def __init__(
        self,
        num_blocks: int,
        shape: KvShape,
        *,
        caching: bool = True,
        sparse_windows: bool = False,
        retained_every: int = 0,
        drops_last: bool = False,
    ) -> None:
        super().__init__(num_blocks, shape, caching=caching)
        self.shape = shape
        self.sparse_windows = sparse_windows
        self._sizes, self._common = shape.sizes, shape.common_size
        self._is_uneven = len({*shape.sizes}) > 1
        self._segment = retained_every // self._common
        self._drops_last = drops_last
        self.ends = Ends(shape.block_size, drops_last, shape.rules.exports)
        """Where aligned states can be found again."""
        self._block_size = shape.block_size
        self._groups = tuple(map(shape.group, range(self.num_groups)))
        self._windowed = tuple(group for group, window in enumerate(shape.windows) if window)
        self._sparse = tuple(group for group in self._windowed if sparse_windows and not shape.chunked)
        self._is_aligned = shape.aligned and bool(shape.states)
        self._is_plain = self.num_groups == 1 and not self._windowed and not shape.states
        self.renews = self._is_aligned and shape.rules.renews
        self._new_states: set[tuple[int, int]] = set()
        """Edges and positions of states that become findable by the step that is being planned."""
        self._paths = PrefixPaths(shape.block_size)

    def path(self, request: Request) -> Path:
        """The blocks that a request may have in common with others."""
        return self._paths.path(request) if self.caching and request.prefix else ()

    def longest_prefix(self, holding: Holding, num_tokens: int) -> int:
        """Tokens of a sequence's beginning that are cached: whole blocks, and never all of its tokens."""
        if not self.caching:
            return 0
        most, per_block = (num_tokens - 1) // self._common, self._common // self._block_size
        if not holding.left_behind:
            most = min(most, holding.shared // per_block)
        if self._drops_last:
            # Where groups are looked up together, and windows are sparse, the last block may be full to be dropped.
            last = num_tokens if self.sparse_windows and self.num_groups > 1 else num_tokens - 1
            if not holding.left_behind:
                last = min(last, holding.shared * self._block_size)
            holding.whole = most
            hit, longest = self._lookup.dropping(holding, most, last, past_states=self.shape.rules.past_attention)
        else:
            hit, longest = self._lookup(holding, most) if most else (0, 0)
            holding.whole = hit
        holding.junction = longest if longest > hit else 0
        if self._sparse or self._is_uneven:
            self._mark_tails(holding)
        return hit * self._common

    def _mark_tails(self, holding: Holding) -> None:
        """Which blocks of windows are of use to others."""
        # Where blocks are uneven, prefixes end with the longest ones, whatever else is kept.
        segment = self._segment if self.sparse_windows else 1
        last = (holding.num_input + holding.num_output) // self._common
        # The window before a multiple may begin before the last token, and serve together with what the prompt left.
        marks = range(segment, last + segment + 1, segment) if segment else ()
        for group in self._sparse if self.sparse_windows else self._windowed:
            drops = self._drops_last and group not in self.shape.states
            blocks = segment * (self._common // self._sizes[group])
            if segment and self._lookup.window_blocks(group, 1 << 30) + drops >= blocks:
                continue  # every block is before some multiple
            marked = {holding.junction, *marks} if self.sparse_windows else {*marks}
            holding.tails[group] = self._lookup.tails(group, holding, marked, drops=self._drops_last)

    def admit(
        self,
        holding: Holding,
        num_cached: int,
        new_tokens: int,
        num_tokens: int,
        chunk: int,
        reserved: int = 0,
        spare: int = 0,
        reach: Reach | None = None,
    ) -> bool:
        """Start a sequence with the ``num_cached`` tokens that `longest_prefix` found and room for ``new_tokens``.

        It starts only if all the blocks for its ``num_tokens``, computed at most ``chunk`` a step, were free now, and
        those for the new tokens beside the ``reserved`` ones; in both cases ``spare`` ones would be left. Aligned
        states need to know what the step computes.
        """
        count = num_cached // self._common
        # A state may be further on than what full attention is to go on from.
        again = (count - holding.whole) * (self.num_groups - len(self._windowed)) if count > holding.whole else 0
        states = self.shape.state_blocks + again
        needed = spare + states + self.blocks_to_start(num_cached, new_tokens, num_tokens, chunk, reach)
        if reserved:
            first = num_cached // self._block_size, self.shape.blocks_for(num_cached + new_tokens)
            needed = max(needed, spare + states + self._missing(*first) + reserved)
        if needed > self.num_free:
            return False
        if count:
            if self._new_states and self._is_new(holding, count - 1):
                return False
            counts = [
                count if group in self._windowed else min(count, holding.whole) for group in range(self.num_groups)
            ]
            counts = [each * (self._common // size) for each, size in zip(counts, self._sizes, strict=True)]
            found = [[*self._lookup.found(holding, group, each)] for group, each in enumerate(counts)]
            for parts in found:
                for line, start, end in parts:
                    span = line.at(start)
                    assert span is not None
                    needed += 0 if span.holders else end - start
            if needed > self.num_free:
                return False
            holding.spans = [[self._hold(holding, *part) for part in parts] for parts in found]
            holding.first = [
                parts[0][1] if parts else counts[group] * (group in self._windowed) for group, parts in enumerate(found)
            ]
        holding.named = holding.length = holding.num_states = num_cached // self._block_size
        self.take(states)
        if again:
            holding.named = holding.whole
            self._name_whole(holding, count)
        return self.grow(holding, num_cached + new_tokens, reach)

    def _name_whole(self, holding: Holding, count: int) -> None:
        """Let others find what full attention computes again of a prefix that was found."""
        before, holding.named = holding.named, count
        for edge, first, end in holding.path:
            start, stop = max(before, first), min(count, end)
            for group in range(self.num_groups) if start < stop else ():
                if group not in self._windowed:
                    self._add(holding, self._lookup.line(edge, group), start, stop)

    def may_fit(self, holding: Holding, num_tokens: int) -> bool:
        """Whether it is worth to look for what is cached: what only the sequence itself can find saves no block."""
        if holding.path or self._windowed:
            return True
        return self.shape.blocks_for(num_tokens) * self.num_groups + self.shape.state_blocks <= self.num_free

    def blocks_to_start(
        self, num_cached: int, new_tokens: int, num_tokens: int, chunk: int, reach: Reach | None = None
    ) -> int:
        """Blocks beyond the cached ones that must be free: for the first step, and for the most that are ever held."""
        size = self._block_size
        count, needed = num_cached // size, -(-(num_cached + new_tokens) // size)
        if not self._windowed and not self._is_uneven:
            return (max(needed, -(-num_tokens // size)) - count) * self.num_groups
        # Group by group: a window's few blocks must not make up for what full attention still needs.
        whole = sum([self._most_to_start(group, count, num_tokens, chunk) for group in self._groups])
        if self._is_aligned and self.ends.is_left(num_cached, num_tokens, self.ends.last(num_tokens)):
            whole += len(self.shape.states)
        if reach is None:
            return max(self._missing(count, needed), whole)
        return max(self._missing(count, needed, self._states_for(reach, count)), whole)

    def _most_to_start(self, group: KvShape, count: int, num_tokens: int, chunk: int) -> int:
        """Blocks of one group beyond ``count`` cached ones for all the tokens of a sequence."""
        if group.states and group.aligned:
            return 1
        return max(0, group.most_blocks(num_tokens, chunk) - count * self._block_size // group.block_size)

    def _missing(self, before: int, after: int, states: int | None = None) -> int:
        """Blocks that all groups together take to grow from so many blocks each to more.

        Of aligned states a step takes one in each group, or as many as are said.
        """
        more = after - before if after > before else 0
        if self._is_uneven:
            return sum([-(-after // ratio) + -before // ratio for ratio in self._ratios]) if more else 0
        if not self._is_aligned:
            return more * self.num_groups
        count = len(self.shape.states)
        return more * (self.num_groups - count) + count * (min(1, more) if states is None else states)

    def _states_for(self, reach: Reach, before: int) -> int:
        """Blocks that a group of aligned states takes for a step, which has so many before it."""
        return 0 if reach.end <= before * self._block_size else 1 + self._leaves_two(reach)

    def _leaves_two(self, reach: Reach) -> bool:
        """Whether a step leaves a state before its end, too: only where a prompt ends, if windows are sparse."""
        is_due = reach.end >= reach.prompt_end or not self.sparse_windows or self._segment > 0
        return is_due and self.ends.is_left(reach.start, reach.end, self.ends.last(reach.end))

    def grow(self, holding: Holding, num_tokens: int, reach: Reach | None = None) -> bool:
        """Make room for so many tokens, or take nothing and say no; aligned states for what a step computes."""
        needed = -(-num_tokens // self._block_size)
        states = None if reach is None else self._states_for(reach, holding.num_states)
        missing = self._missing(holding.length, needed, states)
        if self.num_held + missing > self.num_blocks:
            return False
        if missing > 0:
            self.take(missing)
        if reach is not None and states:
            self._skip_states(holding, -(-reach.end // self._block_size), reach)
        holding.length = max(holding.length, needed)
        return True

    def _skip_states(self, holding: Holding, needed: int, reach: Reach) -> None:
        """A step that fills several blocks leaves a state in the last one alone, or one before its end, too; it begins
        with the one before.
        """
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
        """Another step is planned: what the last one computes can be relied on."""
        self._new_states.clear()

    def renew(self, holding: Holding, num_tokens: int) -> None:
        """The last state of use of a prompt counts as new as long as its sequence holds it and computes with it."""
        if self._drops_last and self.shape.rules.drop and num_tokens % self._block_size:
            return
        last = num_tokens // self._block_size
        if last and last == self.ends.last(holding.num_input) // self._block_size and last <= holding.shared:
            held = holding.first[self.shape.states[0]] <= last - 1 < holding.num_states or last - 1 in holding.earlier
            if held:
                self._new_states.add((self._edge(holding, last - 1), last - 1))

    def _is_new(self, holding: Holding, position: int) -> bool:
        """Whether a state is computed in the step that is being planned, so that no other one can begin with it yet."""
        return (self._edge(holding, position), position) in self._new_states

    def _edge(self, holding: Holding, position: int) -> int:
        """Where a block of a sequence lies."""
        return next((edge for edge, first, end in holding.pieces() if first <= position < end), 0)

    def name(self, holding: Holding, num_tokens: int) -> None:
        """Let others find the blocks that these tokens fill, already while they are being computed."""
        full = num_tokens // self._common * (self._common // self._block_size)
        before = holding.named
        if full <= before or not self.caching:
            return
        holding.named = full
        # Nobody else looks for what is not shared: that has a name only once it is left behind.
        if before >= holding.shared or (self._is_plain and self._lengthen(holding, before, full)):
            return
        if self._is_uneven:
            self._name_uneven(holding, before, full)
            return
        for edge, first, end in holding.path:
            start, stop = max(before, first), min(full, end)
            for group in range(self.num_groups) if start < stop else ():
                is_state, exported = group in self.shape.states, holding.exported
                parts = holding.kept(group, max(start, holding.first[group]), stop)
                if is_state and start <= exported < min(stop, holding.first[group]):
                    parts = [*holding.kept(group, exported, exported + 1), *parts]
                for part in parts:
                    self._add(holding, self._lookup.line(edge, group), *part)
                    if is_state:
                        self._new_states |= {(edge, position) for position in range(*part)}

    def _name_uneven(self, holding: Holding, before: int, full: int) -> None:
        """The same where groups have blocks of different sizes."""
        for group, ratio in enumerate(self._ratios):
            for edge, first, end in holding.path:
                start = max(before // ratio, first // ratio, holding.first[group])
                for part in holding.kept(group, start, min(full, end) // ratio):
                    self._add(holding, self._lookup.line(edge, group), *part)

    def slide(self, holding: Holding, computed: int, unsure: int = 0) -> None:
        """Release the blocks that no token after ``computed`` ones looks at; the last of them is forgotten first.

        States are released as if the last ``unsure`` tokens had not been computed.
        """
        window, end = (-1, 0), -1
        behind = computed - unsure if computed > unsure else 0
        earlier = self._earlier(holding, behind) if holding.earlier else ()
        for group in self._windowed:
            is_state = group in self.shape.states
            kind = self.shape.windows[group], self._sizes[group]
            if kind != window:  # groups with the same window stand side by side
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

    def _earlier(self, holding: Holding, computed: int) -> Pieces:
        """States that steps before the last one began with, which the sequence gives back."""
        end = self.shape.first_in_window(self.shape.states[0], computed)
        given = [place for place in holding.earlier if place + (place == holding.exported) < end]
        del holding.earlier[: len(given)]
        return tuple((position, position + 1) for position in given)

    def free(self, holding: Holding, *, done: bool = True) -> None:
        """Give everything back; the last block of a sequence is the first to be forgotten.

        A sequence that is not ``done`` may come back and find its own blocks again.
        """
        if holding.length:
            self.num_held -= self.shape.state_blocks
            self._num_blank += self.shape.state_blocks
        for group, first in enumerate(holding.first):
            is_state = self._is_aligned and group in self.shape.states
            length = holding.num_states if is_state else -(-holding.length // self._ratios[group])
            if length > first:
                pieces: Pieces = ((first, length),)
                if holding.earlier and is_state:
                    pieces = (*((position, position + 1) for position in holding.earlier), *pieces)
                self._release(holding, group, pieces, named=not done)
            holding.first[group] = 0
        holding.left_behind |= not done
        holding.named = holding.length = holding.num_states = 0
        holding.earlier.clear()
        holding.exported = -1
        holding.spans = None
