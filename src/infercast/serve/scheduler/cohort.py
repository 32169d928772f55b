"""The decode batch of an engine that mixes prefill and decode: sequences in every step, counted as one.

A member leaves when its last token is scheduled, or a step later if the engine cannot know that it is the last. Members
with sliding windows free blocks as they advance, and those with shareable answers add blocks to the prefix cache.
"""

from __future__ import annotations

import heapq
from itertools import accumulate

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import APART, ENDING, Group, Sequence


class DecodeBatch(Group[Sequence]):
    """Decoding sequences, in the scheduler's order."""

    def __init__(self, cache: KvCache, unknown: int, *, frees_on_completion: bool = False) -> None:
        super().__init__(cache)
        self._cache = cache
        # By step number modulo the period: members that begin blocks in that step, and how many.
        self._begin: list[dict[Sequence, int]] = [{} for _ in range(self.period)]
        self._unknown = unknown  # Tokens per member that are computed but not in the prefix cache, their values unknown
        self._behind = unknown if frees_on_completion else 0
        """Tokens per member that are computed in an in-flight step, which still reads the context before them."""
        shape = cache.shape
        self._windows = {(window, size) for window, size in zip(shape.windows, shape.sizes, strict=True) if window}
        self.is_windowed = bool(self._windows)
        # Members whose window drops a block in such a step, and those that joined in the last two steps.
        self._leave: list[dict[Sequence, None]] = [{} for _ in range(self.period)]
        self._recent: list[list[Sequence]] = [[], []]
        # The other members: the step in which each reaches the shortest window, earliest first.
        self._short: list[tuple[int, int, Sequence]] = []
        self._shortest = min([window for window, _ in self._windows], default=0)
        self.answering: dict[Sequence, None] = {}  # Members with answers that others may reuse: full blocks are cached
        # Of these, by step number modulo the block size: those with a block known to be full by then.
        self._fill: list[dict[Sequence, None]] = [{} for _ in range(self._block_size)]
        self.late: dict[Sequence, None] = {}  # Members whose last token is in flight: their next token is discarded
        self._overdue: list[Sequence] = []
        self._named_until = 0
        self._whole = self.period // self._block_size

    def last_place(self) -> int:
        """Start position of the last started member; -1 without members."""
        return next(reversed(self.members)).place if self.members else -1

    def join(self, sequence: Sequence) -> None:
        """A sequence that has caught up in the step planned last will decode from the next one on."""
        is_last = not self.members or sequence.place > next(reversed(self.members)).place
        phase = self._enter(sequence)
        if not is_last:
            self.members = dict.fromkeys(sorted(self.members, key=lambda member: member.place))
        for offset, count in self._begun:
            self._begin[(phase + offset) % self.period][sequence] = count
        if self.is_windowed:
            reaches = self.steps + self._shortest - sequence.num_computed
            heapq.heappush(self._short, (reaches, self._num_joined, sequence))
            self._recent[0].append(sequence)
        if sequence.shared // self._whole * self._whole > sequence.named:
            self.answering[sequence] = None
            filled = self.steps - self._start(sequence)
            self._fill[self._start(sequence) % self._block_size][sequence] = None
            if filled // self._block_size > sequence.named:
                self._overdue.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Remove a member and restore its own counts."""
        phase = (sequence.joined + 1 - sequence.num_computed) % self.period
        del self.members[sequence]
        if self.late:
            self.late.pop(sequence, None)
        for offset, count in self._begun:
            del self._begin[(phase + offset) % self.period][sequence]
            self.blocks[(phase + offset) % self.period] -= count
        if self.is_windowed:
            for phase in self._leaving_phases(sequence):
                self._leave[phase].pop(sequence, None)
            for recent in self._recent:
                if sequence in recent:
                    recent.remove(sequence)
        if sequence in self.answering:
            del self.answering[sequence]
            self._fill[self._start(sequence) % self._block_size].pop(sequence)
        steps = self.steps - sequence.joined
        if steps:
            sequence.num_under_way += self._behind
        computed = sequence.num_computed = sequence.num_computed + steps
        self.computed -= computed
        sequence.num_promised += steps
        sequence.num_produced = sequence.num_promised - self._unknown
        sequence.num_tokens = computed + (sequence.num_promised < sequence.num_most)
        sequence.joined = APART
        sequence.length = sequence.num_states = -(-computed // self._block_size)
        self._cache.name(sequence, computed - self._unknown)

    def due(self) -> list[Sequence]:
        """Members that begin a block in the next step, in order."""
        return sorted(self._begin[(self.steps + 1) % self.period], key=lambda member: member.place)

    def grow(self, steps: int) -> list[int]:
        """Allocate the blocks of the steps after the next one; returns those held in each, as far as there is room."""
        if self.is_windowed:
            return self.grow_windows(steps, 1)
        cache = self._cache
        before, room = cache.num_held, cache.num_blocks
        held = [*accumulate(self._blocks_needed(steps), initial=before)]
        while held[-1] > room:
            held.pop()
        if held[-1] > before:
            cache.take(held[-1] - before)
        del held[0]
        return held

    def grow_windows(self, steps: int = 1, ahead: int = 0) -> list[int]:
        """The same with sliding windows, which free blocks on the way, for steps after the next ``ahead`` ones."""
        held: list[int] = []
        cache, first = self._cache, self.steps + ahead + 1
        for step in range(first, first + steps):
            phase = step % self.period
            if self.blocks[phase] > cache.num_free:  # from here on, the order of frees and allocations matters
                return held
            self.name_answers(step - 1)
            while self._short and self._short[0][0] <= step:
                self._outgrow(heapq.heappop(self._short)[2])
            moving = {*self._leave[phase], *self._recent[1], *self._recent[0]}
            if moving:
                # Blocks that leave a window are reallocated in the order they were freed.
                begin = self._begin[phase]
                for member in sorted({*moving, *begin}, key=lambda each: each.place):
                    if member in moving:
                        self._move_on(member, step)
                    if member in begin:
                        cache.take(begin[member])
                self._recent = [[], self._recent[0]]
            else:
                cache.take(self.blocks[phase])
            held.append(cache.num_held)
        return held

    def _outgrow(self, member: Sequence) -> None:
        """A member has reached about the shortest window, and drops blocks from here on."""
        if member.joined >= 0:
            for phase in self._leaving_phases(member):
                self._leave[phase][member] = None

    def _move_on(self, member: Sequence, step: int) -> None:
        """Slide a member's windows to a step."""
        computed = member.num_computed + step - 1 - member.joined
        member.length = member.num_states = -(-computed // self._block_size)
        self._cache.name(member, computed - self._unknown)
        behind = member.num_under_way + (self._behind if member.joined < step - 1 else 0)
        self._cache.slide(member, computed - behind)
        if self._cache.renews:
            self._cache.renew(member, computed + 1 - self._unknown)

    def _leaving_phases(self, sequence: Sequence) -> set[int]:
        """Step numbers, modulo the period, in which one of the member's blocks leaves a window."""
        start = sequence.joined + self._cache.shape.chunked - sequence.num_computed + self._behind
        return {
            ((start + window) % size + offset) % self.period
            for window, size in self._windows
            for offset in range(0, self.period, size)
        }

    def _start(self, member: Sequence) -> int:
        """The step in which its first token would have been known, had it been in every step since."""
        return member.joined - member.num_computed + self._unknown

    def name_answers(self, step: int) -> None:
        """Add answer blocks that are known to be full when a step is planned to the prefix cache, in order."""
        first, self._named_until = self._named_until + 1, max(self._named_until, step)
        if not self.answering:
            return
        if self._overdue:
            self._name_overdue()
        size, unknown, cache, fill = self._block_size, self._unknown, self._cache, self._fill
        for each in range(first, step + 1):
            for member in fill[each % size]:
                blocks = (each - (member.joined - member.num_computed + unknown)) // size
                if member.named < blocks <= member.shared:
                    cache.name(member, blocks * size)

    def _name_overdue(self) -> None:
        """Add blocks that were already full when their members joined."""
        size, due = self._block_size, list[tuple[int, int, Sequence, int]]()
        for number, member in enumerate(self._overdue):
            start = self._start(member)
            full = min((self.steps - start) // size, member.shared) if member in self.answering else 0
            due += [(start + block * size, number, member, block * size) for block in range(member.named + 1, full + 1)]
        for _, _, member, tokens in sorted(due, key=lambda each: each[:2]):
            self._cache.name(member, tokens)
        self._overdue.clear()

    def advance(self, steps: int) -> list[Sequence]:
        """Advance every member by this many tokens, in blocks allocated before; returns finished members."""
        self.steps += steps
        self.computed += steps * len(self.members)
        if self.answering:
            self.name_answers(self.steps)
        if self.late:
            for member in [*self.late]:
                self.leave(member)
                member.joined = ENDING
        heap = self._last_steps
        if not heap or heap[0][0] > self.steps:
            return []
        ending = self._due()
        for member in ending:
            if self._unknown and member.num_most > member.num_output:
                self.late[member] = None
                continue
            self.leave(member)
            member.joined = ENDING
        if len(ending) > 1:
            ending.sort(key=lambda member: member.place)
        return ending
