"""How the KV cache of a model is organised: equal blocks that groups of layers share.

The rules are vLLM 0.25's (``v1/core/kv_cache_utils.py``, ``get_kv_cache_groups``).
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from infercast.engines.memory import KvLayout
from infercast.engines.vllm.packed import is_packed, packed_layout
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import Cache
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_range
from infercast.serve.cache.shape import KvShape

SMALLEST_BLOCK = 16
"""Tokens in a block of windowed layers, whatever block size was asked for: the least that attention kernels take."""

Member = tuple[int, "_Kind"]
"""A cache of one layer, by the layer's place in the model."""


class _Kind(NamedTuple):
    """Caches of layers whose blocks are alike."""

    cache: Cache
    block_size: int
    padded_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """One block of one layer: so many tokens, or the state of one sequence."""
        return self.padded_bytes or round(self.cache.bytes_per_token * self.block_size + self.cache.bytes_per_sequence)

    @property
    def span(self) -> tuple[int, bool, bool]:
        """Which tokens are kept, and whether any are."""
        return self.cache.window, self.cache.chunked, self.cache.bytes_per_token > 0


def kv_layout(config: ModelConfig, layout: ParallelLayout, block_size: int, stage: int | None = None) -> KvLayout:
    """Blocks and groups of a model's KV cache; with ``stage``, what a block costs in that stage of a pipeline.

    Layers that keep the same tokens in the same width form one kind. Where a model has several, blocks of the narrower
    ones hold more tokens until all are as large; then each kind is cut into groups of as many layers as the smallest
    kind has (or as the largest, where they are nearly as many), and one block serves one group.
    """
    if is_packed(config):
        return packed_layout(config, layout, stage)
    members = _members(config, layout, block_size)
    held = range(config.layers) if stage is None else stage_range(config.layers, layout.pipeline, stage)
    if len({kind.span for _, kind in members}) == 1:
        # All layers keep the same tokens: one group, in which every layer has blocks of its own width.
        first = members[0][1]
        block_bytes = sum(kind.page_bytes for position, kind in members if position in held)
        shape = KvShape(first.block_size, (first.cache.window,), chunked=first.cache.chunked)
        return KvLayout(shape, block_bytes)
    page_bytes = max(kind.page_bytes for _, kind in members)
    groups = _groups([(position, _equal_pages(kind, page_bytes)) for position, kind in members])
    most = max(sum(position in held for position in positions) for _, positions in groups)
    kinds = [kind for kind, _ in groups if kind.cache.bytes_per_token]
    sizes = tuple(kind.block_size for kind in kinds)
    shape = KvShape(
        min(sizes),
        tuple(kind.cache.window for kind in kinds),
        block_sizes=sizes if len(set(sizes)) > 1 else (),
        chunked=any(kind.cache.chunked for kind in kinds),
        state_blocks=len(groups) - len(kinds),
    )
    return KvLayout(shape, most * page_bytes)


def _members(config: ModelConfig, layout: ParallelLayout, block_size: int) -> list[Member]:
    """The caches of all layers, first layer first.

    Where layers keep a state of each sequence, the others' blocks hold as many times the tokens as make them no smaller
    than one (``platforms/interface.py``, ``_align_hybrid_block_size``); a sequence has one block of a state
    (``mamba_cache_mode="none"``).
    """
    shard = config.shard(layout)
    stacks = [stack.mixer.caches(shard) for stack in config.stacks]
    caches = [cache for stack in stacks for cache in stack]
    state = max(cache.bytes_per_sequence for cache in caches)
    if state:
        block_size *= ceil(state / (block_size * max(cache.bytes_per_token for cache in caches)))
    sizes = {True: SMALLEST_BLOCK, False: block_size}
    kinds = [[_Kind(cache, sizes[cache.window > 0 and not cache.chunked]) for cache in stack] for stack in stacks]
    return [(position, kind) for position, number in enumerate(config.layer_stacks) for kind in kinds[number]]


def _groups(members: list[Member]) -> list[tuple[_Kind, list[int]]]:
    """Each kind in groups of equal size; a group has layers from all over the model, so stages have equal parts."""
    alike: dict[_Kind, list[int]] = {}
    for position, kind in members:
        alike.setdefault(kind, []).append(position)
    counts = [len(positions) for positions in alike.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for kind, positions in alike.items():
        number = -(-len(positions) // size)
        groups += [(kind, positions[start::number]) for start in range(number)]
    return groups


def _equal_pages(kind: _Kind, page_bytes: int) -> _Kind:
    """The kind with as many tokens in a block as make it ``page_bytes`` large, or with room to spare in it."""
    if page_bytes % kind.page_bytes or kind.cache.bytes_per_sequence:
        return kind._replace(padded_bytes=page_bytes)
    return kind._replace(block_size=kind.block_size * (page_bytes // kind.page_bytes))
