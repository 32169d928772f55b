"""Blocks of models that compress what they keep (DeepSeek-V4): caches of several widths side by side in each block.

The rules are vLLM 0.25's (``v1/core/kv_cache_utils.py``, ``_get_kv_cache_groups_uniform_groups`` and the packed layout
after it). What grows with all tokens forms one group, whatever its width. Windows and the states of compressors form
groups by their length and their tokens in a block; each of their blocks is padded to the next width of the first group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from infercast.engines.memory import KvLayout
from infercast.engines.vllm.kv_pages import Kind, Member
from infercast.errors import InputError
from infercast.serve.cache.shape import KvShape

ALIGNMENT = 576
"""Bytes whose multiple every block is: what FlashMLA reads at once."""

Group = list[tuple[int, int]]
"""The place of a layer in the model, and the bytes of its blocks."""


def packed_layout(members: Iterable[Member], held: Collection[int]) -> KvLayout:
    """Groups, and what one block of all of them takes of the layers that are ``held``."""
    kinds: dict[tuple[int, int], Group] = {}
    for position, kind in members:
        key = (kind.cache.window, kind.block_size)
        kinds.setdefault(key, []).append((position, _aligned(kind)))
    whole = [(key, group) for key, group in kinds.items() if not key[0]]
    windows = [(key, group) for key, group in kinds.items() if key[0]]
    widths = sorted({size for _, group in whole for _, size in group}) or [
        max(size for _, group in windows for _, size in group)
    ]
    largest = max(size for group in kinds.values() for _, size in group)
    if largest > widths[-1]:
        raise InputError(
            f"block_size {whole[0][0][1]} makes blocks of compressed entries smaller than those of a window, which an "
            "engine refuses; use 256, or leave it out"
        )
    padded = [
        (key, [(position, next(width for width in widths if width >= size)) for position, size in group])
        for key, group in windows
    ]
    counts = [_layers(group) for _, group in (*whole, *padded)]
    size = _group_size(counts, counts[0])
    groups: list[tuple[tuple[int, int], Group]] = [*whole]
    for key, group in padded:
        groups += [(key, part) for part in _parts(group, size)]
    sizes = tuple(key[1] for key, _ in groups)
    shape = KvShape(min(sizes), tuple(key[0] for key, _ in groups), block_sizes=sizes if len({*sizes}) > 1 else ())
    return KvLayout(shape, _block_bytes([group for _, group in groups], held))


def _aligned(kind: Kind) -> int:
    """Bytes of one block of a layer."""
    return -(-kind.page_bytes // ALIGNMENT) * ALIGNMENT


def _layers(group: Group) -> int:
    """Layers of the width that most have."""
    return max(Counter(size for _, size in group).values())


def _group_size(counts: list[int], least: int) -> int:
    """Layers of a group, so that the last group of each kind leaves as little as possible empty."""
    candidates = range(least, max(*counts, least) + 1)
    return min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))


def _parts(group: Group, size: int) -> list[Group]:
    """Cut into groups with no more than so many layers of each width, from all over the model."""
    number = -(-_layers(group) // size)
    by_width: dict[int, Group] = {}
    for member in group:
        by_width.setdefault(member[1], []).append(member)
    return [[member for row in by_width.values() for member in row[start::number]] for start in range(number)]


def _block_bytes(groups: list[Group], held: Collection[int]) -> int:
    """Every group has a place for each of its layers; places of one width serve all groups."""
    places: Counter[int] = Counter()
    for group in groups:
        places |= Counter(size for position, size in group if position in held)
    return sum(size * count for size, count in places.items())
