"""Prefill attention: tiles of query rows, each against the keys it may see.

Prompts, chunks behind a cached prefix, and decoding sequences in the same call are all tiles; a tile's length is the
number of keys from the start of its first row's window to the end of its last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from infercast.hardware.gpu import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_batch import Lengths, keys_in_reach, pairs_of
from infercast.predict.physics.attention_kernels import KernelFamily, family_of
from infercast.predict.physics.attention_tables import tabled_kernel
from infercast.predict.physics.either import Kit, Number, Plain
from infercast.predict.physics.flash_schedule import SCHEDULE_FEATURES, Schedule
from infercast.predict.physics.terms import Physics


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted on A100, L40S and H200 together and rounded; none is a fact of the hardware or belongs to a GPU."""

    sustained_power: float = 1.0
    """How much of the drop from boost to sustained clock a long call feels."""
    cache_share: float = 0.7
    halved_cache_share: float = 0.4
    cache_sharpness: float = 4.0
    overlap: float = 1.2
    write_seconds: float = 2.0e-6
    write_dram_share: float = 0.72
    write_cycles: float = 178.0
    narrow_write_cycles: float = 228.0
    """The kernel that writes keys and values: its launch, what it reaches of the memory's peak, and cycles of an SM for
    each token of its share, in 16 bits and converted to fp8."""
    write_cache_share: float = 0.5
    write_cache_sharpness: float = 1.5


CONSTANTS = Constants()
HALF_ROWS = 128

PREFILL_FEATURES: tuple[str, ...] = (
    "log_sequences",
    "log_longest_queries",
    "log_mean_queries",
    "log_longest_keys",
    "prefix_share",
    "log_heads",
    "log_kv_heads",
    "log_group",
    "log_head_dim",
    "kv_bytes",
    "query_bytes",
    "log_window",
    "log_mean_keys",
    "log_seconds",
    "tensor_share",
    "exponential_share",
    "blocks_share",
    "longest_share",
    "dram_share",
    "l2_share",
    "launch_share",
    "log_rounds",
    "round_fill",
    "fill_64",
    "fill_192",
    "packed_fill",
    "log_packed_rounds",
    "row_fill",
    "log_bytes",
    "log_bytes_over_l2",
    "log_flops",
    "log_tokens_times_heads",
    "useful_pairs",
    *SCHEDULE_FEATURES,
)


class Tiles(NamedTuple):
    """How a kernel cuts a batch into query tiles."""

    blocks: Number
    keys: Number
    """Keys of all blocks together, in whole key tiles."""
    longest: Number
    """Keys of the longest block."""


class Prefill:
    """What batches of one head layout on one GPU share."""

    def __init__(self, op: Attention, gpu: Gpu, family: KernelFamily | None = None) -> None:
        """``family``: the kernel, where it is not the one that published tables have of this operator."""
        family = family or tabled_kernel(op, gpu)
        self.op, self.gpu, self.family = op, gpu, family
        fitted, self.width = CONSTANTS, op.head_dim + op.value_dim
        self.query_bytes, self.value_bytes = bytes_of(op.dtype), bytes_of(op.kv_dtype)
        speed = gpu.sustained_fraction**fitted.sustained_power
        self.tensor_rate = gpu.dense_flops(op.dtype) * speed * family.tensor_share / gpu.sms
        self.special_rate = gpu.special_rate * speed * family.exponential_share / gpu.sms
        self.stored = op.head_dim if op.latent_kv else self.width
        share = fitted.halved_cache_share if facts_of(gpu).l2_partitions > 1 else fitted.cache_share
        self.cache_bytes = gpu.l2_bytes * share
        self.dram_rate, self.l2_rate = gpu.dram_bandwidth * family.dram_share, gpu.l2_bandwidth * family.l2_share
        self.launch = family.prompt_launch_cycles / gpu.boost_clock
        self.chain = family.tile_seconds + family.tile_seconds_per_dim * op.head_dim
        if self.value_bytes < 2.0:
            self.chain *= family.narrow_chain
            if self.query_bytes >= 2.0:
                self.tensor_rate *= family.narrow_tensor
        self.group = op.heads / op.kv_heads
        sizes = op.heads, op.kv_heads, self.group, op.head_dim
        self.sizes = *Plain.logs(*sizes), self.value_bytes, self.query_bytes, Plain.log2(op.window + 1.0)
        self.schedule = Schedule(op, gpu)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Batches with prompts in them; in an ``engine`` another kernel writes their keys and values.

        Features are always as in the tables.
        """
        a, x = self, batch.x
        tiles = _tiles(a, batch, x)
        terms, kv_bytes, io_bytes = _terms(a, batch, tiles, x)
        work = x.soft_pair(a.family.softmax_overlap, terms["tensor"], terms["exponential"])
        # Inside a tile the copies run under the products; the first and last bytes of a call do not.
        busy = terms["blocks"] + x.soft_max(6.0, work, terms["longest"], terms["l2"])
        own = terms["launch"] + terms["chain"] + x.soft_pair(CONSTANTS.overlap, terms["dram"], busy)
        seconds = own
        if a.family.writes:
            terms["write"] = _write_seconds(a, batch, x)
            seconds = own + terms["write"]
        features = _features(a, batch, tiles, terms, seconds, io_bytes, x)
        if engine and a.family.writes:
            del terms["write"]
            seconds = own
        return Physics(seconds, terms, x.columns(*features, *a.schedule.features(batch, kv_bytes)))


def _keys_of_tiles(op: Attention, batch: Lengths, rows: float, unit: int, x: Kit) -> tuple[Number, Number, Number]:
    """Tiles of ``rows`` queries a sequence, the keys of all its tiles, and the keys of its longest tile.

    Keys come in units of ``unit``.
    """
    queries, cached = batch.queries, batch.keys - batch.queries
    tiles = x.ceil(queries / rows)
    last = x.ceil(queries / unit) * unit
    # Ends are rounded up to whole key tiles; behind a prefix that costs half a key tile on average.
    ends = rows * tiles * (tiles - 1.0) / 2.0 + last + tiles * (cached + (cached % unit > 0.0) * unit / 2.0)
    longest = x.larger(batch.keys, unit)
    if not op.window:
        return tiles, ends, longest
    # Tile j starts at key cached + j rows - window + 1, which counts once it is positive: an arithmetic series. It is
    # rounded down to a whole key tile, by as much in every tile.
    offset = op.window - 1.0 - cached
    first = x.clip(x.ceil(offset / rows), 0.0, tiles)
    starts = rows * (tiles * (tiles - 1.0) - first * (first - 1.0)) / 2.0 - (tiles - first) * offset
    rounding = (tiles - first) * (-offset % unit)
    longest = x.smaller(longest, x.ceil((op.window + x.smaller(rows, queries) - 1.0) / unit) * unit)
    return tiles, ends - starts + rounding, longest


def _tiles(a: Prefill, batch: Lengths, x: Kit) -> Tiles:
    """Cut a batch, with the query heads of a KV head in one tile where the kernel does so and it makes fewer tiles."""
    op, family, group = a.op, a.family, a.group
    plain = _cut(op, batch, op.heads, family.tile_rows, family.tile_keys, x)
    if group == 1.0:
        return plain
    packed = _cut(op, batch, op.kv_heads, max(family.tile_rows / group, 1.0), family.tile_keys, x)
    # Every family packs a batch that only decodes, but for FlashAttention 2 with a window.
    decodes = (batch.longest(batch.queries) <= 1.0) & (family.packs_window or not op.window)
    better = (packed.blocks < plain.blocks) & (family.packs_prompt | decodes)
    if x is Plain:
        return packed if better else plain
    return Tiles(*[x.where(better, ours, theirs) for ours, theirs in zip(packed, plain, strict=True)])


def _cut(op: Attention, batch: Lengths, heads: int, rows: float, unit: int, x: Kit) -> Tiles:
    """Tiles of ``rows`` queries of each of ``heads``."""
    tiles, keys, longest = _keys_of_tiles(op, batch, rows, unit, x)
    if rows > HALF_ROWS:
        # The block holds two tiles of 128 rows, and leaves the second out when it is empty.
        keys = x.where(batch.queries <= HALF_ROWS, keys * HALF_ROWS / rows, keys)
    return Tiles(batch.total(tiles) * heads, batch.total(keys) * heads, batch.longest(longest))


def _terms(a: Prefill, batch: Lengths, tiles: Tiles, x: Kit) -> tuple[dict[str, Number], Number, Number]:
    """Seconds of each pipe; the bytes of keys and values, and all that must move at least once."""
    op, family, sms, flops = a.op, a.family, a.gpu.sms, 2.0 * a.width
    blocks = x.larger(tiles.blocks, 1.0)
    # The SMs finish together but for a part of a tile: long tiles are started first.
    spread = 1.0 / sms + family.tail / blocks * x.smaller(1.0, blocks / sms)
    per_sm = spread * tiles.keys * family.tile_rows
    kv_bytes = keys_in_reach(batch, op.window) * op.kv_heads * a.stored * a.value_bytes
    io_bytes = batch.total(batch.queries) * op.heads * a.width * a.query_bytes + kv_bytes
    miss = x.miss_share(io_bytes, a.cache_bytes, CONSTANTS.cache_sharpness)
    # Kernels that pack also split the keys of a few long tiles over idle SMs.
    parts = x.clip(x.floor(sms / blocks), 1.0, tiles.longest / family.tile_keys) if family.packs_prompt else 1.0
    longest = tiles.longest / parts * family.tile_rows
    terms = {
        "launch": x.like(io_bytes, a.launch),
        "chain": x.like(io_bytes, a.chain),
        "tensor": per_sm * flops / a.tensor_rate,
        "exponential": per_sm / a.special_rate,
        "blocks": a.chain * x.larger(blocks / sms - 1.0, 0.0),
        "longest": x.soft_pair(family.softmax_overlap, longest * flops / a.tensor_rate, longest / a.special_rate),
        "dram": io_bytes * (miss / a.dram_rate + (1.0 - miss) / a.l2_rate),
        "l2": tiles.keys * a.stored * a.value_bytes / a.l2_rate,
    }
    return terms, kv_bytes, io_bytes


def swept_prefill(op: Attention, gpu: Gpu) -> Prefill:
    """As models of a sweep know it: what an engine runs on this chip, without the kernel that writes the cache."""
    return Prefill(op, gpu, family_of(gpu))


def _write_seconds(a: Prefill, batch: Lengths, x: Kit) -> Number:
    """The kernel that writes the keys and values of all new tokens, which are in L2 where they fit."""
    op, gpu, fitted, tokens = a.op, a.gpu, CONSTANTS, batch.total(batch.queries)
    moved = tokens * op.kv_heads * a.stored * (a.query_bytes + a.value_bytes)
    miss = x.miss_share(moved, gpu.l2_bytes * fitted.write_cache_share, fitted.write_cache_sharpness)
    cycles = fitted.narrow_write_cycles if a.value_bytes < 2.0 else fitted.write_cycles
    dram = gpu.dram_bandwidth * fitted.write_dram_share
    move = moved * (miss / dram + (1.0 - miss) / a.l2_rate)
    return fitted.write_seconds + move + tokens * (cycles / gpu.boost_clock / gpu.sms)


def _features(
    a: Prefill,
    batch: Lengths,
    tiles: Tiles,
    terms: dict[str, Number],
    seconds: Number,
    io_bytes: Number,
    x: Kit,
) -> list[Number]:
    """The columns of ``PREFILL_FEATURES`` but for the schedule's."""
    op, sms, size, queries = a.op, a.gpu.sms, batch.size, batch.queries
    tokens, keys = batch.total(queries), batch.total(batch.keys)
    packed = op.kv_heads * batch.total(x.ceil(queries * op.heads / op.kv_heads / 128.0))
    names = ("tensor", "exponential", "blocks", "longest", "dram", "l2", "launch")
    pairs = pairs_of(batch, op.window)
    return [
        *x.logs(size, batch.longest(queries), tokens / size, batch.longest(batch.keys)),
        1.0 - tokens / x.larger(keys, 1.0),
        *a.sizes,
        *x.logs(tiles.keys / x.larger(tiles.blocks, 1.0), seconds),
        *x.logs(*[terms[name] / seconds for name in names], tiles.blocks / sms),
        x.fill(tiles.blocks, sms),
        x.fill(op.heads * batch.total(x.ceil(queries / 64.0)), sms),
        x.fill(op.heads * batch.total(x.ceil(queries / 192.0)), sms),
        x.fill(packed, sms),
        x.log2(packed / sms),
        tokens / x.larger(batch.total(x.ceil(queries / 128.0)) * 128.0, 1.0),
        *x.logs(io_bytes, io_bytes / a.gpu.l2_bytes, 2.0 * op.heads * a.width * pairs, tokens * op.heads),
        pairs * op.heads / x.larger(tiles.keys * 128.0, 1.0),
    ]
