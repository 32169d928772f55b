"""The cache in spans against the cache block by block, operation by operation."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from infercast.serve.cache.blocks import BlockAllocation, KvShape
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.workload.request import Request, Segment

WINDOWS = [(0,), (0, 0), (6,), (0, 5), (0, 4, 9), (3, 3, 0), (2, 0, 1)]


class Both:
    """Two caches that must answer alike, and the sequences in them."""

    def __init__(self, rng: Random, reference: Any, windows: tuple[int, ...]) -> None:
        shape = KvShape(rng.randint(1, 5), windows, state_blocks=rng.choice([0, 0, 1]))
        options = {"caching": rng.random() < 0.9, "sparse_windows": rng.random() < 0.3}
        size = rng.randint(8, 60) * len(windows)
        self.rng, self.shape = rng, shape
        self.spans, self.blocks = KvCache(size, shape, **options), reference(size, shape, **options)
        self.numbers = count()
        self.requests: list[Request] = []
        self.holdings: list[tuple[BlockAllocation, Any]] = []
        self.computed: dict[int, int] = {}
        """Tokens of those that hold anything."""

    def operate(self) -> None:
        """Something that a scheduler may do, and a look at what others would find."""
        idle = [index for index in range(len(self.requests)) if index not in self.computed]
        if not self.requests or self.rng.random() < 0.2:
            self.add()
        elif idle and self.rng.random() < 0.4:
            self.start(self.rng.choice(idle))
        elif self.computed:
            index = self.rng.choice([*self.computed])
            self.end(index) if self.rng.random() < 0.25 else self.go_on(index)
        self.compare()

    def add(self) -> None:
        """A request comes, which may begin like another one."""
        before = self.rng.choice(self.requests).prefix if self.requests else ()
        kept = before[: self.rng.randint(0, min(6, len(before)))]
        more = [Segment(self.rng.randint(0, 1), self.rng.randint(1, 9)) for _ in range(self.rng.randint(0, 3))]
        prefix = (*kept, *more)
        num_input = sum(segment.num_tokens for segment in prefix) + self.rng.randint(not prefix, 9)
        request = Request(0.0, num_input, self.rng.randint(1, 12), prefix, self.rng.choice([None, 0, 1]))
        index = next(self.numbers)
        self.requests.append(request)
        quick = BlockAllocation(index, self.spans.path(request), num_input, self.spans.num_groups)
        self.holdings.append((quick, self.blocks.new_holding(index, request)))

    def start(self, index: int) -> None:
        """As far as there is room."""
        quick, plain = self.holdings[index]
        num_tokens = self.requests[index].num_input
        cached = self.spans.longest_prefix(quick, num_tokens)
        assert cached == self.blocks.longest_prefix(plain, num_tokens)
        new, chunk = self.rng.randint(1, num_tokens - cached), self.rng.choice([12, 100])
        new = min(new, chunk)
        starts = self.spans.admit(quick, cached, new, num_tokens, chunk)
        assert starts == self.blocks.admit(plain, cached, new, num_tokens, chunk)
        if starts:
            self.computed[index] = cached + new
            self.name(index)

    def go_on(self, index: int) -> None:
        """Some tokens more, for which windows move on."""
        quick, plain = self.holdings[index]
        request, before = self.requests[index], self.computed[index]
        missing = request.num_input + request.num_output - before
        if missing <= 0:
            return
        self.spans.slide(quick, before)
        self.blocks.slide(plain, before)
        new = self.rng.randint(1, missing)
        grows = self.spans.grow(quick, before + new)
        assert grows == self.blocks.grow(plain, before, new)
        if grows:
            self.computed[index] = before + new
            self.name(index)

    def name(self, index: int) -> None:
        """All that is computed, or a little less."""
        known = self.computed[index] - self.rng.choice([0, 0, 1])
        self.spans.name(self.holdings[index][0], known)
        self.blocks.name_full_blocks(self.holdings[index][1], known)

    def end(self, index: int) -> None:
        """It is done, or gives way and comes back."""
        done = self.rng.random() < 0.5
        for cache, holding in zip((self.spans, self.blocks), self.holdings[index], strict=True):
            cache.free(holding, done=done)
        del self.computed[index]
        if done:
            self.add()  # nobody asks for what it had to itself
            self.requests[index], self.holdings[index] = self.requests.pop(), self.holdings.pop()

    def compare(self) -> None:
        """What is held, and what somebody would find."""
        assert (self.spans.num_free, self.spans.num_held) == (self.blocks.num_free, self.blocks.num_held)
        for index, (quick, plain) in enumerate(self.holdings):
            if index not in self.computed:
                num_tokens = self.requests[index].num_input
                assert self.spans.longest_prefix(quick, num_tokens) == self.blocks.longest_prefix(plain, num_tokens)


@pytest.mark.parametrize("windows", WINDOWS)
def test_spans_are_as_good_as_blocks(reference_cache: Any, windows: tuple[int, ...]) -> None:
    for seed in range(25):
        both = Both(Random(f"{windows} {seed}"), reference_cache["ReferenceCache"], windows)
        for _ in range(120):
            both.operate()
