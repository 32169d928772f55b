"""Decode attention: one new token a sequence against its cached keys and values.

Bytes of the cache over DRAM or L2, thread blocks with a latency of their own, and the splitting of long sequences.
"""

from __future__ import annotations

import numpy as np

from infercast.hardware.gpu import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_kernels import HALVED_L2, Batch, KernelFamily, Single, batch_of, family_of
from infercast.predict.physics.either import Arrays, Kit, Number, Plain
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES, schedule_features
from infercast.predict.physics.flash_schedule_one import schedule_features_one
from infercast.predict.physics.terms import OnePhysics, Physics
from infercast.records import dataclass


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
    splits: Number
    """Parts that the longest sequence is cut into."""
    blocks: Number
    keys: Number
    """Keys of the longest part."""


def decode(op: Attention, gpu: Gpu, *, cold: bool = False) -> Physics:
    """Price decode batches; every sequence has one query. ``cold``: nothing of the cache is in L2."""
    batch = batch_of(op)
    seconds, terms, features = _price(op, gpu, batch, Arrays, cold)
    return Physics(seconds, terms, np.hstack([features, schedule_features(op, batch, gpu)]))


def decode_one(op: Attention, gpu: Gpu, batch: Single, *, cold: bool = False) -> OnePhysics:
    """Price one batch of equal sequences."""
    seconds, terms, features = _price(op, gpu, batch, Plain, cold)
    return OnePhysics(seconds, terms, [*features, *schedule_features_one(op, batch, gpu)])


def _price(
    op: Attention, gpu: Gpu, batch: Batch | Single, x: Kit, cold: bool
) -> tuple[Number, dict[str, Number], Number]:
    """Seconds, their terms, and features but for the schedule's; those are as in the tables, whatever is cold."""
    family, log2, size = family_of(gpu), x.log2, batch.size
    reach = x.smaller(batch.keys, op.window) if op.window else batch.keys
    total, longest = batch.total(reach), batch.longest(reach)
    row_bytes = bytes_of(op.kv_dtype) * (op.head_dim if op.latent_kv else op.head_dim + op.value_dim)
    sliding = batch.total(batch.keys > reach)
    grid = _grid(op, gpu, family, size, batch.total(x.ceil(reach / KEY_TILE)), longest, sliding, x)
    kv_bytes = total * op.kv_heads * row_bytes
    terms = _terms(op, gpu, family, grid, total * row_bytes, grid.keys * row_bytes, size, x)
    busy = terms["stream"] + terms["blocks"]
    alone = terms["launch"] + terms["chain"] + terms["combine"]
    seconds = alone + x.soft_max(CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
    # Kernels come in sizes of 8, 16, 32, ... query heads a block.
    tile = 2.0 ** x.ceil(log2(max(grid.rows, 8.0)))
    kv_blocks, head_blocks = size * op.kv_heads, size * op.heads
    features = x.columns(
        log2(size),
        log2(batch.longest(batch.keys)),
        log2(longest),
        log2(total / size),
        log2(op.heads),
        log2(op.kv_heads),
        log2(op.heads / op.kv_heads),
        log2(op.head_dim),
        bytes_of(op.kv_dtype),
        float(op.window > 0),
        sliding / size,
        log2(seconds),
        *[log2(terms[name] / seconds) for name in ("dram", "stream", "blocks", "tensor")],
        terms["combine"] / seconds,
        log2(terms["launch"] / seconds),
        log2(grid.splits),
        log2(grid.blocks / gpu.sms),
        x.fill(grid.blocks, gpu.sms),
        x.fill(kv_blocks, gpu.sms),
        x.fill(head_blocks, gpu.sms),
        log2(kv_blocks / gpu.sms),
        log2(head_blocks / gpu.sms),
        log2(kv_bytes),
        log2(kv_bytes / gpu.l2_bytes),
        x.smaller(x.ceil(longest / KEY_TILE), 4.0),
        log2(tile),
        grid.rows / tile,
        log2(grid.keys),
    )
    if cold:
        terms["dram"] = kv_bytes * (1.0 / (gpu.dram_bandwidth * CONSTANTS.dram_share))
        seconds = alone + x.soft_max(CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
    return seconds, terms, features


def _grid(
    op: Attention,
    gpu: Gpu,
    family: KernelFamily,
    size: Number,
    tiles: Number,
    longest: Number,
    sliding: Number,
    x: Kit,
) -> Grid:
    """Cut a batch: one block a sequence and KV head, and more while SMs are idle and keys are left to split."""
    # FlashAttention 2 cannot read a narrow cache: what engines run there instead always packs.
    packed = not op.window or family.packs_window or bytes_of(op.kv_dtype) < 2.0
    heads = op.kv_heads if packed else op.heads
    # FlashAttention 2 splits the keys only in its packed form, which needs several heads to pack.
    splittable = family.splits_alone or (packed and op.heads > op.kv_heads)
    most = x.smaller(x.ceil(longest / KEY_TILE), MAX_SPLITS if splittable else 1.0)
    splits = x.clip(x.floor(2.0 * gpu.sms / (size * heads)), 1.0, x.larger(most, 1.0))
    # A short sequence in an uneven batch has fewer tiles than the longest has parts.
    blocks = heads * x.clip(tiles, size, size * splits)
    if op.window and family.window_parts > 1:
        splits = x.where(sliding > 0.0, x.larger(splits, family.window_parts), splits)
        blocks = blocks + heads * sliding * x.larger(family.window_parts - blocks / (size * heads), 0.0)
    return Grid(heads, op.heads / heads, splits, blocks, longest / splits)


def _terms(
    op: Attention,
    gpu: Gpu,
    family: KernelFamily,
    grid: Grid,
    head_bytes: Number,
    part_bytes: Number,
    size: Number,
    x: Kit,
) -> dict[str, Number]:
    """Seconds of each pipe. ``head_bytes`` are one KV head's; ``part_bytes`` are those of the longest block."""
    fitted, clock = CONSTANTS, gpu.boost_clock
    kv_bytes = head_bytes * op.kv_heads
    cache_share = fitted.halved_cache_share if gpu.architecture in HALVED_L2 else fitted.cache_share
    miss = x.miss_share(kv_bytes, gpu.l2_bytes * cache_share, fitted.cache_sharpness)
    dram = miss / (gpu.dram_bandwidth * fitted.dram_share) + (1.0 - miss) / (gpu.l2_bandwidth * fitted.l2_share)
    narrow = bytes_of(op.kv_dtype) < 2.0
    rate = clock * (fitted.sm_fp8_bytes_per_cycle if narrow else family.sm_bytes_per_cycle)
    read = head_bytes * grid.heads
    rounds = grid.blocks / gpu.sms
    rounds = x.larger(1.0, rounds + 0.5 * (x.ceil(rounds) - rounds))  # between the average and the busiest SM's
    chain = (
        family.block_seconds
        + family.block_seconds_per_dim * op.head_dim
        + family.block_seconds_per_head * min(grid.rows, 64.0)
    )
    rows = x.ceil(grid.rows / MMA_ROWS) * MMA_ROWS
    width = op.head_dim + op.value_dim
    keys = read / (bytes_of(op.kv_dtype) * (op.head_dim if op.latent_kv else width))
    flops = 2.0 * width * rows * keys
    merged = size * op.heads * op.value_dim * 4.0 * grid.splits
    return {
        "launch": x.like(size, fitted.launch_cycles / clock),
        "combine": x.where(
            grid.splits > 1.0, family.combine_cycles / clock + merged / (gpu.l2_bandwidth * fitted.l2_share), 0.0
        ),
        "dram": kv_bytes * dram,
        # The longest block runs alone at the end; on average the SMs share the bytes.
        "stream": x.larger(read / gpu.sms / rate, part_bytes / (clock * family.lone_bytes_per_cycle)),
        "chain": x.like(size, chain),
        "blocks": chain * x.larger(rounds - 1.0, 0.0),
        "tensor": flops / (gpu.dense_flops(op.dtype) * fitted.tensor_share),
    }
