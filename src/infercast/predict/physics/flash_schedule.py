"""How FlashAttention 3 cuts a batch: which tiles, how many parts a sequence, how much work its busiest SM gets.

Tile sizes follow from the head dimension, the cache's format and the window; they were read off the names of the
kernels that vLLM 0.25 launches on an H200. Query heads of one KV head are packed into the rows of a tile. A persistent
block on each SM takes work items until none is left; keys of a sequence are cut into parts so that each SM gets about
as many key tiles as any other. Models of a sweep start from the time that this schedule takes; for other kernels its
numbers are one more description of a shape.
"""

from __future__ import annotations

from functools import cache
from math import ceil

from infercast.hardware import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_batch import Lengths
from infercast.predict.physics.either import Kit, Number

SCHEDULE_FEATURES: tuple[str, ...] = (
    "tile_rows",
    "tile_keys",
    "parts_allowed",
    "most_parts",
    "row_fill",
    "log_items_per_sm",
    "log_tiles_per_sm",
    "longest_item",
    "log_busiest",
    "log_busiest_with_starts",
    "imbalance",
    "imbalance_with_starts",
    "log_busiest_products",
    "log_busiest_bytes",
    "log_planned_tiles",
    "log_scheduled_us",
)
SMALL_ROWS = 64
"""Batches whose packed rows fit in so many run a kernel with smaller tiles, where there is one."""
GRAPH_TOKENS, GRAPH_PARTS = 512, 32
"""Steps of up to so many tokens run in a graph, for which the most parts of a sequence are fixed."""
SLACK = 1.1
"""The planner gives an SM a little more than its even share, so that the last parts are not tiny."""
START = 2.0
"""Key tiles in whose time an item is begun and ended."""
SAMPLES = 24
"""Tiles of a prompt that are looked at, evenly spread, where there are more."""
FLOOR = 9e-6
"""Seconds of a call that does next to nothing."""
RATE = 0.73
"""What a busy SM reaches of its peak."""
BUSY_SMS, FEW_TILES = 0.8, 4
"""Outside of graphs nothing is cut that fills this share of the SMs, or has so few key tiles."""
MOST_PARTS, NEAR_BEST = 128, 0.85
"""Else into the fewest of these parts that fill rounds nearly as well as the best number of them."""


class Schedule:
    """How batches of one head layout are cut on one GPU."""

    def __init__(self, op: Attention, gpu: Gpu) -> None:
        self.op, self.sms, self.dram_rate = op, gpu.sms, gpu.dram_bandwidth
        self.group, self.width = op.heads / op.kv_heads, op.head_dim + op.value_dim
        self.value_bytes, self.product_rate = bytes_of(op.kv_dtype), RATE * gpu.dense_flops("bf16")
        self.usual, self.small = _menu(op)
        self.is_cut = op.head_dim == op.value_dim or op.latent_kv

    def features(self, batch: Lengths, kv_bytes: Number) -> list[Number]:
        """As in ``SCHEDULE_FEATURES``; ``kv_bytes`` are those of the keys and values in reach."""
        x, sms, queries, each = batch.x, self.sms, batch.queries, batch.each
        longest_queries = batch.longest(queries)
        rows, keys = self._tile(longest_queries, x)
        row_tiles = x.larger(x.ceil(queries * self.group / each(rows)), 1)
        key_tiles = x.ceil(batch.keys / each(keys))
        per_head = self.op.kv_heads
        planned = x.larger(x.ceil(batch.total(row_tiles * key_tiles) * per_head * SLACK / sms), 1)
        allowed = self._parts_allowed(batch, longest_queries, rows, keys)
        parts = x.clip(x.ceil(key_tiles / each(planned)), 1.0, each(allowed))
        tiles, y = self._tiles_of_rows(batch, each(rows), each(keys), row_tiles)
        cut, pieces = tiles, 1.0
        if x.any(parts > 1.0):
            cut = y.ceil(tiles / x.along(parts))
            pieces = y.mean(y.ceil(tiles / cut))
        items = x.larger(batch.total(row_tiles * pieces) * per_head, 1.0)
        all_tiles = batch.total(row_tiles * y.mean(tiles)) * per_head
        longest, shortest = x.larger(batch.longest(y.most(cut)), 1.0), batch.shortest(y.least(cut))
        per_sm, even = items / sms, x.larger(all_tiles, 1e-3) / sms
        # Items are taken longest first, so what is left uneven is as long as the shortest.
        uneven = x.ceil(per_sm) - per_sm
        lone = x.where(items <= sms, longest, x.larger(longest, all_tiles / sms + uneven * shortest))
        started = (all_tiles + START * items) / sms + uneven * (shortest + START)
        busiest = x.where(items <= sms, longest + START, x.larger(longest + START, started))
        products = busiest * rows * keys * self.width
        seconds = FLOOR + x.larger(2.0 * products * sms / self.product_rate, kv_bytes / self.dram_rate)
        filled = batch.total(queries) * self.group / (batch.total(row_tiles) * rows)
        log_items, log_even, log_lone, *logs = x.logs(
            *(per_sm, even, lone, busiest, products),
            *(busiest * keys * self.width * self.value_bytes, planned, 1e6 * seconds),
        )
        return [
            *(rows, keys, allowed, batch.longest(parts), filled, log_items, log_even, longest, log_lone, logs[0]),
            *(lone / even, busiest / (even + START * per_sm), *logs[1:]),
        ]

    def _tile(self, longest_queries: Number, x: Kit) -> tuple[Number, Number]:
        """Rows and keys of a tile, for each batch."""
        (rows, keys), small = self.usual, self.small
        if small is None:
            return x.like(longest_queries, rows), x.like(longest_queries, keys)
        fits = (longest_queries * self.group <= SMALL_ROWS) & ((longest_queries != 1) | (not self.op.window))
        return x.where(fits, small[0], rows), x.where(fits, small[1], keys)

    def _tiles_of_rows(self, batch: Lengths, rows: Number, keys: Number, row_tiles: Number) -> tuple[Number, Kit]:
        """Key tiles that tiles of rows, evenly chosen among those of each sequence, go through, along a further axis.

        They are causal and in their window. The kit is the one for them.
        """
        x, along, window = batch.x, batch.x.along, self.op.window
        begin, end, y = x.spread(row_tiles, SAMPLES, rows, self.group)
        unit, cached = along(keys), along(batch.keys - batch.queries)
        # What is padding has a query here, and so a tile: nothing is divided by zero.
        last = y.ceil((cached + y.smaller(end, along(x.larger(batch.queries, 1.0)))) / unit)
        if not window:
            return last, y
        return y.larger(last - y.floor(y.larger(cached + begin - window + 1.0, 0.0) / unit), 1.0), y

    def _parts_allowed(self, batch: Lengths, longest_queries: Number, rows: Number, keys: Number) -> Number:
        """The most parts that a sequence may be cut into: fixed in a graph, else as if the longest were alone."""
        x, sms = batch.x, self.sms
        if not self.is_cut:
            return x.like(rows, 1.0)
        in_graph = batch.total(batch.queries) <= GRAPH_TOKENS

        def outside() -> Number:
            reach = batch.longest(batch.keys)
            if self.op.window:
                reach = x.smaller(reach, self.op.window + longest_queries)
            items, key_tiles = self.op.kv_heads * x.ceil(longest_queries * self.group / rows), x.ceil(reach / keys)
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
