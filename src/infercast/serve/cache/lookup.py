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
        self._everywhere = [group for group, window in enumerate(shape.windows) if not window]
        kinds: dict[int, list[int]] = {}
        for group, window in enumerate(shape.windows):
            if window:
                kinds.setdefault(window, []).append(group)
        self._windowed = [*kinds.values()]

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
        """Leading blocks, up to ``most``, that all groups can go on from; and how far a kind of layer comes alone."""
        # Full attention needs every block from the start; windows need only the last few before the end.
        hit = self._from_start(holding, most) if self._everywhere else most
        longest = hit if self._everywhere else 0
        while True:
            before = hit
            for groups in self._windowed:
                hit = self._in_window(holding, groups, hit)
                longest = max(longest, hit)
            if hit == before or len(self._windowed) <= 1:
                return hit, longest

    def dropping(self, holding: Holding, most: int, last: int, *, past_states: bool) -> tuple[int, int]:
        """The same where each kind of layer has to find a block more than it goes on from, up to the ``last`` one.

        States have nothing to drop. With ``past_states`` one is looked for a block further, and gone on from.
        """
        kinds = [self._everywhere, *self._windowed] if self._everywhere else self._windowed
        dropped: set[int] = set()
        hit, longest, is_first = most, 0, True
        while True:
            before = hit
            for number, groups in enumerate(kinds):
                if groups is self._everywhere and not is_first:
                    continue  # it has found all up to here
                drops = number not in dropped
                reach = min(hit + 1, last) if drops else hit
                if groups is self._everywhere:
                    found = holding.whole = max(0, self._from_start(holding, reach) - 1)
                elif groups[0] in self._shape.states:
                    found = self._in_window(holding, groups, min(hit + 1, most) if past_states and drops else hit)
                else:
                    found = self._in_window(holding, groups, reach, drops=drops)
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
        position = self._shape.first_in_window(group, count * self._shape.block_size)
        for edge, _, end in holding.pieces():
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

        With ``drops``, a block more than it goes on from, and a longer prompt can go on, too.
        """
        size = self._shape.block_size
        if group in self._shape.states:
            ends = {Ends(size, drops).last(holding.num_input + more) // size for more in range(-drops, 1)}
            return [range(end - 1, end) for end in sorted({*ends, *marks}) if end]
        if drops:
            ends = {max(0, tokens // size - 1) for tokens in (holding.num_input - 1, holding.num_input)}
            ends.update(mark for mark in marks if mark)
            return [range(self._first(group, end), end + 1) for end in sorted(ends)]
        ends = {(holding.num_input - 1) // size, *marks}
        return [range(self._shape.first_in_window(group, end * size), end) for end in sorted(ends) if end]

    def window_blocks(self, group: int, end: int) -> int:
        """Blocks that a window looks at where so many are computed."""
        return end - self._shape.first_in_window(group, end * self._shape.block_size)

    def _from_start(self, holding: Holding, most: int) -> int:
        """Blocks from the first one on that full attention finds."""
        return self._onward(holding, self._everywhere, 0, most)

    def _onward(self, holding: Holding, groups: list[int], position: int, most: int) -> int:
        """How far, up to ``most``, all of these groups find every block from a position on."""
        lines = self._lines
        for edge, _, end in holding.pieces():
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
        if self._shape.chunked and groups[0] not in self._shape.states:
            return self._onward(holding, groups, self._first(groups[0], most), most)
        end = position = most
        for edge, start, _ in reversed(holding.pieces()):
            while position > start and position > self._first(groups[0], end - drops):
                covered = [self._below(edge, group, start, position) for group in groups]
                if all(is_found for is_found, _ in covered):
                    position = max(down_to for _, down_to in covered)
                else:
                    position = end = min(down_to for is_found, down_to in covered if not is_found)
        return max(0, end - drops)

    def _first(self, group: int, end: int) -> int:
        """The first block that is looked at where so many are computed."""
        return self._shape.first_in_window(group, end * self._shape.block_size)

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
