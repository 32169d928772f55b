"""Which blocks can be found by their content, and how far the beginning of a sequence is among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infercast.serve.cache.holding import Holding, Line, Span
from infercast.serve.cache.shape import Ends, KvShape

Part = tuple[Line, int, int]
"""Blocks from one position to another, in the oldest span that has them."""


class Lookup:
    """Finds spans of blocks."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape._replace(retained=0)  # nobody looks at what is kept before a window
        self._lines: dict[tuple[int, int], Line] = {}
        kinds: dict[tuple[int, int], list[int]] = {}
        for group, window in enumerate(shape.windows):
            kinds.setdefault((window, shape.sizes[group]), []).append(group)
        self._everywhere = [groups for (window, _), groups in kinds.items() if not window]
        self._windowed = [groups for (window, _), groups in kinds.items() if window]
        self._ratios = [size // shape.block_size for size in shape.sizes]
        self._in_common = [shape.common_size // size for size in shape.sizes]
        """Blocks of each group that are as long as what a cached prefix is a multiple of."""

    def line(self, edge: int, group: int) -> Line:
        """What there is of an edge."""
        line = self._lines.get((edge, group))
        if line is None:
            line = self._lines[edge, group] = Line(edge, group)
        return line

    def forget(self, span: Span) -> None:
        """Nothing of a span is left."""
        line = span.line
        line.spans.remove(span)
        if not line.spans:
            del self._lines[line.edge, line.group]

    def __call__(self, holding: Holding, most: int) -> tuple[int, int]:
        """How much of its beginning, up to ``most``, all groups can go on from; and how far one kind comes alone.

        Both are multiples of what fills whole blocks in every group.
        """
        # Full attention needs every block from the start; windows need only the last few before the end.
        hit = most
        for groups in self._everywhere:
            count = self._in_common[groups[0]]
            hit = self._onward(holding, groups, 0, hit * count) // count
        longest = hit if self._everywhere else 0
        while True:
            before = hit
            for groups in self._windowed:
                count = self._in_common[groups[0]]
                hit = self._in_window(holding, groups, hit * count) // count
                longest = max(longest, hit)
            if hit == before or len(self._windowed) <= 1:
                return hit, longest

    def dropping(self, holding: Holding, most: int, last: int, *, past_states: bool) -> tuple[int, int]:
        """The same where each kind of layer has to find a block more than it goes on from, among ``last`` tokens.

        States have nothing to drop. With ``past_states`` one is looked for a block further, and gone on from.
        """
        kinds = [*self._everywhere, *self._windowed]
        dropped: set[int] = set()
        hit, longest, is_first = most, 0, True
        while True:
            before = hit
            for number, groups in enumerate(kinds):
                is_whole = number < len(self._everywhere)
                if is_whole and not is_first:
                    continue  # it has found all up to here
                drops, count = number not in dropped, self._in_common[groups[0]]
                reach = min(hit * count + 1, last // self._shape.sizes[groups[0]]) if drops else hit * count
                if is_whole:
                    found = holding.whole = max(0, self._onward(holding, groups, 0, reach) - 1) // count
                elif groups[0] in self._shape.states:
                    found = self._in_window(holding, groups, min(hit + 1, most) if past_states and drops else hit)
                else:
                    found = self._in_window(holding, groups, reach, drops=drops) // count
                if not drops and found < hit:
                    dropped.clear()
                elif drops:
                    dropped.add(number)
                hit = found
                longest = max(longest, hit)
            is_first = False
            if hit >= before or (len(kinds) == 2 and self._everywhere):
                return hit, longest

    def found(self, holding: Holding, group: int, count: int) -> Iterator[Part]:
        """The cached blocks of a group up to ``count``, in parts; those before its window are not needed."""
        position = self._first(group, count)
        for edge, _, end in holding.pieces(self._ratios[group]):
            while position < min(end, count):
                line = self._lines[edge, group]
                number = next(i for i, span in enumerate(line.spans) if span.start <= position < span.end)
                stop = min(line.spans[number].end, end, count)
                for older in line.spans[:number]:
                    if position < older.start < stop:
                        stop = older.start
                yield line, position, stop
                position = stop

    def tails(self, group: int, holding: Holding, marks: Iterable[int], *, drops: bool = False) -> list[range]:
        """Blocks of a window from which the same prompt can go on, and those before the ``marks``, if not 0.

        Marks are multiples of what fills whole blocks in every group. With ``drops``, a block more than it goes on
        from, and a longer prompt can go on, too.
        """
        size, count = self._shape.common_size, self._in_common[group]
        if group in self._shape.states:
            ends = {Ends(size, drops).last(holding.num_input + more) // size for more in range(-drops, 1)}
            return [range(end - 1, end) for end in sorted({*ends, *marks}) if end]
        if drops:
            ends = {max(0, tokens // size - 1) for tokens in (holding.num_input - 1, holding.num_input)}
            ends.update(mark for mark in marks if mark)
            return [range(self._first(group, end * count), end * count + 1) for end in sorted(ends)]
        ends = {(holding.num_input - 1) // size, *marks}
        return [range(self._first(group, end * count), end * count) for end in sorted(ends) if end]

    def window_blocks(self, group: int, end: int) -> int:
        """Blocks that a window looks at where so many are computed."""
        return end - self._first(group, end)

    def _onward(self, holding: Holding, groups: list[int], position: int, most: int) -> int:
        """How far, up to ``most``, all of these groups find every block from a position on."""
        lines = self._lines
        for edge, _, end in holding.pieces(self._ratios[groups[0]]):
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

    def _in_window(self, holding: Holding, groups: list[int], most: int, *, drops: bool = False) -> int:
        """The furthest block up to ``most`` before which a window has all it looks at; with ``drops``, and it too."""
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
            return max(0, end - drops - count)  # what is not a whole window is cut to a common end before it drops one
        return max(0, end - drops)

    def _first(self, group: int, end: int) -> int:
        """The first block that is looked at where so many are computed."""
        return self._shape.first_in_window(group, end * self._shape.sizes[group])

    def _below(self, edge: int, group: int, start: int, position: int) -> tuple[bool, int]:
        """Whether the block before ``position`` is found, and down to where that stays so."""
        line = self._lines.get((edge, group))
        if line is None:
            return False, start
        down_to = position
        while (span := line.at(down_to - 1)) is not None:
            down_to = span.start
        if down_to < position:
            return True, max(down_to, start)
        return False, max([start, *(span.end for span in line.spans if span.end < position)])
