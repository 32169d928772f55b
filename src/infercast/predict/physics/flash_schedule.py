"""How FlashAttention 3 cuts a batch: which tiles, how many parts a sequence, how much work its busiest SM gets.

Tile sizes follow from the head dimension, the cache's format and the window; they were read off the names of the
kernels that vLLM 0.25 launches on an H200. Query heads of one KV head are packed into the rows of a tile. A persistent
block on each SM takes work items until none is left; keys of a sequence are cut into parts so that each SM gets about
as many key tiles as any other. Models of a sweep start from the time that this schedule takes; for other kernels its
numbers are one more description of a shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.hardware import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_kernels import Batch
from infercast.predict.physics.terms import Array, columns, log2

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


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each batch of an array comes down to."""

    rows: Array
    keys: Array
    parts_allowed: Array
    parts: Array
    planned: Array
    """Key tiles that the planner gives an SM."""
    items: Array
    tiles: Array
    """Key tiles of all items."""
    longest: Array
    shortest: Array

    def busiest(self, sms: int, start: float) -> Array:
        """Key tiles of the SM that ends last, if an item costs ``start`` of them beside its own.

        Items are taken longest first, so what is left uneven is as long as the shortest.
        """
        rounds = self.items / sms
        uneven = (np.ceil(rounds) - rounds) * (self.shortest + start)
        shared = (self.tiles + start * self.items) / sms + uneven
        return np.where(self.items <= sms, self.longest + start, np.maximum(self.longest + start, shared))


def schedule_features(op: Attention, batch: Batch, gpu: Gpu) -> Array:
    """Columns as in ``SCHEDULE_FEATURES``."""
    plan = schedule(op, batch, gpu)
    group, width = op.heads / op.kv_heads, op.head_dim + op.value_dim
    per_sm, even = plan.items / gpu.sms, np.maximum(plan.tiles, 1e-3) / gpu.sms
    busiest, with_starts = plan.busiest(gpu.sms, 0.0), plan.busiest(gpu.sms, START)
    products = with_starts * plan.rows * plan.keys * width
    busy = 2.0 * products * gpu.sms / (RATE * gpu.dense_flops("bf16"))
    seconds = FLOOR + np.maximum(busy, np.ravel(op.kv_bytes) / gpu.dram_bandwidth)
    filled = batch.total(batch.queries) * group / (batch.total(_row_tiles(batch, group, plan.rows)) * plan.rows)
    return columns(
        plan.rows,
        plan.keys,
        plan.parts_allowed,
        plan.parts,
        filled,
        log2(per_sm),
        log2(even),
        plan.longest,
        log2(busiest),
        log2(with_starts),
        busiest / even,
        with_starts / (even + START * per_sm),
        log2(products),
        log2(with_starts * plan.keys * width * bytes_of(op.kv_dtype)),
        log2(plan.planned),
        log2(1e6 * seconds),
    )


def schedule(op: Attention, batch: Batch, gpu: Gpu) -> Schedule:
    """Cut every batch as the kernel does."""
    group = op.heads / op.kv_heads
    longest_queries = batch.longest(batch.queries)
    rows, keys = _tiles(op, longest_queries)
    row_tiles, key_tiles = _row_tiles(batch, group, rows), np.ceil(batch.keys / keys[:, None])
    planned = np.maximum(np.ceil(batch.total(row_tiles * key_tiles) * op.kv_heads * SLACK / gpu.sms), 1.0)
    allowed = _parts_allowed(op, batch, np.ceil(longest_queries * group / rows), keys, gpu.sms)
    parts = np.clip(np.ceil(key_tiles / planned[:, None]), 1.0, allowed[:, None])
    tiles = _tiles_of_rows(op, batch, rows, keys, row_tiles)
    each = np.ceil(tiles / parts[..., None])
    present = batch.counts > 0
    shortest = np.where(present, each.min(axis=-1), np.inf).min(axis=-1)
    return Schedule(
        rows=rows,
        keys=keys,
        parts_allowed=allowed,
        parts=batch.longest(parts),
        planned=planned,
        items=np.maximum(batch.total(row_tiles * np.ceil(tiles / each).mean(axis=-1)) * op.kv_heads, 1.0),
        tiles=batch.total(row_tiles * tiles.mean(axis=-1)) * op.kv_heads,
        longest=np.maximum(batch.longest(each.max(axis=-1)), 1.0),
        shortest=np.where(np.isfinite(shortest), shortest, 1.0),
    )


def _row_tiles(batch: Batch, group: float, rows: Array) -> Array:
    return np.maximum(np.ceil(batch.queries * group / rows[:, None]), 1.0)


def _tiles_of_rows(op: Attention, batch: Batch, rows: Array, keys: Array, row_tiles: Array) -> Array:
    """Key tiles that tiles of rows, evenly chosen among those of each sequence, go through: causal, in their window."""
    group, unit = op.heads / op.kv_heads, keys[:, None, None]
    samples = int(min(SAMPLES, row_tiles.max()))
    number = np.floor((np.arange(samples) + 0.5) / samples * row_tiles[..., None])
    queries, reach = batch.queries[..., None], batch.keys[..., None]
    first, end = number * rows[:, None, None], (number + 1.0) * rows[:, None, None]
    cached = reach - queries
    last = np.ceil((cached + np.ceil(np.minimum(end, queries * group) / group)) / unit)
    if not op.window:
        return np.asarray(np.maximum(last, 1.0))
    begin = np.floor(np.maximum(cached + np.floor(first / group) - op.window + 1.0, 0.0) / unit)
    return np.asarray(np.maximum(last - begin, 1.0))


def _parts_allowed(op: Attention, batch: Batch, row_tiles: Array, keys: Array, sms: int) -> Array:
    """The most parts that a sequence may be cut into: fixed in a graph, else as if the longest sequence were alone."""
    if op.head_dim != op.value_dim and not op.latent_kv:
        return np.ones(row_tiles.shape)
    in_graph = batch.total(batch.queries) <= GRAPH_TOKENS
    reach = batch.longest(batch.keys)
    if op.window:
        reach = np.minimum(reach, op.window + batch.longest(batch.queries))
    items, key_tiles = op.kv_heads * row_tiles, np.ceil(reach / keys)
    parts = np.arange(1, MOST_PARTS + 1)
    rounds = items[:, None] * parts / sms
    worth = np.where(parts <= np.minimum(key_tiles, sms)[:, None], rounds / np.ceil(rounds), 0.0)
    best = parts[np.argmax(worth >= NEAR_BEST * worth.max(axis=1, keepdims=True), axis=1)]
    alone = np.where((items >= BUSY_SMS * sms) | (key_tiles <= FEW_TILES), 1.0, best)
    return np.where(in_graph, float(GRAPH_PARTS), alone)


def _tiles(op: Attention, longest_queries: Array) -> tuple[Array, Array]:
    """Rows and keys of a tile, for each batch."""
    usual, small = _menu(op)
    rows, keys = (np.full(longest_queries.shape, float(side)) for side in usual)
    if small is not None:
        decoding = longest_queries == 1
        fits = (longest_queries * (op.heads / op.kv_heads) <= SMALL_ROWS) & ~(decoding & bool(op.window))
        rows[fits], keys[fits] = small
    return rows, keys


def tile_of(op: Attention, longest_queries: float) -> tuple[float, float]:
    """The same for one batch."""
    usual, small = _menu(op)
    if small is None or longest_queries * (op.heads / op.kv_heads) > SMALL_ROWS:
        return usual
    return usual if longest_queries == 1 and op.window else small


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
