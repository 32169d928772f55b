"""Sequences that decode in step, known by the indices of their requests.

The same as `infercast.serve.convoy`, for sequences of which nothing but their length has to be kept.
"""

from __future__ import annotations

import heapq

from infercast.serve.cache.shape import KvShape


class IndexedConvoy:
    """Running sequences, in the order in which they came."""

    def __init__(self, shape: KvShape, outputs: list[int]) -> None:
        self.members: dict[int, int] = {}
        """Each with the tokens that it has computed, less the steps there were."""
        self.steps = 0
        """Steps planned so far."""
        self.computed = 0
        """Tokens that all members have computed together."""
        self.last_steps: list[tuple[int, int]] = []
        """A heap of the step that brings each member its last token, and the member."""
        self.outputs = outputs
        """Tokens that each request asks for."""
        self.block_size, self.num_groups = shape.block_size, len(shape.windows)
        self.blocks = [0] * self.block_size
        """For the number of a step modulo the block size, blocks that members begin in it."""

    def join(self, index: int, computed: int, promised: int) -> None:
        """A sequence that has caught up in the step planned last will decode from the next one on."""
        self.members[index] = offset = computed - self.steps
        self.computed += computed
        heapq.heappush(self.last_steps, (self.steps + self.outputs[index] - promised, index))
        self.blocks[(1 - offset) % self.block_size] += self.num_groups

    def contexts(self) -> list[int]:
        """Tokens that each member has computed."""
        return [offset + self.steps for offset in self.members.values()]

    def advance(self, steps: int) -> list[int]:
        """Every member computes so many tokens, for which blocks were taken; returns those that have all of theirs."""
        self.steps += steps
        self.computed += steps * len(self.members)
        leaving: list[int] = []
        last_steps = self.last_steps
        while last_steps and last_steps[0][0] == self.steps:
            index = heapq.heappop(last_steps)[1]
            offset = self.members.pop(index)
            self.computed -= offset + self.steps
            self.blocks[(1 - offset) % self.block_size] -= self.num_groups
            leaving.append(index)
        return leaving
