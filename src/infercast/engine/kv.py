"""How the KV cache of a model is organised: equal blocks that groups of layers share."""

from __future__ import annotations

from infercast.models.layout import ParallelLayout
from infercast.models.spec import LatentAttention, ModelConfig, Stack
from infercast.ops.dtypes import bytes_of
from infercast.records import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """Blocks of ``block_size`` tokens; ``windows`` has one entry a group of layers, 0 for full attention."""

    block_size: int = 16
    windows: tuple[int, ...] = (0,)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks one group needs for that many tokens."""
        return -(-num_tokens // self.block_size)

    def first_in_window(self, group: int, computed: int) -> int:
        """The first block that the token after ``computed`` ones still looks at."""
        window = self.windows[group]
        return max(0, computed - window + 1) // self.block_size if window else 0

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Blocks that a sequence of ``num_tokens`` holds at its largest, computed at most ``chunk`` tokens a step."""
        whole = self.blocks_for(num_tokens)
        # A window seldom starts at a block's edge, so it can touch one block more than its length says.
        return sum(min(whole, self.blocks_for(window - 1 + chunk) + 1) if window else whole for window in self.windows)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The cache's shape and what it costs on one GPU."""

    shape: KvShape
    block_bytes: int
    token_bytes: float
    """Bytes that one more token of a long sequence costs: layers with windows have stopped growing by then."""


def kv_layout(config: ModelConfig, layout: ParallelLayout, block_size: int) -> KvLayout:
    """Blocks and groups of a model's KV cache.

    Layers with the same window form one kind. Where a model has several kinds, vLLM cuts each into groups of as many
    layers as the smallest kind has (or as the largest, where they are nearly as many), one block serves one group,
    and all blocks are as large as the widest layers need.
    """
    kinds: dict[int, list[tuple[int, float]]] = {}
    for stack in config.stacks:
        kinds.setdefault(_window(stack), []).append((stack.layers, _token_bytes(config, stack, layout)))
    token_bytes = sum(count * width for count, width in kinds.get(0, []))
    if len(kinds) == 1:
        ((window, parts),) = kinds.items()
        all_layers = sum(count * width for count, width in parts)
        return KvLayout(KvShape(block_size, (window,)), round(all_layers * block_size), token_bytes)
    layers = {window: sum(count for count, _ in parts) for window, parts in kinds.items()}
    fewest, most = min(layers.values()), max(layers.values())
    group_layers = most if most < 1.5 * fewest else fewest
    widest = max(width for parts in kinds.values() for _, width in parts)
    windows = tuple(window for window, count in layers.items() for _ in range(-(-count // group_layers)))
    return KvLayout(KvShape(block_size, windows), round(group_layers * widest * block_size), token_bytes)


def sequence_bytes(config: ModelConfig, num_tokens: int) -> float:
    """Keys and values of a sequence over all layers and all GPUs that share it, each head counted once."""
    alone = ParallelLayout()
    return sum(
        stack.layers * min(num_tokens, _window(stack) or num_tokens) * _token_bytes(config, stack, alone)
        for stack in config.stacks
    )


def _window(stack: Stack) -> int:
    return 0 if isinstance(stack.attention, LatentAttention) else stack.attention.window


def _token_bytes(config: ModelConfig, stack: Stack, layout: ParallelLayout) -> float:
    """KV bytes of one token in one layer on one GPU."""
    attention = stack.attention
    if isinstance(attention, LatentAttention):
        return attention.latent_dim * bytes_of(config.cache_dtype)
    heads = layout.share_kv_heads(attention.kv_heads)
    return heads * (attention.head_dim + attention.value_dim) * bytes_of(config.cache_dtype)
