"""Batches of sequences, and attention kernels of a chip: tiles, rates and the schedule of FlashAttention 3."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of
from infercast.lazy_classes import replace
from infercast.ops import Attention
from infercast.ops.op import bytes_of
from infercast.predict.array_api import Array, Arrays, Kit, Number, Plain
from infercast.predict.families.family import Constants, constants, feature_names
from infercast.predict.identity import DEFAULT_ENGINE, kernel_of


class Batch:
    """Batches side by side: the leading axes as one, the last over the sequences."""

    __slots__ = ("counts", "keys", "queries", "size")
    x = Arrays

    def __init__(self, queries: Array, keys: Array, counts: Array) -> None:
        """``counts``: how many sequences an entry stands for; zero for padding."""
        self.queries, self.keys, self.counts = queries, keys, counts
        # Sequences in each batch; one where all is padding, so that ratios stay finite.
        self.size: Array = np.maximum(counts.sum(axis=-1), 1.0)

    def total(self, values: Number) -> Number:
        return (values * self.counts).sum(axis=-1)

    def longest(self, values: Number) -> Number:
        return np.where(self.counts > 0, values, 0.0).max(axis=-1)

    def shortest(self, values: Number) -> Number:
        """The smallest value over the sequences of each batch; one where all is padding."""
        smallest = np.where(self.counts > 0, values, np.inf).min(axis=-1)
        return np.where(np.isfinite(smallest), smallest, 1.0)

    def each(self, value: Number) -> Number:
        """A number of each batch, to be combined with those of its sequences."""
        return value[:, None]


class Single:
    __slots__ = ("counts", "keys", "queries", "size")
    x = Plain

    def __init__(self, queries: float, keys: float, counts: float) -> None:
        self.queries, self.keys, self.counts = queries, keys, counts
        self.size = counts if counts > 1.0 else 1.0

    def total(self, value: Number) -> Number:
        return value * self.counts

    def longest(self, value: Number) -> Number:
        return value if self.counts > 0.0 else 0.0

    def each(self, value: Number) -> Number:
        return value

    shortest = each


Lengths = Batch | Single


def batch_of(op: Any) -> Batch:
    queries, keys, counts = np.broadcast_arrays(op.queries, op.keys, op.sequences)
    width = queries.shape[-1] if queries.ndim else 1
    rows = [np.asarray(part, dtype=np.float64).reshape(-1, width) for part in (queries, keys, counts)]
    return Batch(*rows)


def single_of(op: Any) -> Single | None:
    """The batch of an operator, if it is one of equal sequences."""
    counts = op.sequences
    if op.queries.size != 1 or op.keys.size != 1:
        keys = op.keys
        if op.queries.shape != keys.shape or keys.ndim != 1 or not isinstance(counts, int):
            return None
        # Sums over equal decoding sequences are whole numbers, so that a product is as good; those of prompts are not.
        if keys.max() != keys.min() or op.queries.max() != 1:
            return None
        return Single(1.0, float(keys[0]), float(counts * keys.size))
    if not isinstance(counts, int):
        if counts.size != 1:
            return None
        counts = counts.item()
    return Single(float(op.queries.item()), float(op.keys.item()), float(counts))


def split_phases(op: Any) -> tuple[Any, Any | None]:
    """A batch of prompts and decoding sequences as two."""
    decoding = op.queries == 1
    if op.queries.ndim > 1 or decoding.all() or not decoding.any():
        return op, None
    counts = np.broadcast_to(op.sequences, op.queries.shape)
    prompts, decodes = (
        replace(op, queries=op.queries[half], keys=op.keys[half], sequences=counts[half])
        for half in (~decoding, decoding)
    )
    return prompts, decodes


def pairs_of(batch: Lengths, window: int) -> Number:
    queries, cached = batch.queries, batch.keys - batch.queries
    if not window:
        return batch.total(queries * cached + queries * (queries + 1.0) / 2.0)
    # The first queries still see every key; the others see exactly ``window``.
    unlimited = batch.x.clip(window - cached, 0.0, queries)
    limited = (queries - unlimited) * window
    return batch.total(unlimited * cached + unlimited * (unlimited + 1.0) / 2.0 + limited)


def keys_in_reach(batch: Lengths, window: int) -> Number:
    return batch.total(batch.x.smaller(batch.keys, window + batch.queries - 1.0) if window else batch.keys)


DECODE, PROMPT = "decode", "prompt"


def phase_of(op: Any) -> str:
    """Whether a batch decodes, one new token for each sequence, or has prompts in it."""
    queries = op.queries
    most = queries.item() if queries.size == 1 else np.maximum.reduce(queries, axis=None)
    return DECODE if most <= 1 else PROMPT


def entries_up_to(tokens: Number, compress: int, most: int, x: Kit) -> Number:
    """Entries that the first ``tokens`` queries of a sequence see together: see `ops.mixers`."""
    free = x.smaller(tokens, most * compress - 1.0) if most else tokens
    whole = x.floor(free / compress)
    seen = compress * (whole * (whole - 1.0) / 2.0) + whole * (free - compress * whole + 1.0)
    return seen + most * (tokens - free) if most else seen


def sparse_pairs_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the new tokens of each sequence look at, added up over its tokens."""
    before = entries_up_to(batch.keys - batch.queries, compress, most, batch.x)
    return entries_up_to(batch.keys, compress, most, batch.x) - before


def entries_of(batch: Lengths, compress: int = 1, most: int = 0) -> Number:
    """Entries that the last token of each sequence looks at."""
    entries = batch.x.floor(batch.keys / compress) if compress > 1 else batch.keys
    return batch.x.smaller(entries, float(most)) if most else entries


_KERNELS = constants("attention")
FAMILIES = {name: each for name, each in _KERNELS.items() if not name.startswith("table ")}
"""Kernels that engines ship for an architecture, as models of a sweep and of vision towers know them."""


def family_of(gpu: Gpu) -> Constants:
    return FAMILIES[facts_of(gpu).attention]


SCHEDULE_FEATURES = feature_names("schedule")
SMALL_ROWS = 64  # Batches of up to this many packed rows run a kernel with smaller tiles, where there is one
GRAPH_TOKENS, GRAPH_PARTS = 512, 32
"""Steps of up to this many tokens run in a graph, which fixes the most parts of a sequence."""
SLACK = 1.1  # The planner gives an SM a little more than its even share, so that the last parts are not tiny
START = 2.0  # Time to begin and end an item, in key tiles
SAMPLES = 24  # Tiles of a prompt that are looked at, evenly spread, where there are more
FLOOR = 9e-6  # Seconds of a call that does next to nothing
RATE = 0.73  # What a busy SM reaches of its peak
BUSY_SMS, FEW_TILES = 0.8, 4
"""Outside of graphs nothing is cut that fills this share of the SMs, or has no more key tiles."""
MOST_PARTS, NEAR_BEST = 128, 0.85
"""Else into the fewest of these parts that fill rounds nearly as well as the best number of them."""


class Schedule:
    """How FlashAttention 3 cuts a batch: which tiles, how many parts a sequence, how much work its busiest SM gets.
    Tile sizes were read off the names of the kernels that vLLM 0.25 launches on an H200. Query heads of one KV head are
    packed into the rows of a tile; keys are cut into parts so that each SM gets about as many key tiles as any other.
    Models of a sweep start from the time of this schedule; for other kernels its numbers describe a shape.
    """

    def __init__(self, op: Attention, gpu: Gpu) -> None:
        self.op, self.sms, self.dram_rate = op, gpu.sms, gpu.dram_bandwidth
        self.group, self.width = op.heads / op.kv_heads, op.head_dim + op.value_dim
        self.value_bytes, self.product_rate = bytes_of(op.kv_dtype), RATE * gpu.dense_flops("bf16")
        self.usual, self.small = _menu(op)
        self.is_cut = op.head_dim == op.value_dim or op.latent_kv

    def features(self, batch: Lengths, kv_bytes: Number) -> list[Number]:
        """As in ``SCHEDULE_FEATURES``; ``kv_bytes`` are those of the keys and values in reach."""
        x, sms, queries, each, total = batch.x, self.sms, batch.queries, batch.each, batch.total
        longest_queries, tokens = batch.longest(queries), total(queries)
        rows, keys = self._tile(longest_queries, x)
        rows_of, keys_of, per_head = each(rows), each(keys), self.op.kv_heads
        row_tiles = x.larger(x.ceil(queries * self.group / rows_of), 1)
        key_tiles = x.ceil(batch.keys / keys_of)
        planned = x.larger(x.ceil(total(row_tiles * key_tiles) * per_head * SLACK / sms), 1)
        allowed = self._parts_allowed(batch, longest_queries, tokens, rows, keys)
        parts = x.clip(x.ceil(key_tiles / each(planned)), 1.0, each(allowed))
        tiles, y = self._tiles_of_rows(batch, rows_of, keys_of, row_tiles)
        cut, pieces = tiles, 1.0
        if x.any(parts > 1.0):
            cut = y.ceil(tiles / x.along(parts))
            pieces = y.mean(y.ceil(tiles / cut))
        items = x.larger(total(row_tiles * pieces) * per_head, 1.0)
        all_tiles = total(row_tiles * y.mean(tiles)) * per_head
        longest, shortest = x.larger(batch.longest(y.most(cut)), 1.0), batch.shortest(y.least(cut))
        per_sm, even = items / sms, x.larger(all_tiles, 1e-3) / sms
        # Items are taken longest first, so what is left uneven is as long as the shortest.
        uneven = x.ceil(per_sm) - per_sm
        lone = x.where(items <= sms, longest, x.larger(longest, all_tiles / sms + uneven * shortest))
        started = (all_tiles + START * items) / sms + uneven * (shortest + START)
        busiest = x.where(items <= sms, longest + START, x.larger(longest + START, started))
        products = busiest * rows * keys * self.width
        seconds = FLOOR + x.larger(2.0 * products * sms / self.product_rate, kv_bytes / self.dram_rate)
        filled = tokens * self.group / (total(row_tiles) * rows)
        log_items, log_even, log_lone, *logs = x.logs(
            *(per_sm, even, lone, busiest, products),
            *(busiest * keys * self.width * self.value_bytes, planned, 1e6 * seconds),
        )
        return [
            *(rows, keys, allowed, batch.longest(parts), filled, log_items, log_even, longest, log_lone, logs[0]),
            *(lone / even, busiest / (even + START * per_sm), *logs[1:]),
        ]

    def _tile(self, longest_queries: Number, x: Kit) -> tuple[Number, Number]:
        (rows, keys), small = self.usual, self.small
        if small is None:
            return x.like(longest_queries, rows), x.like(longest_queries, keys)
        fits = (longest_queries * self.group <= SMALL_ROWS) & ((longest_queries != 1) | (not self.op.window))
        return x.where(fits, small[0], rows), x.where(fits, small[1], keys)

    def _tiles_of_rows(self, batch: Lengths, rows: Number, keys: Number, row_tiles: Number) -> tuple[Number, Kit]:
        """Key tiles in reach of evenly chosen tiles of rows, along a further axis, and the kit for that."""
        x, along, window = batch.x, batch.x.along, self.op.window
        begin, end, y = x.spread(row_tiles, SAMPLES, rows, self.group)
        unit, cached = along(keys), along(batch.keys - batch.queries)
        # What is padding has a query here, and so a tile: nothing is divided by zero.
        last = y.ceil((cached + y.smaller(end, along(x.larger(batch.queries, 1.0)))) / unit)
        if not window:
            return last, y
        return y.larger(last - y.floor(y.larger(cached + begin - window + 1.0, 0.0) / unit), 1.0), y

    def _parts_allowed(self, batch: Lengths, longest: Number, tokens: Number, rows: Number, keys: Number) -> Number:
        """The most parts that a sequence may be cut into: fixed in a graph, else as if the longest were alone."""
        x, sms = batch.x, self.sms
        if not self.is_cut:
            return x.like(rows, 1.0)
        in_graph = tokens <= GRAPH_TOKENS

        def outside() -> Number:
            reach = batch.longest(batch.keys)
            if self.op.window:
                reach = x.smaller(reach, self.op.window + longest)
            items, key_tiles = self.op.kv_heads * x.ceil(longest * self.group / rows), x.ceil(reach / keys)
            is_cut = (items < BUSY_SMS * sms) & (key_tiles > FEW_TILES) & (in_graph == 0)
            most = x.smaller(key_tiles, min(MOST_PARTS, sms))
            return x.by_case(lambda items, most: fewest_parts(items, most, sms), is_cut, items, most)

        return x.either(in_graph, lambda: float(GRAPH_PARTS), outside)


@cache
def fewest_parts(items: int, most: int, sms: int) -> float:
    """The fewest parts, up to ``most``, that fill rounds nearly as well as the best number of them."""
    rounds = [items * parts / sms for parts in range(1, most + 1)]
    worth = [each / ceil(each) for each in rounds]
    enough = NEAR_BEST * max(worth)
    return float(next(parts for parts, value in enumerate(worth, start=1) if value >= enough))


def _menu(op: Attention) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Rows and keys of the usual tile, and of the one for a few rows where there is one."""
    narrow, window = bytes_of(op.kv_dtype) < 2.0, bool(op.window)
    if op.latent_kv:
        return (64.0, 64.0), None
    if op.head_dim <= 64:
        return (192.0, 160.0 if window and not narrow else 128.0), (64.0, 128.0 if narrow else 192.0)
    if op.head_dim <= 96:
        return (128.0 if narrow else 192.0, 128.0), None
    if op.head_dim <= 128:
        return (128.0, 192.0 if narrow else 128.0), (64.0, 96.0 if narrow else 128.0)
    if op.head_dim <= 192:
        return (128.0, 128.0), None
    return (128.0, 64.0 if window else 128.0 if narrow else 80.0), None


KERNELS = {name.removeprefix("table "): each for name, each in _KERNELS.items() if name not in FAMILIES}
KERNELS["fa4"] = KERNELS["fa3"]  # As published tables time them, by the names of data/kernels.toml


def tabled_kernel(op: Attention, gpu: Gpu) -> Constants:
    """The kernel that an operator names, or that an engine picks for it; a latent has no row in any table."""
    kernel = kernel_of(op, gpu, DEFAULT_ENGINE)
    if kernel not in KERNELS or op.latent_kv:
        return family_of(gpu)
    return KERNELS["fa2-small" if kernel == "fa2" and facts_of(gpu).attention == "flash-2-small" else kernel]
