"""How the KV cache of a model is organised: equal blocks that groups of layers share.

The rules are vLLM 0.25's (``v1/core/kv_cache_utils.py``, ``get_kv_cache_groups``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.engines.memory import KvLayout
from infercast.models.layout import ParallelLayout
from infercast.models.spec import LatentAttention, ModelConfig, Stack
from infercast.models.stages import stage_range
from infercast.ops.dtypes import bytes_of
from infercast.serve.cache.shape import KvShape

__all__ = ["SMALLEST_BLOCK", "kv_layout", "sequence_bytes"]

SMALLEST_BLOCK = 16
"""Tokens in a block of windowed layers, whatever block size was asked for: the least that attention kernels take."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers whose blocks are alike."""

    window: int
    chunked: bool
    token_bytes: float
    block_size: int
    padded_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """One block of one layer."""
        return self.padded_bytes or round(self.token_bytes * self.block_size)


def kv_layout(config: ModelConfig, layout: ParallelLayout, block_size: int, stage: int | None = None) -> KvLayout:
    """Blocks and groups of a model's KV cache; with ``stage``, what a block costs in that stage of a pipeline.

    Layers that keep the same tokens in the same width form one kind. Where a model has several, blocks of the narrower
    ones hold more tokens until all are as large; then each kind is cut into groups of as many layers as the smallest
    kind has (or as the largest, where they are nearly as many), and one block serves one group.
    """
    kinds = [_kind(config, stack, layout, block_size) for stack in config.stacks]
    layers = [kinds[number] for number in config.layer_stacks]
    held = range(len(layers)) if stage is None else stage_range(len(layers), layout.pipeline, stage)
    spans = {(kind.window, kind.chunked) for kind in layers}
    if len(spans) == 1:
        # All layers keep the same tokens: one group, in which every layer has blocks of its own width.
        first = layers[0]
        block_bytes = sum(layers[position].page_bytes for position in held)
        return KvLayout(KvShape(first.block_size, (first.window,), chunked=first.chunked), block_bytes)
    alike = _alike([_equal_pages(kind, max(each.page_bytes for each in layers)) for kind in layers])
    groups = _groups(alike)
    most = max(sum(position in held for position in members) for _, members in groups)
    sizes = tuple(kind.block_size for kind, _ in groups)
    shape = KvShape(
        min(sizes),
        tuple(kind.window for kind, _ in groups),
        block_sizes=sizes if len(set(sizes)) > 1 else (),
        chunked=any(kind.chunked for kind, _ in groups),
    )
    return KvLayout(shape, most * groups[0][0].page_bytes)


def sequence_bytes(config: ModelConfig, num_tokens: int) -> float:
    """Keys and values of a sequence over all layers and all GPUs that share it, each head counted once."""
    alone = ParallelLayout()
    return sum(
        stack.layers * min(num_tokens, _window(stack) or num_tokens) * _token_bytes(config, stack, alone)
        for stack in config.stacks
    )


def _alike(layers: list[_Kind]) -> dict[_Kind, list[int]]:
    """The layers of each kind, in the order in which kinds first appear."""
    alike: dict[_Kind, list[int]] = {}
    for position, kind in enumerate(layers):
        alike.setdefault(kind, []).append(position)
    return alike


def _groups(alike: dict[_Kind, list[int]]) -> list[tuple[_Kind, list[int]]]:
    """Each kind in groups of equal size; a group has layers from all over the model, so stages have equal parts."""
    counts = [len(members) for members in alike.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for kind, members in alike.items():
        number = -(-len(members) // size)
        groups += [(kind, members[start::number]) for start in range(number)]
    return groups


def _equal_pages(kind: _Kind, page_bytes: int) -> _Kind:
    """The kind with as many tokens in a block as make it ``page_bytes`` large, or with room to spare in it."""
    if page_bytes % kind.page_bytes:
        return replace(kind, padded_bytes=page_bytes)
    return replace(kind, block_size=kind.block_size * (page_bytes // kind.page_bytes))


def _kind(config: ModelConfig, stack: Stack, layout: ParallelLayout, block_size: int) -> _Kind:
    window, attention = _window(stack), stack.attention
    chunked = not isinstance(attention, LatentAttention) and attention.chunked
    size = SMALLEST_BLOCK if window and not chunked else block_size
    return _Kind(window, chunked, _token_bytes(config, stack, layout), size)


def _window(stack: Stack) -> int:
    return 0 if isinstance(stack.attention, LatentAttention) else stack.attention.window


def _token_bytes(config: ModelConfig, stack: Stack, layout: ParallelLayout) -> float:
    """KV bytes of one token in one layer on one GPU."""
    attention = stack.attention
    if isinstance(attention, LatentAttention):
        return attention.latent_dim * bytes_of(config.cache_dtype)
    heads = layout.share_kv_heads(attention.kv_heads)
    return heads * (attention.head_dim + attention.value_dim) * bytes_of(config.cache_dtype)
