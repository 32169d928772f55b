"""Sequences that compute a token each in the same steps, so that one count of steps serves all of them.

What differs between two of them stays the same from step to step: how far apart their lengths are, in which steps they
need another block, in which step they will have all their tokens. A step therefore costs the same however many
sequences are in it, and so do many steps in a row.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from infercast.serve.cache.shape import KvShape
from infercast.serve.scheduler.sequence import Sequence

Member = TypeVar("Member", bound=Sequence)


class Blocks(Protocol):
    """What members take their blocks from."""

    num_blocks: int
    num_groups: int
    shape: KvShape

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""


class Group(Generic[Member]):
    """Members, whose own counts stand still while they are in it."""

    def __init__(self, blocks: Blocks) -> None:
        self.members: dict[Member, None] = {}
        self.steps = 0
        """Steps planned so far; members have been in each of them since they joined."""
        self.computed = 0
        """Tokens that all members have computed together."""
        self._pool = blocks
        shape, self._num_groups = blocks.shape, blocks.num_groups
        self._block_size, self.period = shape.block_size, shape.common_size
        """Tokens of the shortest block, and those after which all groups of layers begin one together."""
        starts = [[offset % size == 0 for size in shape.sizes] for offset in range(0, self.period, self._block_size)]
        self._begun = [(number * self._block_size, sum(each)) for number, each in enumerate(starts)]
        """Within a period: tokens after which groups begin a block, and how many do."""
        self._last_steps: list[tuple[int, int, Member]] = []
        self._num_joined = 0
        self.blocks = [0] * self.period
        """For the number of a step modulo the period: blocks that members begin in it."""

    def contexts(self) -> list[int]:
        """Tokens that each member has computed."""
        steps = self.steps
        return [member.num_computed + steps - member.joined for member in self.members]

    def steps_left(self) -> int:
        """Steps until some member has all its tokens."""
        heap = self._last_steps
        while True:
            last, _, member = heap[0]
            if member.joined >= 0 and member.last_step == last:
                return last - self.steps
            heapq.heappop(heap)  # it left before

    def _enter(self, member: Member) -> int:
        """A sequence that has caught up is a member from the next step on; returns when it begins blocks."""
        steps, computed = self.steps, member.num_computed
        member.joined = steps
        self._num_joined += 1
        self.members[member] = None
        self.computed += computed
        member.last_step = last = steps + member.num_output - member.num_promised
        heapq.heappush(self._last_steps, (last, self._num_joined, member))
        phase = (steps + 1 - computed) % self.period
        for offset, count in self._begun:
            self.blocks[(phase + offset) % self.period] += count
        return phase

    def _blocks_needed(self, steps: int) -> list[int]:
        """Blocks that the members ask for in each of the steps after the next one."""
        blocks, start = self.blocks, (self.steps + 2) % self.period
        if steps <= self.period - start:
            return blocks[start : start + steps]
        return (blocks[start:] + blocks * (1 + steps // self.period))[:steps]

    def steps_with_room(self, steps: int) -> int:
        """Of the steps after the next one, those for which there are blocks, even if windows give none back."""
        room = self._pool.num_blocks - self._pool.num_held
        if len(self.members) * self._num_groups * (1 + steps // self._block_size) <= room:
            return steps
        return bisect_right([*accumulate(self._blocks_needed(steps))], room)

    def _due(self) -> list[Member]:
        """Members that have all their tokens after the steps so far, by the order in which that came."""
        heap, due = self._last_steps, dict[Member, None]()
        while heap and heap[0][0] <= self.steps:
            last, _, member = heapq.heappop(heap)
            if member.joined >= 0 and member.last_step == last:
                due[member] = None  # once, even if it left and came back with as much to do
        return [*due]
