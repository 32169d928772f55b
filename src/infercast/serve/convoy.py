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

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.scheduler import Sequence


class Convoy:
    """Running sequences, in the scheduler's order, whose own counts stand still while they are members."""

    def __init__(self, cache: KvCache, steps_under_way: int, *, settles: bool = False) -> None:
        self.members: list[Sequence] = []
        self.steps = 0
        """Steps planned so far; members have been in each of them since they joined."""
        self.computed = 0
        """Tokens that all members have computed together."""
        self._cache = cache
        self._num_joined = 0
        self.is_windowed, self._num_groups = any(cache.shape.windows), len(cache.shape.windows)
        self._block_size = cache.shape.block_size
        self._last_steps: list[tuple[int, int, Sequence]] = []
        # For the number of a step modulo the block size: members that begin a block in it, and how many blocks that is.
        self._begin: list[list[Sequence]] = [[] for _ in range(self._block_size)]
        self._blocks = [0] * self._block_size
        # The same for members whose window leaves a block behind, and those who have joined since the last step.
        self._leave: list[list[Sequence]] = [[] for _ in range(self._block_size)]
        self._fresh: list[Sequence] = []
        self._second: list[Sequence] = []
        self._settles = settles
        self._behind = steps_under_way - 1 if settles else 0
        """Tokens of each member that are computed, but in a step under way that still reads what is before them."""
        self._windows = {window for window in cache.shape.windows if window}
        self._unknown = steps_under_way - 1
        """Tokens of each member that are computed but, as their values are not known yet, not findable."""
        self._answering: list[Sequence] = []
        """Members whose answers others may look for."""

    @property
    def names_answers(self) -> bool:
        """Whether steps of decoding make blocks that others may look for."""
        return bool(self._answering)

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
            self._num_joined += 1
            sequence.place = self._num_joined
            self.computed += sequence.num_computed
            last = steps + sequence.request.num_output - sequence.num_promised
            heapq.heappush(self._last_steps, (last, sequence.index, sequence))
            phase = (steps + 1 - sequence.num_computed) % self._block_size
            self._begin[phase].append(sequence)
            self._blocks[phase] += self._num_groups
            self.members.append(sequence)
            for phase in self._leaving_phases(sequence):
                self._leave[phase].append(sequence)
            if self.is_windowed:
                self._fresh.append(sequence)
            if len(sequence.holding.shared) > sequence.holding.num_named:
                self._answering.append(sequence)

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
            phase = step % self._block_size
            if self._blocks[phase] > cache.num_free:  # now it matters who gives back before whom
                return held
            self.name_answers(step - 1)
            moving = [*self._leave[phase], *self._second, *self._fresh]
            if (
                self._cache.sparse_windows
            ):  # what falls out of a window may be blank, and is then handed out at once to who comes next
                for member in sorted({*moving, *self._begin[phase]}, key=lambda each: each.place):
                    self._move_on(member, step)
                    self._begin_block(member, step)
            else:
                for member in moving:
                    self._move_on(member, step)
                for member in self._begin[phase]:
                    self._begin_block(member, step)
            self._fresh, self._second = [], self._fresh
            held.append(cache.num_held)
        return held

    def _move_on(self, member: Sequence, step: int) -> None:
        """Let a member's windows leave behind what they do not look at in a step."""
        computed = member.num_computed + step - 1 - member.joined
        self._cache.name_full_blocks(member.holding, computed - self._unknown)
        behind = self._behind if member.joined < step - 1 else member.num_under_way
        self._cache.slide(member.holding, computed - behind)

    def _begin_block(self, member: Sequence, step: int) -> None:
        """Give a member another block if the token of a step needs one."""
        computed = member.num_computed + step - 1 - member.joined
        if member.holding.capacity <= computed:
            self._cache.grow(member.holding, computed, 1)

    def name_answers(self, step: int) -> None:
        """Let others find the blocks of answers that are known to be full when a step is planned, in their order."""
        if not self._answering:
            return
        due: list[tuple[int, int, Sequence, int]] = []
        for number, member in enumerate(self._answering):
            start = member.joined - member.num_computed + self._unknown
            full = min((step - start) // self._block_size, len(member.holding.shared))
            blocks = range(member.holding.num_named + 1, full + 1)
            due += [(start + block * self._block_size, number, member, block * self._block_size) for block in blocks]
        for _, _, member, tokens in sorted(due, key=lambda each: each[:2]):
            self._cache.name_full_blocks(member.holding, tokens)

    def _leaving_phases(self, sequence: Sequence) -> set[int]:
        """Numbers of steps, modulo the block size, in which a block of the member falls out of a window."""
        start = sequence.joined + 1 - sequence.num_computed
        return {(start + window - 1 + self._behind) % self._block_size for window in self._windows}

    def advance(self, steps: int) -> list[Sequence]:
        """Every member computes so many tokens, for which blocks were taken; returns those that have all of theirs."""
        self.steps += steps
        self.computed += steps * len(self.members)
        self.name_answers(self.steps)
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
            for phase in self._leaving_phases(sequence):
                self._leave[phase].remove(sequence)
            for recent in (self._fresh, self._second):
                if sequence in recent:
                    recent.remove(sequence)
            if sequence in self._answering:
                self._answering.remove(sequence)
            self._catch_up(sequence, self._unknown)
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
        self.name_answers(self.steps)
        for member in self.members:
            if self._settles and member.joined < self.steps:
                member.num_under_way = under_way
            self._catch_up(member, under_way)
        sampled, fresh = [*self.members, *done], {*first}
        for sequence in sampled:
            sequence.num_produced = sequence.num_promised - under_way
            if sequence not in fresh:
                sequence.last_token = last_end
        self.members, self.computed, self._last_steps = [], 0, []
        self._begin, self._blocks = [[] for _ in self._begin], [0] * self._block_size
        self._leave, self._fresh, self._second, self._answering = [[] for _ in self._leave], [], [], []
        return sampled if under_way else []

    def _catch_up(self, sequence: Sequence, unknown: int) -> None:
        """Bring a member's own counts up to date; its last ``unknown`` tokens are not known yet."""
        steps = self.steps - sequence.joined
        computed = sequence.num_computed = sequence.num_computed + steps
        sequence.num_promised += steps
        sequence.joined = self.steps
        sequence.num_tokens = computed + (sequence.num_promised < sequence.request.num_output)
        if not self.is_windowed:
            self._cache.cover(sequence.holding, -(-computed // self._block_size))
        self._cache.name_full_blocks(sequence.holding, computed - unknown)
