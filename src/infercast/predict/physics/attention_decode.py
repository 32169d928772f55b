"""Decode attention: one new token a sequence against its cached keys and values.

Bytes of the cache over DRAM or L2, thread blocks with a latency of their own, and the splitting of long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.hardware.gpu import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_kernels import HALVED_L2, KernelFamily, batch_of, family_of, soft_rounds
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES, schedule_features
from infercast.predict.physics.terms import Array, Physics, columns, fill, log2, miss_share, soft_max


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted on A100, L40S and H200 together and rounded; none belongs to a GPU.

    Several trade off against one another: they are not facts of the hardware.
    """

    launch_cycles: float = 15500.0
    dram_share: float = 0.85
    cache_share: float = 1.0
    """Of the L2 size, before a re-read batch starts to miss."""
    halved_cache_share: float = 0.55
    """The same on chips whose L2 is two halves that may hold a line each."""
    cache_sharpness: float = 10.0
    l2_share: float = 0.4
    sm_fp8_bytes_per_cycle: float = 13.5
    tensor_share: float = 0.6
    overlap: float = 2.2


CONSTANTS = Constants()
KEY_TILE = 128
MMA_ROWS = 16
MAX_SPLITS = 64

DECODE_FEATURES: tuple[str, ...] = (
    "log_sequences",
    "log_longest_keys",
    "log_longest_reach",
    "log_mean_reach",
    "log_heads",
    "log_kv_heads",
    "log_group",
    "log_head_dim",
    "kv_bytes",
    "windowed",
    "sliding",
    "log_seconds",
    "dram_share",
    "stream_share",
    "blocks_share",
    "tensor_share",
    "combine_share",
    "launch_share",
    "log_splits",
    "log_rounds",
    "round_fill",
    "kv_head_fill",
    "head_fill",
    "log_kv_rounds",
    "log_head_rounds",
    "log_bytes",
    "log_bytes_over_l2",
    "tiles_longest",
    "group_tile",
    "group_fill",
    "log_split_keys",
    *SCHEDULE_FEATURES,
)


@dataclass(frozen=True, slots=True)
class Grid:
    """How a kernel cuts a batch into thread blocks."""

    heads: int
    """Blocks of one sequence over the heads, before its keys are split."""
    rows: float
    """Query heads in one block."""
    splits: Array
    """Parts that the longest sequence is cut into."""
    blocks: Array
    keys: Array
    """Keys of the longest part."""


def decode(op: Attention, gpu: Gpu) -> Physics:
    """Price decode batches; every sequence has one query."""
    family, batch = family_of(gpu), batch_of(op)
    reach = np.minimum(batch.keys, op.window) if op.window else batch.keys
    total, longest = batch.total(reach), batch.longest(reach)
    row_bytes = bytes_of(op.kv_dtype) * (op.head_dim if op.latent_kv else op.head_dim + op.value_dim)
    sliding = batch.total(np.asarray(batch.keys > reach))
    grid = _grid(op, gpu, family, batch.size, batch.total(np.ceil(reach / KEY_TILE)), longest, sliding)
    terms = _terms(op, gpu, family, grid, total * row_bytes, grid.keys * row_bytes, batch.size)
    busy = terms["stream"] + terms["blocks"]
    seconds = (
        terms["launch"]
        + terms["chain"]
        + terms["combine"]
        + soft_max(CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
    )
    kv_bytes = total * op.kv_heads * row_bytes
    # Kernels come in sizes of 8, 16, 32, ... query heads a block.
    tile = 2.0 ** np.ceil(log2(max(grid.rows, 8.0)))
    kv_blocks, head_blocks = batch.size * op.kv_heads, batch.size * op.heads
    features = columns(
        log2(batch.size),
        log2(batch.longest(batch.keys)),
        log2(longest),
        log2(total / batch.size),
        log2(op.heads),
        log2(op.kv_heads),
        log2(op.heads / op.kv_heads),
        log2(op.head_dim),
        bytes_of(op.kv_dtype),
        float(op.window > 0),
        sliding / batch.size,
        log2(seconds),
        *(log2(terms[name] / seconds) for name in ("dram", "stream", "blocks", "tensor")),
        terms["combine"] / seconds,
        log2(terms["launch"] / seconds),
        log2(grid.splits),
        log2(grid.blocks / gpu.sms),
        fill(grid.blocks, gpu.sms),
        fill(kv_blocks, gpu.sms),
        fill(head_blocks, gpu.sms),
        log2(kv_blocks / gpu.sms),
        log2(head_blocks / gpu.sms),
        log2(kv_bytes),
        log2(kv_bytes / gpu.l2_bytes),
        np.minimum(np.ceil(longest / KEY_TILE), 4.0),
        log2(tile),
        grid.rows / tile,
        log2(grid.keys),
    )
    return Physics(seconds, terms, np.hstack([features, schedule_features(op, batch, gpu)]))


def _grid(
    op: Attention, gpu: Gpu, family: KernelFamily, size: Array, tiles: Array, longest: Array, sliding: Array
) -> Grid:
    """Cut a batch: one block a sequence and KV head, and more while SMs are idle and keys are left to split."""
    # FlashAttention 2 cannot read a narrow cache: what engines run there instead always packs.
    packed = not op.window or family.packs_window or bytes_of(op.kv_dtype) < 2.0
    heads = op.kv_heads if packed else op.heads
    # FlashAttention 2 splits the keys only in its packed form, which needs several heads to pack.
    splittable = family.splits_alone or (packed and op.heads > op.kv_heads)
    most = np.minimum(np.ceil(longest / KEY_TILE), MAX_SPLITS if splittable else 1.0)
    splits = np.clip(np.floor(2.0 * gpu.sms / (size * heads)), 1.0, np.maximum(most, 1.0))
    # A short sequence in an uneven batch has fewer tiles than the longest has parts.
    blocks = heads * np.clip(tiles, size, size * splits)
    if op.window and family.window_parts > 1:
        splits = np.where(sliding > 0.0, np.maximum(splits, family.window_parts), splits)
        blocks = blocks + heads * sliding * np.maximum(family.window_parts - blocks / (size * heads), 0.0)
    return Grid(heads, op.heads / heads, splits, blocks, longest / splits)


def _terms(
    op: Attention, gpu: Gpu, family: KernelFamily, grid: Grid, head_bytes: Array, part_bytes: Array, size: Array
) -> dict[str, Array]:
    """Seconds of each pipe. ``head_bytes`` are one KV head's; ``part_bytes`` are those of the longest block."""
    fitted, clock = CONSTANTS, gpu.boost_clock
    kv_bytes = head_bytes * op.kv_heads
    cache_share = fitted.halved_cache_share if gpu.architecture in HALVED_L2 else fitted.cache_share
    miss = miss_share(kv_bytes, gpu.l2_bytes * cache_share, fitted.cache_sharpness)
    dram = miss / (gpu.dram_bandwidth * fitted.dram_share) + (1.0 - miss) / (gpu.l2_bandwidth * fitted.l2_share)
    narrow = bytes_of(op.kv_dtype) < 2.0
    rate = clock * (fitted.sm_fp8_bytes_per_cycle if narrow else family.sm_bytes_per_cycle)
    read = head_bytes * grid.heads
    rounds = soft_rounds(grid.blocks, gpu.sms)
    chain = (
        family.block_seconds
        + family.block_seconds_per_dim * op.head_dim
        + family.block_seconds_per_head * min(grid.rows, 64.0)
    )
    rows = np.ceil(grid.rows / MMA_ROWS) * MMA_ROWS
    width = op.head_dim + op.value_dim
    keys = read / (bytes_of(op.kv_dtype) * (op.head_dim if op.latent_kv else width))
    flops = 2.0 * width * rows * keys
    merged = size * op.heads * op.value_dim * 4.0 * grid.splits
    return {
        "launch": np.full_like(size, fitted.launch_cycles / clock),
        "combine": np.where(
            grid.splits > 1.0, family.combine_cycles / clock + merged / (gpu.l2_bandwidth * fitted.l2_share), 0.0
        ),
        "dram": kv_bytes * dram,
        # The longest block runs alone at the end; on average the SMs share the bytes.
        "stream": np.maximum(read / gpu.sms / rate, part_bytes / (clock * family.lone_bytes_per_cycle)),
        "chain": np.full_like(size, chain),
        "blocks": chain * np.maximum(rounds - 1.0, 0.0),
        "tensor": flops / (gpu.dense_flops(op.dtype) * fitted.tensor_share),
    }
