"""Blocks of a cache with compressed tokens (DeepSeek-V4): pages of several sizes lie together in one block.

The rules are vLLM 0.25's (``v1/core/kv_cache_utils.py``, ``_get_kv_cache_groups_uniform_groups``). Caches that keep all
tokens form one group, windowed ones a group for each window and block size. A group's pages are rounded up to the sizes
that the first has, and large groups are cut so that all need about as many pages of a size.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from infercast.engines.memory import KvLayout
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import Cache
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_range
from infercast.serve.cache.shape import KvShape

ALIGNMENT = 576
"""Bytes that pages are multiples of."""
BLOCK = 256
"""Tokens in a block of what keeps all tokens; every page size follows from it."""


class _Group(NamedTuple):
    """Caches with the same tokens: how many tokens a block has, their window, and pages by their size."""

    block: int
    window: int
    pages: Counter[int]

    @property
    def tuples(self) -> int:
        """Pages of the size that it has most of."""
        return max(self.pages.values())


def is_packed(config: ModelConfig) -> bool:
    """Whether any cache holds compressed tokens."""
    shard = config.shard(ParallelLayout())
    return any(cache.compress > 1 for stack in config.stacks for cache in stack.mixer.caches(shard))


def packed_layout(config: ModelConfig, layout: ParallelLayout, stage: int | None = None) -> KvLayout:
    """Blocks and groups of the cache; with ``stage``, what a block costs in that stage of a pipeline."""
    everything, windowed = _groups(config, layout, range(config.layers))
    together = _nearest_divisor([group.tuples for group in (everything, *windowed)])
    parts = {(group.block, group.window): -(-group.tuples // together) for group in windowed}
    groups = [(group.block, group.window) for group in windowed for _ in range(parts[group.block, group.window])]
    shape = KvShape(
        min(block for block, _ in [(BLOCK, 0), *groups]),
        (0, *(window for _, window in groups)),
        block_sizes=(BLOCK, *(block for block, _ in groups)),
    )
    held = range(config.layers) if stage is None else stage_range(config.layers, layout.pipeline, stage)
    first, others = _groups(config, layout, held)
    most = Counter(first.pages)
    for group in others:
        for size, count in group.pages.items():
            most[size] = max(most[size], -(-count // parts[group.block, group.window]))
    return KvLayout(shape, sum(size * count for size, count in most.items()))


def _groups(config: ModelConfig, layout: ParallelLayout, held: range) -> tuple[_Group, list[_Group]]:
    """What keeps all tokens, and windowed groups with pages as large as one of its sizes."""
    shard = config.shard(layout)
    stacks = [stack.mixer.caches(shard) for stack in config.stacks]
    order = config.layer_stacks
    caches = [cache for position in held for cache in stacks[order[position]]]
    everything = _Group(BLOCK, 0, Counter(_page(cache) for cache in caches if not cache.window))
    sizes = sorted(everything.pages)
    found: dict[tuple[int, int], Counter[int]] = {}
    for cache in caches:
        if cache.window:
            size = next((each for each in sizes if each >= _page(cache)), _page(cache))
            found.setdefault((cache.block, cache.window), Counter())[size] += 1
    return everything, [_Group(*key, pages) for key, pages in found.items()]


def _page(cache: Cache) -> int:
    """Bytes of a block of one cache."""
    return -(-round(cache.bytes_per_token * (cache.block or BLOCK)) // ALIGNMENT) * ALIGNMENT


def _nearest_divisor(counts: list[int]) -> int:
    """The number, no less than the first, that rounds all counts up by least in all; the largest of equals."""
    padded = {size: sum(-count % size for count in counts) for size in range(counts[0], max(counts) + 1)}
    return min(padded, key=lambda size: (padded[size], -size))
