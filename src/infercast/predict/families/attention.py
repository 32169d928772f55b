"""Attention over prompts, of decoding sequences and inside images: physics, features, and family records."""

from __future__ import annotations

from math import ceil, log2
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of
from infercast.lazy_classes import NamedTuple, replace
from infercast.ops import Attention, EncoderAttention
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Kit, Number, Physics, Plain, kit_of
from infercast.predict.families import family as common
from infercast.predict.families.attention_kernels import (
    SCHEDULE_FEATURES,
    Lengths,
    Schedule,
    Single,
    batch_of,
    family_of,
    keys_in_reach,
    pairs_of,
    single_of,
    split_phases,
    tabled_kernel,
)
from infercast.predict.identity import ANY, LATENT, kernel_of

DECODE_CONSTANTS = common.constants("attention decode")["any"]
KEY_TILE = 128
MMA_ROWS = 16

DECODE_FEATURES = common.feature_names("attention_decode") + SCHEDULE_FEATURES


class DecodePhysics:
    """Decode attention: one new token a sequence against its cached keys and values. Bytes of the cache over DRAM or
    L2, thread blocks with a latency of their own, and the splitting of long sequences.
    """

    def __init__(self, op: Attention, gpu: Gpu, family: common.Constants | None = None) -> None:
        """``family``: the kernel, where it is not the one that published tables have of this operator."""
        self.op, self.gpu = op, gpu
        self.family = family = family or tabled_kernel(op, gpu)
        fitted, clock, self.value_bytes = DECODE_CONSTANTS, gpu.boost_clock, bytes_of(op.kv_dtype)
        narrow, width = self.value_bytes < 2.0, op.head_dim + op.value_dim
        self.row_bytes = self.value_bytes * (op.head_dim if op.latent_kv else width)
        # FlashAttention 2 cannot read a narrow cache: what engines run there instead always packs.
        packed = not op.window or family.packs_window or narrow
        self.blocks = op.kv_heads if packed else op.heads
        """Blocks of one sequence over the heads, before its keys are split."""
        self.rows = rows = op.heads / self.blocks  # Query heads in one block
        # FlashAttention 2 splits the keys only in its packed form, which needs several heads to pack.
        splittable = family.splits_alone or (packed and op.heads > op.kv_heads)
        self.most_splits = 64 if splittable else 1.0
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
        """Decode batches; in an ``engine`` nothing of the cache is in L2, but features are always as in the tables."""
        a, x, op, gpu, size = self, batch.x, self.op, self.gpu, batch.size
        reach = x.smaller(batch.keys, op.window) if op.window else batch.keys
        total, longest = batch.total(reach), batch.longest(reach)
        sliding = batch.total(batch.keys > reach)
        longest_tiles = x.ceil(longest / KEY_TILE)
        splits, blocks = a._grid(size, batch.total(x.ceil(reach / KEY_TILE)), longest_tiles, sliding, x)
        part_keys, kv_bytes = longest / splits, total * op.kv_heads * a.row_bytes
        terms = a._decode_terms(splits, blocks, total * a.row_bytes, part_keys * a.row_bytes, size, x)
        busy = terms["stream"] + terms["blocks"]
        alone = terms["launch"] + terms["chain"] + terms["combine"]
        seconds = alone + x.soft_max(DECODE_CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
        kv_rounds, head_rounds = size * op.kv_heads / gpu.sms, size * op.heads / gpu.sms
        shares = [terms[name] / seconds for name in ("dram", "stream", "blocks", "tensor")]
        features = x.columns(
            *x.logs(size, batch.longest(batch.keys), longest, total / size), *a.sizes, float(op.window > 0),
            sliding / size, *x.logs(seconds, *shares), terms["combine"] / seconds,
            *x.logs(terms["launch"] / seconds, splits, blocks / gpu.sms), x.fill(blocks, gpu.sms), x.fill(kv_rounds, 1),
            x.fill(head_rounds, 1), *x.logs(kv_rounds, head_rounds, kv_bytes, kv_bytes / gpu.l2_bytes),
            x.smaller(longest_tiles, 4.0), *a.tile, x.log2(part_keys), *a.schedule.features(batch, kv_bytes),
        )  # fmt: skip
        if engine:
            terms["dram"] = kv_bytes * (1.0 / a.dram_rate)
            seconds = alone + x.soft_max(DECODE_CONSTANTS.overlap, terms["dram"], busy, terms["tensor"])
        return Physics(seconds, terms, features)

    def _grid(
        self, size: Number, tiles: Number, longest_tiles: Number, sliding: Number, x: Kit
    ) -> tuple[Number, Number]:
        """Parts that the longest sequence is cut into while SMs are idle, and thread blocks: one a sequence and KV
        head.
        """
        heads, parts = self.blocks, self.family.window_parts
        most = x.larger(x.smaller(longest_tiles, self.most_splits), 1.0)
        splits = x.clip(x.floor(2.0 * self.gpu.sms / (size * heads)), 1.0, most)
        # A short sequence in an uneven batch has fewer tiles than the longest has parts.
        blocks = heads * x.clip(tiles, size, size * splits)
        if self.op.window and parts > 1:
            splits = x.where(sliding > 0.0, x.larger(splits, parts), splits)
            blocks = blocks + heads * sliding * x.larger(parts - blocks / (size * heads), 0.0)
        return splits, blocks

    def _decode_terms(
        self, splits: Number, blocks: Number, head_bytes: Number, part_bytes: Number, size: Number, x: Kit
    ) -> dict[str, Number]:
        """Seconds of each pipe. ``head_bytes`` are one KV head's; ``part_bytes`` are those of the longest block."""
        op, sms = self.op, self.gpu.sms
        kv_bytes, read = head_bytes * op.kv_heads, head_bytes * self.blocks
        miss = x.miss_share(kv_bytes, self.cache_bytes, DECODE_CONSTANTS.cache_sharpness)
        rounds = blocks / sms
        rounds = x.larger(1.0, rounds + 0.5 * (x.ceil(rounds) - rounds))  # between the average and the busiest SM's
        merged = size * op.heads * op.value_dim * 4.0 * splits
        return {
            "launch": x.like(size, self.launch) if not self.sequence else self.launch + size * self.sequence,
            "combine": x.where(splits > 1.0, self.combine + merged / self.l2_rate, 0.0),
            "dram": kv_bytes * (miss / self.dram_rate + (1.0 - miss) / self.l2_rate),
            # The longest block runs alone at the end; on average the SMs share the bytes.
            "stream": x.larger(read / sms / self.sm_rate, part_bytes / self.lone_rate),
            "chain": x.like(size, self.chain),
            "blocks": self.chain * x.larger(rounds - 1.0, 0.0),
            "tensor": self.key_flops * (read / self.row_bytes) / self.tensor_rate,
        }


PREFILL_CONSTANTS = common.constants("attention prefill")["any"]
HALF_ROWS = 128

PREFILL_FEATURES = common.feature_names("attention_prefill") + SCHEDULE_FEATURES


class Tiles(NamedTuple):
    blocks: Number
    keys: Number  # Keys of all blocks together, in whole key tiles
    longest: Number  # Keys of the longest block


class PrefillPhysics:
    """Prefill attention: tiles of query rows, each against the keys it may see. Prompts, chunks behind a cached prefix,
    and decoding sequences in the same call are all tiles; a tile's length is the number of keys from the start of its
    first row's window to the end of its last row.
    """

    def __init__(self, op: Attention, gpu: Gpu, family: common.Constants | None = None) -> None:
        """``family``: the kernel, where it is not the one that published tables have of this operator."""
        family = family or tabled_kernel(op, gpu)
        self.op, self.gpu, self.family = op, gpu, family
        fitted, self.width = PREFILL_CONSTANTS, op.head_dim + op.value_dim
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
            self.tensor_rate *= family.narrow_tensor if self.query_bytes >= 2.0 else family.narrow_products
        self.group = op.heads / op.kv_heads
        sizes = op.heads, op.kv_heads, self.group, op.head_dim
        self.sizes = *Plain.logs(*sizes), self.value_bytes, self.query_bytes, Plain.log2(op.window + 1.0)
        self.schedule = Schedule(op, gpu)

    def physics(self, batch: Lengths, *, engine: bool = False) -> Physics:
        """Batches with prompts; in an ``engine`` another kernel writes their keys and values, but features are the
        tables'.
        """
        a, x = self, batch.x
        tiles = a._tiles(batch, x)
        terms, kv_bytes, io_bytes = a._prefill_terms(batch, tiles, x)
        work = x.soft_pair(a.family.softmax_overlap, terms["tensor"], terms["exponential"])
        # Inside a tile the copies run under the products; the first and last bytes of a call do not.
        busy = terms["blocks"] + x.soft_max(6.0, work, terms["longest"], terms["l2"])
        own = terms["launch"] + terms["chain"] + x.soft_pair(PREFILL_CONSTANTS.overlap, terms["dram"], busy)
        seconds = own
        if a.family.writes:
            terms["write"] = a.write_seconds(batch)
            seconds = own + terms["write"]
        features = a._features(batch, tiles, terms, seconds, io_bytes, x)
        if engine and a.family.writes:
            del terms["write"]
            seconds = own
        return Physics(seconds, terms, x.columns(*features, *a.schedule.features(batch, kv_bytes)))

    def _tiles(self, batch: Lengths, x: Kit) -> Tiles:
        """Cut a batch, with the query heads of a KV head in one tile where the kernel does so and saves tiles."""
        op, family, group = self.op, self.family, self.group
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

    def _prefill_terms(self, batch: Lengths, tiles: Tiles, x: Kit) -> tuple[dict[str, Number], Number, Number]:
        """Seconds of each pipe; the bytes of keys and values, and all that must move at least once."""
        op, family, sms, flops = self.op, self.family, self.gpu.sms, 2.0 * self.width
        blocks = x.larger(tiles.blocks, 1.0)
        # The SMs finish together but for a part of a tile: long tiles are started first.
        spread = 1.0 / sms + family.tail / blocks * x.smaller(1.0, blocks / sms)
        per_sm = spread * tiles.keys * family.tile_rows
        kv_bytes = keys_in_reach(batch, op.window) * op.kv_heads * self.stored * self.value_bytes
        io_bytes = batch.total(batch.queries) * op.heads * self.width * self.query_bytes + kv_bytes
        miss = x.miss_share(io_bytes, self.cache_bytes, PREFILL_CONSTANTS.cache_sharpness)
        # Kernels that pack also split the keys of a few long tiles over idle SMs.
        parts = x.clip(x.floor(sms / blocks), 1.0, tiles.longest / family.tile_keys) if family.packs_prompt else 1.0
        longest = tiles.longest / parts * family.tile_rows
        terms = {
            "launch": x.like(io_bytes, self.launch), "chain": x.like(io_bytes, self.chain),
            "tensor": per_sm * flops / self.tensor_rate, "exponential": per_sm / self.special_rate,
            "blocks": self.chain * x.larger(blocks / sms - 1.0, 0.0),
            "longest": x.soft_pair(
                family.softmax_overlap, longest * flops / self.tensor_rate, longest / self.special_rate
            ),
            "dram": io_bytes * (miss / self.dram_rate + (1.0 - miss) / self.l2_rate),
            "l2": tiles.keys * self.stored * self.value_bytes / self.l2_rate,
        }  # fmt: skip
        return terms, kv_bytes, io_bytes

    def write_seconds(self, batch: Lengths) -> Number:
        """The kernel that writes the keys and values of all new tokens, which are in L2 where they fit."""
        op, gpu, x = self.op, self.gpu, batch.x
        fitted, tokens = PREFILL_CONSTANTS, batch.total(batch.queries)
        moved = tokens * op.kv_heads * self.stored * (self.query_bytes + self.value_bytes)
        miss = x.miss_share(moved, gpu.l2_bytes * fitted.write_cache_share, fitted.write_cache_sharpness)
        cycles = fitted.narrow_write_cycles if self.value_bytes < 2.0 else fitted.write_cycles
        dram = gpu.dram_bandwidth * fitted.write_dram_share
        move = moved * (miss / dram + (1.0 - miss) / self.l2_rate)
        return fitted.write_seconds + move + tokens * (cycles / gpu.boost_clock / gpu.sms)

    def _features(
        self, batch: Lengths, tiles: Tiles, terms: dict[str, Number], seconds: Number, io_bytes: Number, x: Kit
    ) -> list[Number]:
        """The columns of ``PREFILL_FEATURES`` but for the schedule's."""
        op, sms, size, queries = self.op, self.gpu.sms, batch.size, batch.queries
        tokens, keys = batch.total(queries), batch.total(batch.keys)
        packed = op.kv_heads * batch.total(x.ceil(queries * op.heads / op.kv_heads / 128.0))
        names = ("tensor", "exponential", "blocks", "longest", "dram", "l2", "launch")
        pairs = pairs_of(batch, op.window)
        return [
            *x.logs(size, batch.longest(queries), tokens / size, batch.longest(batch.keys)),
            1.0 - tokens / x.larger(keys, 1.0), *self.sizes, *x.logs(tiles.keys / x.larger(tiles.blocks, 1.0), seconds),
            *x.logs(*[terms[name] / seconds for name in names], tiles.blocks / sms), x.fill(tiles.blocks, sms),
            x.fill(op.heads * batch.total(x.ceil(queries / 64.0)), sms),
            x.fill(op.heads * batch.total(x.ceil(queries / 192.0)), sms), x.fill(packed, sms), x.log2(packed / sms),
            tokens / x.larger(batch.total(x.ceil(queries / 128.0)) * 128.0, 1.0),
            *x.logs(io_bytes, io_bytes / self.gpu.l2_bytes, 2.0 * op.heads * self.width * pairs, tokens * op.heads),
            pairs * op.heads / x.larger(tiles.keys * 128.0, 1.0),
        ]  # fmt: skip


def _keys_of_tiles(op: Attention, batch: Lengths, rows: float, unit: int, x: Kit) -> tuple[Number, Number, Number]:
    """Tiles of ``rows`` queries, the keys (in units of ``unit``) of all tiles of a sequence and of its longest one."""
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


def _cut(op: Attention, batch: Lengths, heads: int, rows: float, unit: int, x: Kit) -> Tiles:
    tiles, keys, longest = _keys_of_tiles(op, batch, rows, unit, x)
    if rows > HALF_ROWS:
        # The block holds two tiles of 128 rows, and leaves the second out when it is empty.
        keys = x.where(batch.queries <= HALF_ROWS, keys * HALF_ROWS / rows, keys)
    return Tiles(batch.total(tiles) * heads, batch.total(keys) * heads, batch.longest(longest))


QUERY_TILE = 128


def _only_decodes(batch: Attention | Lengths) -> bool:
    most = batch.queries.max() if isinstance(batch.queries, np.ndarray) else batch.queries
    return bool(most == 1)


def _build(values: common.Values, queries: Any, keys: Any) -> Attention:
    batch = values["batch"]
    if type(queries) is type(keys) is type(batch) is int:  # one needs no broadcasting, which takes longer than it
        queries, keys, batch = np.array([[queries]]), np.array([[keys]]), np.array([[batch]])
    else:
        queries, keys, batch = (each.reshape(-1, 1) for each in np.broadcast_arrays(queries, keys, batch))
    sizes, formats = (
        common.wholes(values, *_HEADS, "window"),
        {"dtype": values["dtype"], "kv_dtype": values["kv_dtype"]},
    )
    return Attention(queries, keys, **sizes, value_dim=int(values["head_dim"]), sequences=batch, **formats)


def _single(values: common.Values, queries: int, cached: int) -> Single:
    return Single(float(queries), float(queries + cached), float(values["batch"]))


def _named(op: Attention, variant: str) -> Attention:
    return op if op.kernel or variant in ("", LATENT, ANY) else replace(op, kernel=variant)


_HEADS = ("heads", "kv_heads", "head_dim")
_OPTIONS = {"window": 0, "dtype": "bf16", "kv_dtype": "bf16"}


def _pipes(op: Attention, gpu: Gpu) -> common.Pipes:
    """Matrix products in whole rounds of query tiles, exponentials, and the KV cache read once."""
    tensor = op.flops / gpu.dense_flops(tensor_rate_of(op.dtype))
    has_prompt = op.queries.max(axis=-1) > 1  # the rest only decode, cut along their keys until they fill the chip
    if has_prompt.any():
        waves = common.quantised_waves(op.heads * op.num_tiles(QUERY_TILE), gpu.sms)
        tensor = tensor * np.where(has_prompt, waves, 1.0)
    return {"tensor": tensor, "special": op.exponentials / gpu.special_rate, "dram": common.dram_seconds(op, gpu)}


def _work(op: Attention, batch: Lengths) -> tuple[Quantity, Quantity]:
    """Scores and weighted values; keys and values in reach, each once."""
    both = op.head_dim + op.value_dim
    row_bytes = bytes_of(op.kv_dtype) * op.kv_heads * (op.head_dim if op.latent_kv else both)
    return 2.0 * op.heads * both * pairs_of(batch, op.window), row_bytes * keys_in_reach(batch, op.window)


def _limits(op: Attention, gpu: Gpu) -> dict[str, common.Array]:
    products = common.product_limits(op, gpu, op.bytes_read + op.bytes_written)
    return {**products, "special": np.ravel(op.exponentials) / gpu.special_rate}


def _ceiling_shape(op: Attention, gpu: Gpu) -> list[Any]:
    sequences = np.ravel(op.num_tiles(1 << 40))  # rows of a tile that holds any sequence
    queries, keys = np.ravel(op.num_queries), np.ravel((op.keys * op.sequences).sum(axis=-1))
    tiles = sequences * op.kv_heads if _only_decodes(op) else np.ravel(op.num_tiles(QUERY_TILE)) * op.heads
    return [
        np.log2(tiles / gpu.sms), np.log2(queries / sequences), np.log2(keys / sequences),
        np.log2(op.heads / op.kv_heads), op.head_dim, float(op.window > 0), float(op.latent_kv),
        float(op.kv_dtype != op.dtype),
    ]  # fmt: skip


PREFILL = common.Family(
    name="attention_prefill",
    op=Attention,
    accepts=lambda op: not _only_decodes(op),
    shapes={
        "prefill": common.Shape(
            ("batch", "q_len", *_HEADS),
            {"prefix": 0, **_OPTIONS},
            lambda values: _build(values, values["q_len"], values["q_len"] + values["prefix"]),
            (*_HEADS, *_OPTIONS),
            lambda values: _single(values, values["q_len"], values.get("prefix", 0)) if values["q_len"] > 1 else None,
        )
    },
    step_sizes=("sequences", "queries", "keys"),
    split=split_phases,
    sizes=batch_of,
    size_of_one=single_of,
    kind=attrgetter("dtype", "latent_kv", "kv_dtype", "head_dim", "kernel"),
    core=PrefillPhysics,
    # Models of a sweep know what an engine runs on this chip, without the kernel that writes the cache.
    swept_core=lambda op, gpu: PrefillPhysics(op, gpu, family_of(gpu)),
    named=_named,
    core_key=attrgetter("heads", "kv_heads", "head_dim", "value_dim", "window", "dtype", "kv_dtype", "kernel"),
    features={"attention_prefill": PREFILL_FEATURES},
    shares=("tensor", "exponential", "blocks", "longest", "dram", "l2", "launch"),
    scheduled=PREFILL_FEATURES.index("log_scheduled_us"),
    pipes=_pipes,
    limits=_limits,
    work=_work,
    throttled=("attention",),
    # Published tables have no attention over a latent; a sweep has whatever kernel the engine runs.
    variants=lambda op, gpu, profile: (LATENT,) if op.latent_kv else (kernel_of(op, gpu, profile.engine), ""),
    # On prompts above 100 us, borrowed from L40S and A100, RTX 4090, L4, A10G and A30 are 16, 27, 11 and 27 % off, and
    # 20, 36, 43 and 48 % with the square root of the ratio; between H100 and H200 it is the other way round.
    trust={"": 0.5},
    between_kernels={"": (1.0, 0.5e-6)},
    spread={"attention": 8.0},
    typical=lambda op: ("latent" if op.latent_kv else "attention_prefill",),
    ceiling=common.Ceiling(
        features=("log_rounds", "log_queries", "log_keys", "log_group", "head_dim", "window", "latent", "kv_dtype"),
        shape=_ceiling_shape,
        read_again=lambda op: np.ravel(op.kv_bytes),
    ),
)
DECODE = replace(
    PREFILL,
    name="attention_decode",
    accepts=_only_decodes,
    shapes={
        "decode": common.Shape(
            ("batch", "kv_len", *_HEADS), _OPTIONS, lambda values: _build(values, 1, values["kv_len"] + 1),
            (*_HEADS, *_OPTIONS), lambda values: _single(values, 1, values["kv_len"]),
        )
    },
    core=DecodePhysics,
    swept_core=lambda op, gpu: DecodePhysics(op, gpu, family_of(gpu)),
    features={"attention_decode": DECODE_FEATURES},
    shares=("dram", "stream", "blocks", "tensor", "combine", "launch"),
    scheduled=DECODE_FEATURES.index("log_scheduled_us"),
    trust={},
    between_kernels={},
    typical=lambda op: ("latent" if op.latent_kv else "attention_decode",),
)  # fmt: skip


class EncoderAttentionPhysics:
    """Attention inside images, in vision towers: tiles of query rows, each against all tokens of its image. Heads of 72
    and 80 are computed as 96. Nothing is masked, so all tiles of an image take as long.
    """

    def __init__(self, op: EncoderAttention, gpu: Gpu) -> None:
        self.op, self.gpu, self.family = op, gpu, (family := family_of(gpu))
        speed = gpu.sustained_fraction
        width = ceil(op.head_dim / 32) * 32
        self.tensor = 4.0 * width / (gpu.dense_flops(op.dtype) * speed * family.tensor_share / gpu.sms)
        self.exponential = 1.0 / (gpu.special_rate * speed * family.exponential_share / gpu.sms)
        self.chain = family.tile_seconds + family.tile_seconds_per_dim * op.head_dim
        self.launch = 0.75 * family.prompt_launch_cycles / gpu.boost_clock
        self.sizes = Plain.log2(op.heads), float(op.head_dim)

    def physics(self, size: tuple[Number, Number], *, engine: bool = False) -> Physics:
        """Images and their tokens; an ``engine`` takes as long as a table."""
        images, tokens = size
        a, x, op, gpu, family = self, kit_of(size[1]), self.op, self.gpu, self.family
        tiles = x.ceil(tokens / family.tile_rows)
        keys = x.ceil(tokens / family.tile_keys) * family.tile_keys
        blocks = images * op.heads * tiles
        rounds = blocks / gpu.sms
        # The last round is rarely full, and ends a little after the others.
        whole = x.larger(1.0, rounds + 0.5 * (x.ceil(rounds) - rounds))
        moved = 4.0 * bytes_of(op.dtype) * op.heads * op.head_dim * images * tokens
        miss = x.miss_share(moved, gpu.l2_bytes * 0.6, 3.0)
        pairs = whole * family.tile_rows * keys
        terms = {
            "tensor": pairs * a.tensor, "exponential": pairs * a.exponential, "blocks": a.chain * whole,
            "dram": moved * (miss / (gpu.dram_bandwidth * 0.75) + (1.0 - miss) / (gpu.l2_bandwidth * 0.5)),
            "launch": x.like(moved, a.launch),
        }  # fmt: skip
        work = x.soft_pair(family.softmax_overlap, terms["tensor"], terms["exponential"])
        seconds = terms["launch"] + x.soft_pair(3.0, work + terms["blocks"], terms["dram"])
        features = x.columns(
            *x.logs(images, tokens), *a.sizes, x.log2(rounds), x.fill(blocks, gpu.sms),
            tokens / (tiles * family.tile_rows), tokens / keys,
            *[terms[name] / seconds for name in ("tensor", "exponential", "blocks", "dram", "launch")],
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


ENCODER_TILE = 128


def _encoder_pipes(op: EncoderAttention, gpu: Gpu) -> common.Pipes:
    blocks = op.heads * np.asarray(op.images) * np.ceil(np.asarray(op.tokens) / ENCODER_TILE)
    tensor = op.flops / gpu.dense_flops(tensor_rate_of(op.dtype)) * common.quantised_waves(blocks, gpu.sms)
    return {"tensor": tensor, "dram": common.dram_seconds(op, gpu)}


def _encoder_work(op: EncoderAttention, size: tuple[Any, Any]) -> tuple[Quantity, Quantity]:
    """Both products; keys and values may still be in L2 from the kernel before."""
    images, tokens = size
    return 4.0 * op.heads * op.head_dim * images * tokens * tokens, 0.0 * tokens


def _encoder_ceiling(op: EncoderAttention, gpu: Gpu) -> list[Any]:
    tokens = np.ravel(np.asarray(op.tokens, dtype=np.float64))
    blocks = op.heads * np.ravel(np.asarray(op.images)) * np.ceil(tokens / ENCODER_TILE)
    return [np.log2(blocks / gpu.sms), np.log2(tokens), op.head_dim]


ENCODER_ATTENTION = common.Family(
    name="encoder_attention", op=EncoderAttention,
    shapes={
        "encoder_attention": common.Shape(
            ("batch", "tokens", "heads", "head_dim"),
            {},
            lambda by: EncoderAttention(by["batch"], by["tokens"], **common.wholes(by, "heads", "head_dim")),
        )
    },
    step_sizes=("images", "tokens"), sizes=lambda op: common.all_floats(op.images, op.tokens),
    size_of_one=lambda op: common.all_lone(op.images, op.tokens), kind=lambda op: (op.dtype,),
    core=EncoderAttentionPhysics, core_key=attrgetter("heads", "head_dim", "dtype"),
    features={"encoder_attention": common.feature_names("encoder_attention")},
    shares=("tensor", "exponential", "blocks", "dram", "launch"), pipes=_encoder_pipes,
    limits=lambda op, gpu: common.product_limits(op, gpu, op.bytes_read + op.bytes_written), work=_encoder_work,
    throttled=("encoder_attention",), variants=lambda *_: ("",), spread={"encoder_attention": 8.0},
    typical=lambda _: ("attention_prefill",),
    ceiling=common.Ceiling(features=("log_rounds", "log_tokens", "head_dim"), shape=_encoder_ceiling),
)  # fmt: skip
