"""How FlashAttention 3 cuts a batch: which tiles, how many parts a sequence, how much work its busiest SM gets.

Tile sizes follow from the head dimension, the cache's format and the window; they were read off the names of the
kernels that vLLM 0.25 launches on an H200. Query heads of one KV head are packed into the rows of a tile. A persistent
block on each SM takes work items until none is left; keys of a sequence are cut into parts so that each SM gets about
as many key tiles as any other. Learners see these numbers; for other kernels they are one more description of a shape.
"""

from __future__ import annotations

import numpy as np

from infercast.hardware import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_kernels import Batch
from infercast.predict.physics.terms import Array, columns, log2

SCHEDULE_FEATURES: tuple[str, ...] = (
    "tile_rows",
    "tile_keys",
    "log_tiles_per_sm",
    "log_items_per_sm",
    "item_fill",
    "log_longest_item",
    "log_busiest",
    "most_parts",
    "row_fill",
    "log_tiles_per_item",
    "log_busiest_bytes",
    "log_busiest_products",
    "log_planned_tiles",
)
SMALL_ROWS = 64
"""Batches whose packed rows fit in so many run a kernel with smaller tiles, where there is one."""
GRAPH_TOKENS, GRAPH_PARTS = 512, 32
"""Steps of up to so many tokens run in a graph, for which the most parts of a sequence are fixed."""
SLACK = 1.1
"""The planner gives an SM a little more than its even share, so that the last parts are not tiny."""


def schedule_features(op: Attention, batch: Batch, gpu: Gpu) -> Array:
    """Columns as in ``SCHEDULE_FEATURES``."""
    group, window = op.heads / op.kv_heads, op.window
    rows, keys = (side[:, None] for side in _tiles(op, batch.longest(batch.queries)))
    row_tiles = np.ceil(batch.queries * group / rows)
    key_tiles = np.ceil(batch.keys / keys)
    planned = batch.total(row_tiles * key_tiles) * op.kv_heads
    share = np.ceil(planned * SLACK / gpu.sms)[:, None]
    most = np.where(batch.total(batch.queries) <= GRAPH_TOKENS, GRAPH_PARTS, 1.0)[:, None]
    parts = np.clip(np.ceil(key_tiles / np.maximum(share, 1.0)), 1.0, most)
    # Causality and windows leave some of the planned tiles out.
    in_reach = np.minimum(key_tiles, np.ceil((window + rows / group) / keys) + 1.0) if window else key_tiles
    cached = np.ceil((batch.keys - batch.queries) / keys)
    causal = cached + 0.5 * np.ceil(batch.queries / keys) + 0.5
    visited = row_tiles * np.minimum(in_reach, np.where(batch.queries > 1, causal, key_tiles))
    work = np.maximum(batch.total(visited) * op.kv_heads, 1.0)
    items = np.maximum(batch.total(row_tiles * parts) * op.kv_heads, 1.0)
    longest = np.maximum(batch.longest(in_reach / parts), 1e-3)
    busiest = np.maximum(work / gpu.sms, longest)
    in_rounds = np.maximum(np.ceil(items / gpu.sms) * work / items, longest)
    width, per_sm = op.head_dim + op.value_dim, items / gpu.sms
    rows, keys = rows[:, 0], keys[:, 0]
    return columns(
        rows,
        keys,
        log2(work / gpu.sms),
        log2(per_sm),
        per_sm / np.ceil(per_sm),
        log2(longest),
        log2(busiest),
        parts.max(axis=-1),
        batch.total(batch.queries) * group / np.maximum(batch.total(row_tiles) * rows, 1.0),
        log2(work / items),
        log2(in_rounds * keys * width * bytes_of(op.kv_dtype)),
        log2(busiest * keys * rows * width),
        log2(share[:, 0]),
    )


def _tiles(op: Attention, longest_queries: Array) -> tuple[Array, Array]:
    """Rows and keys of a tile, for each batch."""
    narrow, window = bytes_of(op.kv_dtype) < 2.0, bool(op.window)
    small: tuple[int, int] | None = None
    if op.latent_kv:
        usual = (64, 64)
    elif op.head_dim <= 64:
        usual, small = (192, 160 if window and not narrow else 128), (64, 128 if narrow else 192)
    elif op.head_dim <= 96:
        usual = (128 if narrow else 192, 128)
    elif op.head_dim <= 128:
        usual, small = (128, 192 if narrow else 128), (64, 96 if narrow else 128)
    elif op.head_dim <= 192:
        usual = (128, 128)
    else:
        usual = (128, 64 if window else 128 if narrow else 80)
    rows, keys = (np.full(longest_queries.shape, float(side)) for side in usual)
    if small is not None:
        decoding = longest_queries == 1
        fits = (longest_queries * (op.heads / op.kv_heads) <= SMALL_ROWS) & ~(decoding & window)
        rows[fits], keys[fits] = small
    return rows, keys
