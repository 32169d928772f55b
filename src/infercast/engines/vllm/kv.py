"""How the KV cache of a model is organised: equal blocks that groups of layers share.

The rules are vLLM 0.25's (``v1/core/kv_cache_utils.py``, ``get_kv_cache_groups``).
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, lcm

from infercast.engines.memory import KvLayout
from infercast.engines.vllm.kv_packed import packed_layout
from infercast.engines.vllm.kv_pages import Kind, Member
from infercast.engines.vllm.states import ALIGN, ALL, NONE, ONE_STATE, StateBlocks
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import Cache
from infercast.models.spec import ModelConfig
from infercast.models.stages import stage_range
from infercast.serve.cache.shape import STATE_WINDOW, KvShape

SMALLEST_BLOCK = 16
"""Tokens in a block of windowed layers, whatever block size was asked for: the least that attention kernels take."""

UNCHUNKED = 2048
"""Tokens whose multiples a block has where a state is written at the end of each and is not scanned in chunks."""


def kv_layout(
    config: ModelConfig,
    layout: ParallelLayout,
    block_size: int,
    stage: int | None = None,
    states: StateBlocks = ONE_STATE,
) -> KvLayout:
    """Blocks and groups of a model's KV cache; with ``stage``, what a block costs in that stage of a pipeline.

    Layers that keep the same tokens in the same width form one kind. Where a model has several, blocks of the narrower
    ones hold more tokens until all are as large; then each kind is cut into groups of as many layers as the smallest
    kind has (or as the largest, where they are nearly as many), and one block serves one group.
    """
    members = _members(config, layout, block_size, states)
    held = range(config.layers) if stage is None else stage_range(config.layers, layout.pipeline, stage)
    if any(kind.cache.block for _, kind in members):
        return packed_layout(members, held)
    if len({kind.span for _, kind in members}) == 1:
        # All layers keep the same tokens: one group, in which every layer has blocks of its own width.
        block_bytes = sum(kind.page_bytes for position, kind in members if position in held)
        return KvLayout(_shape([members[0][1]], block_size, states), block_bytes)
    page_bytes = max(kind.page_bytes for _, kind in members)
    groups = _groups([(position, _equal_pages(kind, page_bytes)) for position, kind in members])
    most = max(sum(position in held for position in positions) for _, positions in groups)
    return KvLayout(_shape([kind for kind, _ in groups], block_size, states), most * page_bytes)


def hybrid_block_size(
    config: ModelConfig, layout: ParallelLayout, block_size: int, states: StateBlocks = ONE_STATE
) -> int:
    """Tokens in a block beside states: as many times those asked for as make it no smaller than a state.

    Facts of ``platforms/interface.py``, ``_align_hybrid_block_size``. Without states it is the size asked for.
    """
    shard = config.shard(layout)
    caches = [cache for stack in config.stacks for cache in stack.mixer.caches(shard)]
    state = max((cache.bytes_per_sequence for cache in caches), default=0.0)
    token = max((cache.bytes_per_token for cache in caches), default=0.0)
    if not state or not token:
        return block_size
    if states.mode == ALL:
        block_size = lcm(block_size, states.multiple or max(cache.chunk for cache in caches) or UNCHUNKED)
    return block_size * ceil(state / (block_size * token))


def _members(config: ModelConfig, layout: ParallelLayout, block_size: int, states: StateBlocks) -> list[Member]:
    """The caches of all layers, first layer first."""
    shard = config.shard(layout)
    common = hybrid_block_size(config, layout, block_size, states)

    def kind(cache: Cache) -> Kind:
        narrow = cache.window > 0 and not cache.chunked
        return Kind(cache, cache.block or (SMALLEST_BLOCK if narrow else common))

    kinds = [[kind(cache) for cache in stack.mixer.caches(shard)] for stack in config.stacks]
    return [(position, kind) for position, number in enumerate(config.layer_stacks) for kind in kinds[number]]


def _shape(kinds: list[Kind], block_size: int, kept: StateBlocks) -> KvShape:
    """What a scheduler sees of groups of these kinds."""
    mode, num_states = kept.mode, sum(not kind.cache.bytes_per_token for kind in kinds)
    shown = [kind for kind in kinds if kind.cache.bytes_per_token or mode != NONE]
    sizes = tuple(kind.block_size for kind in shown)
    states = tuple(number for number, kind in enumerate(shown) if not kind.cache.bytes_per_token)
    shape = KvShape(
        min(sizes, default=block_size),
        tuple(STATE_WINDOW if number in states else kind.cache.window for number, kind in enumerate(shown)),
        block_sizes=sizes,
        chunked=any(kind.cache.chunked for kind in shown),
        state_blocks=len(kinds) - len(shown) + kept.drafts * num_states,
        states=states,
        aligned=mode == ALIGN and bool(states),
        rules=kept.rules._replace(
            exports=kept.rules.exports and all(shown[number].cache.exported for number in states)
        ),
    )
    return shape.even


def _groups(members: Collection[Member]) -> list[tuple[Kind, list[int]]]:
    """Each kind in groups of equal size; a group has layers from all over the model, so stages have equal parts."""
    alike: dict[Kind, list[int]] = {}
    for position, kind in members:
        alike.setdefault(kind, []).append(position)
    counts = [len(positions) for positions in alike.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for kind, positions in alike.items():
        number = -(-len(positions) // size)
        groups += [(kind, positions[start::number]) for start in range(number)]
    return groups


def _equal_pages(kind: Kind, page_bytes: int) -> Kind:
    """The kind with as many tokens in a block as make it ``page_bytes`` large, or with room to spare in it."""
    if page_bytes % kind.page_bytes or kind.cache.bytes_per_sequence:
        return kind._replace(padded_bytes=page_bytes)
    return kind._replace(block_size=kind.block_size * (page_bytes // kind.page_bytes))
