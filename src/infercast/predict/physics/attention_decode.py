"""Decode attention: one new token a sequence against its cached keys and values.

Bytes of the cache over DRAM or L2, thread blocks with a latency of their own, and the splitting of long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from infercast.hardware.gpu import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.attention_kernels import KernelFamily, family_of
from infercast.predict.physics.attention_tables import tabled_kernel
from infercast.predict.physics.either import Kit, Number
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES, Schedule
from infercast.predict.physics.terms import Physics


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted on A100, L40S and H200 together and rounded; none belongs to a GPU.

    Several trade off against one another: they are not facts of the hardware.
    """

    cache_share: float = 1.0
    """Of the L2 size, before a re-read batch starts to miss."""
    halved_cache_share: float = 0.55
    """The same on chips whose L2 is two halves that may hold a line each."""
    cache_sharpness: float = 10.0
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


class Decode:
    """What decode batches of one head layout on one GPU share."""

    def __init__(self, op: Attention, gpu: Gpu, family: KernelFamily | None = None) -> None:
        """``family``: the kernel, where it is not the one that published tables have of this operator."""
        self.op, self.gpu = op, gpu
        self.family = family = family or tabled_kernel(op, gpu)
        fitted, clock, self.value_bytes = CONSTANTS, gpu.boost_clock, bytes_of(op.kv_dtype)
        narrow, width = self.value_bytes < 2.0, op.head_dim + op.value_dim
        self.row_bytes = self.value_bytes * (op.head_dim if op.latent_kv else width)
        # FlashAttention 2 cannot read a narrow cache: what engines run there instead always packs.
        packed = not op.window or family.packs_window or narrow
        self.blocks = op.kv_heads if packed else op.heads
        """Blocks of one sequence over the heads, before its keys are split."""
        self.rows = rows = op.heads / self.blocks
        """Query heads in one block."""
        # FlashAttention 2 splits the keys only in its packed form, which needs several heads to pack.
        splittable = family.splits_alone or (packed and op.heads > op.kv_heads)
        self.most_splits = MAX_SPLITS if splittable else 1.0
        cache_share = fitted.halved_cache_share if facts_of(gpu).l2_partitions > 1 else fitted.cache_share
        self.cache_bytes = gpu.l2_bytes * cache_share
        self.dram_rate = gpu.dram_bandwidth * family.decode_dram_share
        self.l2_rate = gpu.l2_bandwidth * family.decode_l2_share
        self.sm_rate = clock * (family.narrow_bytes_per_cycle if narrow else family.sm_bytes_per_cycle)
        self.lone_rate = clock * family.lone_bytes_per_cycle
        self.tensor_rate = gpu.dense_flops(op.dtype) * family.decode_tensor_share
        self.key_flops = 2.0 * width * (ceil(rows / MMA_ROWS) * MMA_ROWS)
        self.launch, self.combine = family.launch_cycles / clock, family.combine_cycles / clock
        if narrow:
            self.launch *= family.narrow_launch
        self.sequence = family.sequence_cycles / clock / gpu.sms
        self.chain = (
            family.block_seconds
            + family.block_seconds_per_dim * op.head_dim
            + family.block_seconds_per_head * min(rows, 64.0)
        )
        # Kernels come in sizes of 8, 16, 32, ... query heads a block.
        tile = 2.0 ** ceil(log2(max(rows, 8.0)))
        group = op.heads / op.kv_heads
        self.sizes = log2(op.heads), log2(op.kv_heads), log2(group), log2(op.head_dim), self.value_bytes
        self.tile = log2(tile), rows / tile
        self.schedule = Schedule(op, gpu)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Decode batches; every sequence has one query. In an ``engine`` nothing of the cache is in L2.

        Features are always as in the tables.
        """
        a, x, op, gpu, size = self, batch.x, self.op, self.gpu, batch.size
        reach = x.smaller(batch.keys, op.window) if op.window else batch.keys
        total, longest = batch.total(reach), batch.longest(reach)
        sliding = batch.total(batch.keys > reach)
        longest_tiles = x.ceil(longest / KEY_TILE)
        splits, blocks = _grid(a, size, batch.total(x.ceil(reach / KEY_TILE)), longest_tiles, sliding, x)
        part_keys, kv_bytes = longest / splits, total * op.kv_heads * a.row_bytes
        terms = _terms(a, splits, blocks, total * a.row_bytes, part_keys * a.row_bytes, size, x)
        busy = terms["stream"] + terms["blocks"]
        alone = terms["launch"] + terms["chain"] + terms["combine"]
        seconds = alone + x.soft_max(CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
        kv_rounds, head_rounds = size * op.kv_heads / gpu.sms, size * op.heads / gpu.sms
        shares = [terms[name] / seconds for name in ("dram", "stream", "blocks", "tensor")]
        features = x.columns(
            *x.logs(size, batch.longest(batch.keys), longest, total / size),
            *a.sizes,
            float(op.window > 0),
            sliding / size,
            *x.logs(seconds, *shares),
            terms["combine"] / seconds,
            *x.logs(terms["launch"] / seconds, splits, blocks / gpu.sms),
            x.fill(blocks, gpu.sms),
            x.fill(kv_rounds, 1),
            x.fill(head_rounds, 1),
            *x.logs(kv_rounds, head_rounds, kv_bytes, kv_bytes / gpu.l2_bytes),
            x.smaller(longest_tiles, 4.0),
            *a.tile,
            x.log2(part_keys),
            *a.schedule.features(batch, kv_bytes),
        )
        if engine:
            terms["dram"] = kv_bytes * (1.0 / a.dram_rate)
            seconds = alone + x.soft_max(CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
        return Physics(seconds, terms, features)


def swept_decode(op: Attention, gpu: Gpu) -> Decode:
    """As models of a sweep know it: what an engine runs on this chip."""
    return Decode(op, gpu, family_of(gpu))


def _grid(
    a: Decode, size: Number, tiles: Number, longest_tiles: Number, sliding: Number, x: Kit
) -> tuple[Number, Number]:
    """Parts that the longest sequence is cut into, and thread blocks.

    One block a sequence and KV head, and more while SMs are idle and keys are left to split.
    """
    heads, parts = a.blocks, a.family.window_parts
    most = x.larger(x.smaller(longest_tiles, a.most_splits), 1.0)
    splits = x.clip(x.floor(2.0 * a.gpu.sms / (size * heads)), 1.0, most)
    # A short sequence in an uneven batch has fewer tiles than the longest has parts.
    blocks = heads * x.clip(tiles, size, size * splits)
    if a.op.window and parts > 1:
        splits = x.where(sliding > 0.0, x.larger(splits, parts), splits)
        blocks = blocks + heads * sliding * x.larger(parts - blocks / (size * heads), 0.0)
    return splits, blocks


def _terms(
    a: Decode, splits: Number, blocks: Number, head_bytes: Number, part_bytes: Number, size: Number, x: Kit
) -> dict[str, Number]:
    """Seconds of each pipe. ``head_bytes`` are one KV head's; ``part_bytes`` are those of the longest block."""
    op, sms = a.op, a.gpu.sms
    kv_bytes, read = head_bytes * op.kv_heads, head_bytes * a.blocks
    miss = x.miss_share(kv_bytes, a.cache_bytes, CONSTANTS.cache_sharpness)
    rounds = blocks / sms
    rounds = x.larger(1.0, rounds + 0.5 * (x.ceil(rounds) - rounds))  # between the average and the busiest SM's
    merged = size * op.heads * op.value_dim * 4.0 * splits
    return {
        "launch": x.like(size, a.launch) if not a.sequence else a.launch + size * a.sequence,
        "combine": x.where(splits > 1.0, a.combine + merged / a.l2_rate, 0.0),
        "dram": kv_bytes * (miss / a.dram_rate + (1.0 - miss) / a.l2_rate),
        # The longest block runs alone at the end; on average the SMs share the bytes.
        "stream": x.larger(read / sms / a.sm_rate, part_bytes / a.lone_rate),
        "chain": x.like(size, a.chain),
        "blocks": a.chain * x.larger(rounds - 1.0, 0.0),
        "tensor": a.key_flops * (read / a.row_bytes) / a.tensor_rate,
    }
