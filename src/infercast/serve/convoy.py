"""Sequences that decode in step, so that one count serves all of them.

In every step each of them computes one token. What differs between two of them stays the same from step to step: how
far apart their lengths are, in which steps they need another block, in which step they will have all their tokens. A
step of the convoy therefore costs the same however many sequences are in it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import accumulate

from infercast.serve.cache import KvCache
from infercast.serve.scheduler import Sequence


class Convoy:
    """Running sequences, in the scheduler's order, whose own counts stand still while they are members."""

    def __init__(self, cache: KvCache) -> None:
        self.members: list[Sequence] = []
        self.steps = 0
        """Steps planned so far; members have been in each of them since they joined."""
        self.computed = 0
        """Tokens that all members have computed together."""
        self._cache = cache
        self.is_windowed, self._num_groups = any(cache.shape.windows), len(cache.shape.windows)
        self._block_size = cache.shape.block_size
        self._last_steps: list[tuple[int, int, Sequence]] = []
        # For the number of a step modulo the block size: members that begin a block in it, and how many blocks that is.
        self._begin: list[list[Sequence]] = [[] for _ in range(self._block_size)]
        self._blocks = [0] * self._block_size

    def contexts(self) -> list[int]:
        """Tokens that each member has computed."""
        return [member.num_computed + self.steps - member.joined for member in self.members]

    def steps_left(self) -> int:
        """Steps until some member has all its tokens."""
        return self._last_steps[0][0] - self.steps

    def join(self, sequences: Iterable[Sequence]) -> None:
        """Sequences that have caught up in the step planned last will decode from the next one on."""
        steps = self.steps
        for sequence in sequences:
            sequence.joined = steps
            self.computed += sequence.num_computed
            last = steps + sequence.request.num_output - sequence.num_promised
            heapq.heappush(self._last_steps, (last, sequence.index, sequence))
            phase = (steps + 1 - sequence.num_computed) % self._block_size
            self._begin[phase].append(sequence)
            self._blocks[phase] += self._num_groups
            self.members.append(sequence)

    def blocks_needed(self, steps: int, ahead: int = 0) -> list[int]:
        """Blocks that the members together ask for in each of the steps after ``ahead`` ones; windows may free some."""
        blocks, start = self._blocks, (self.steps + ahead + 1) % self._block_size
        if steps <= self._block_size - start:
            return blocks[start : start + steps]
        return (blocks[start:] + blocks * (1 + steps // self._block_size))[:steps]

    def grow(self, steps: int, ahead: int = 0) -> list[int]:
        """Take the blocks of the steps after ``ahead`` ones; returns how many are held in each, while there is room."""
        cache = self._cache
        if self.is_windowed:
            return self._grow_windows(steps, ahead)
        before = cache.num_held
        held = [*accumulate(self.blocks_needed(steps, ahead), initial=before)]
        if held[-1] > cache.num_blocks:
            del held[bisect_right(held, cache.num_blocks) :]
        cache.take(held[-1] - before)
        del held[0]
        return held

    def _grow_windows(self, steps: int, ahead: int) -> list[int]:
        """The same where members give blocks back while they go on."""
        held: list[int] = []
        cache = self._cache
        for step in range(self.steps + ahead + 1, self.steps + ahead + steps + 1):
            for member in self._begin[step % self._block_size]:
                computed = member.num_computed + step - 1 - member.joined
                cache.name_full_blocks(member.holding, computed)
                if not (member.holding.capacity > computed or cache.grow(member.holding, computed, 1)):
                    return held
            held.append(cache.num_held)
        return held

    def advance(self, steps: int) -> list[Sequence]:
        """Every member computes so many tokens, for which blocks were taken; returns those that have all of theirs."""
        self.steps += steps
        self.computed += steps * len(self.members)
        last_steps = self._last_steps
        if not last_steps or last_steps[0][0] > self.steps:
            return []
        leaving = []
        while last_steps and last_steps[0][0] == self.steps:
            sequence = heapq.heappop(last_steps)[2]
            leaving.append(sequence)
            phase = (sequence.joined + 1 - sequence.num_computed) % self._block_size
            self._begin[phase].remove(sequence)
            self._blocks[phase] -= self._num_groups
            self._catch_up(sequence)
            self.computed -= sequence.num_computed
        if len(leaving) > 1:
            gone = {*leaving}
            leaving = [member for member in self.members if member in gone]
        for sequence in leaving:
            self.members.remove(sequence)
        return leaving

    def dissolve(
        self, under_way: int, first: SequenceOf[Sequence], done: SequenceOf[Sequence], last_end: float
    ) -> list[Sequence]:
        """Give every sequence its own counts back; returns who is sampled in the step under way, if there is one.

        That is one step at most, the last that was planned, so all members are in it; ``first`` and ``done`` are its
        newcomers and those who left the convoy for having all their tokens by its end. The last tokens left at
        ``last_end``.
        """
        assert under_way <= 1
        for member in self.members:
            self._catch_up(member)
        sampled, fresh = [*self.members, *done], {*first}
        for sequence in sampled:
            sequence.num_produced = sequence.num_promised - under_way
            if sequence not in fresh:
                sequence.last_token = last_end
        self.members, self.computed, self._last_steps = [], 0, []
        self._begin, self._blocks = [[] for _ in self._begin], [0] * self._block_size
        return sampled if under_way else []

    def _catch_up(self, sequence: Sequence) -> None:
        """Bring a member's own counts up to date."""
        steps = self.steps - sequence.joined
        computed = sequence.num_computed = sequence.num_computed + steps
        sequence.num_promised += steps
        sequence.joined = self.steps
        sequence.num_tokens = computed + (sequence.num_promised < sequence.request.num_output)
        if not self.is_windowed:
            self._cache.cover(sequence.holding, -(-computed // self._block_size))
        self._cache.name_full_blocks(sequence.holding, computed)
