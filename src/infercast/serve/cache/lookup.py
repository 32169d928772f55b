"""Which blocks can be found by their content, and how far the beginning of a sequence is among them."""

from __future__ import annotations

from infercast.serve.cache.holding import Copy, Holding, Name
from infercast.serve.cache.shape import KvShape


class Lookup:
    """Finds blocks; several copies of one content stand in a row, the oldest first."""

    def __init__(self, shape: KvShape, found: dict[Name, Copy]) -> None:
        self._shape, self._oldest = shape, found
        self._everywhere = [group for group, window in enumerate(shape.windows) if not window]
        kinds: dict[int, list[int]] = {}
        for group, window in enumerate(shape.windows):
            if window:
                kinds.setdefault(window, []).append(group)
        self._windowed = [*kinds.values()]

    def add(self, copy: Copy) -> Copy:
        """Let a copy be found once older ones of the same content are gone."""
        last = self._oldest.setdefault(copy.name, copy)
        if last is not copy:
            while last.next is not None:
                last = last.next
            last.next = copy
        return copy

    def forget(self, copy: Copy) -> None:
        """A copy is overwritten."""
        before = self._oldest[copy.name]
        if before is not copy:
            while before.next is not copy:
                assert before.next is not None
                before = before.next
            before.next = copy.next
        elif copy.next is not None:
            self._oldest[copy.name] = copy.next
        else:
            del self._oldest[copy.name]

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

    def found(self, holding: Holding, num_cached: int) -> list[list[Copy]]:
        """The cached blocks of each group for that many tokens; those before a window are not needed."""
        count = num_cached // self._shape.block_size
        return [
            [
                self._oldest[group, holding.key(position)]
                for position in range(self._shape.first_in_window(group, num_cached), count)
            ]
            for group in range(len(self._shape.windows))
        ]

    def tails(self, group: int, holding: Holding, junction: int) -> list[range]:
        """Blocks of a window from which the same prompt can go on, and one that parts from it after ``junction``."""
        size = self._shape.block_size
        ends = {(holding.num_input - 1) // size, junction}
        return [range(self._shape.first_in_window(group, end * size), end) for end in sorted(ends) if end]

    def _from_start(self, holding: Holding, most: int) -> int:
        """Blocks from the first one on that full attention finds."""
        position, oldest = 0, self._oldest
        while position < most:
            key = holding.key(position)
            for group in self._everywhere:
                if (group, key) not in oldest:
                    return position
            position += 1
        return position

    def _in_window(self, holding: Holding, groups: list[int], most: int) -> int:
        """The furthest block up to ``most`` before which a window has all it looks at."""
        end = position = most
        while position > self._shape.first_in_window(groups[0], end * self._shape.block_size):
            position -= 1
            key = holding.key(position)
            if any((group, key) not in self._oldest for group in groups):
                end = position
        return end
