"""`flash_schedule` for one batch of equal sequences, in plain floats: the same numbers at a twentieth of the time."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, log2

from infercast.hardware import Gpu
from infercast.ops.attention import Attention
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.attention_kernels import Single
from infercast.predict.physics.flash_schedule import (
    BUSY_SMS,
    FEW_TILES,
    FLOOR,
    GRAPH_PARTS,
    GRAPH_TOKENS,
    MOST_PARTS,
    NEAR_BEST,
    RATE,
    SAMPLES,
    SLACK,
    START,
    tile_of,
)


def schedule_features_one(op: Attention, batch: Single, gpu: Gpu) -> list[float]:
    """As in ``SCHEDULE_FEATURES``."""
    group, width, sms = op.heads / op.kv_heads, op.head_dim + op.value_dim, gpu.sms
    queries, counts = float(batch.queries), float(batch.counts)
    rows, unit = tile_of(op, queries)
    row_tiles, key_tiles = max(ceil(queries * group / rows), 1), ceil(batch.keys / unit)
    planned = max(ceil(row_tiles * key_tiles * counts * op.kv_heads * SLACK / sms), 1)
    allowed = _parts_allowed(op, batch, ceil(queries * group / rows), unit, sms)
    parts = min(max(ceil(key_tiles / planned), 1.0), allowed)
    tiles = _tiles_of_rows(op, batch, rows, unit, row_tiles)
    each, cut = tiles, 1.0
    if parts > 1.0:
        each = [ceil(tile / parts) for tile in tiles]
        cut = sum([ceil(tile / share) for tile, share in zip(tiles, each, strict=True)]) / len(tiles)
    items: float = max(row_tiles * cut * counts * op.kv_heads, 1.0)
    all_tiles: float = row_tiles * (sum(tiles) / len(tiles)) * counts * op.kv_heads
    longest, shortest = float(max(*each, 1)), float(min(each))

    def busiest(start: float) -> float:
        if items <= sms:
            return longest + start
        rounds = items / sms
        uneven = (ceil(rounds) - rounds) * (shortest + start)
        return max(longest + start, (all_tiles + start * items) / sms + uneven)

    per_sm, even = items / sms, max(all_tiles, 1e-3) / sms
    alone, with_starts = busiest(0.0), busiest(START)
    products = with_starts * rows * unit * width
    busy = 2.0 * products * sms / (RATE * gpu.dense_flops("bf16"))
    seconds = FLOOR + max(busy, batch.kv_bytes(op) / gpu.dram_bandwidth)
    return [
        *(rows, unit, allowed, parts, queries * counts * group / (row_tiles * counts * rows)),
        *(log2(per_sm), log2(even), longest, log2(alone), log2(with_starts)),
        *(alone / even, with_starts / (even + START * per_sm), log2(products)),
        *(log2(with_starts * unit * width * bytes_of(op.kv_dtype)), log2(planned), log2(1e6 * seconds)),
    ]


def _tiles_of_rows(op: Attention, batch: Single, rows: float, unit: float, row_tiles: int) -> list[float]:
    """Key tiles that tiles of rows, evenly chosen among those of a sequence, go through."""
    group, samples = op.heads / op.kv_heads, min(SAMPLES, row_tiles)
    cached, queries = batch.keys - batch.queries, batch.queries
    numbers = range(row_tiles) if samples == row_tiles else _spread(samples, row_tiles)
    # Only the last tile of a sequence may have fewer rows than the others, and none has less than a key.
    tiles: list[float] = [ceil((cached + ceil((number + 1) * rows / group)) / unit) for number in numbers]
    if (numbers[-1] + 1) * rows > queries * group:
        tiles[-1] = max(ceil((cached + ceil(queries * group / group)) / unit), 1)
    if op.window:
        begins = [floor(max(cached + floor(number * rows / group) - op.window + 1.0, 0.0) / unit) for number in numbers]
        tiles = [max(last - begin, 1) for last, begin in zip(tiles, begins, strict=True)]
    return tiles


@lru_cache
def _spread(samples: int, row_tiles: int) -> list[int]:
    """So many numbers of tiles, evenly chosen."""
    return [floor((sample + 0.5) / samples * row_tiles) for sample in range(samples)]


def _parts_allowed(op: Attention, batch: Single, row_tiles: int, unit: float, sms: int) -> float:
    """The most parts that a sequence may be cut into."""
    if op.head_dim != op.value_dim and not op.latent_kv:
        return 1.0
    if batch.queries * batch.counts <= GRAPH_TOKENS:
        return float(GRAPH_PARTS)
    reach = min(batch.keys, op.window + batch.queries) if op.window else batch.keys
    items, key_tiles = op.kv_heads * row_tiles, ceil(reach / unit)
    if items >= BUSY_SMS * sms or key_tiles <= FEW_TILES:
        return 1.0
    rounds = [items * parts / sms for parts in range(1, min(MOST_PARTS, key_tiles, sms) + 1)]
    worth = [each / ceil(each) for each in rounds]
    enough = NEAR_BEST * max(worth)
    return float(next(parts for parts, value in enumerate(worth, start=1) if value >= enough))
