"""`moe` for one layer of uniformly routed experts, mostly in plain floats: the same numbers in a tenth of the time."""

from __future__ import annotations

from math import ceil, expm1, log1p, sqrt

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.predict.physics.either import Plain
from infercast.predict.physics.moe import (
    BETWEEN_EFFICIENCY,
    CLASSES,
    DRAM_EFFICIENCY,
    FEED_EFFICIENCY,
    LAUNCHES,
    MISALIGNED,
    MISALIGNED_BLACKWELL,
    OVERLAP,
    PER_EXPERT,
    TENSOR_EFFICIENCY,
    TILE_COLUMNS,
    TILE_LATENCY,
    TILE_ROWS,
    WAVE_ROUNDING,
    standard_deviations,
)
from infercast.predict.physics.terms import OnePhysics

TILES = tuple(zip(TILE_ROWS.tolist(), TILE_COLUMNS.tolist(), strict=True))
Parts = list[tuple[float, float, float]]
"""For each tile: seconds of the busiest SM's products and of its operands, and rounds."""


def moe_one(op: MoE, gpu: Gpu, tokens: float, *, cold: bool) -> OnePhysics:
    """Price the routed experts of a layer; ``cold``: their weights are never in L2, though features are a table's."""
    log2, fill, miss_share = Plain.log2, Plain.fill, Plain.miss_share
    mean = tokens * op.topk / op.experts
    rows, hit, blocks, most_loaded = _route(op, tokens, mean)
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    up = (op.matrices - 1) * op.inter
    weights = hit * op.matrices * op.hidden * op.inter * weight
    inner = rows * (2 * up + 2 * op.inter + 2 * op.hidden) * 2
    inner_missed = miss_share(inner, gpu.l2_bytes)
    parts = _parts(op, gpu, blocks, up, op.hidden), _parts(op, gpu, blocks, op.hidden, op.inter)
    between = _between(op, gpu, tokens, rows)
    launch = LAUNCHES * (0.45 + 0.55 * 1.83e9 / gpu.boost_clock) + PER_EXPERT * op.experts

    def priced(missed: float) -> tuple[float, dict[str, float], int]:
        streams = [
            (hit * width * depth * weight * missed + rows * (depth * activation + width * 2) * inner_missed)
            / (gpu.dram_bandwidth * DRAM_EFFICIENCY)
            + 1e-12
            for width, depth in ((up, op.hidden), (op.hidden, op.inter))
        ]
        both = [
            Plain.soft_max(OVERLAP, one[0] + one[1], streams[0])
            + Plain.soft_max(OVERLAP, other[0] + other[1], streams[1])
            for one, other in zip(*parts, strict=True)
        ]
        seconds = min(both)
        tile = both.index(seconds)
        one, other = parts[0][tile], parts[1][tile]
        terms = {"tensor": one[0] + other[0], "l2": one[1] + other[1], "dram": streams[0] + streams[1]}
        return launch + between + seconds, {**terms, "between": between, "launch": launch}, tile

    seconds, terms, tile = priced(miss_share(weights + 0.3 * inner, gpu.l2_bytes))
    rounds = parts[0][tile][2], parts[1][tile][2]
    features = [
        *[term / seconds for term in terms.values()],
        *(log2(mean), log2(hit), hit / op.num_local),
        *(log2(tokens), log2(op.inter), log2(op.hidden), log2(op.experts), op.topk, tile),
        log2(blocks[tile] * TILES[tile][0] / max(rows, 1e-9)),
        *(log2(rounds[0]), log2(rounds[1]), fill(rounds[0], 1), fill(rounds[1], 1)),
        *(log2(weights / gpu.l2_bytes), log2(inner / gpu.l2_bytes), most_loaded / max(mean, 1e-9), weight, activation),
        *(op.num_local / op.experts, op.inter & -op.inter, op.matrices),
    ]
    if cold:
        seconds, terms, _ = priced(1.0)
    return OnePhysics(seconds, terms, features)


def _route(op: MoE, tokens: float, mean: float) -> tuple[float, float, list[float], float]:
    """Rows and experts hit on this GPU, blocks by tile, and the tokens of the most loaded expert."""
    loads = np.maximum(mean + sqrt(mean) * standard_deviations(), 0.0)
    loads = loads * (mean / loads.mean())
    chance = -expm1(tokens * log1p(-min(op.topk / op.experts, 1 - 1e-9)))
    of_class = op.num_local / CLASSES
    rows = float(loads.sum()) * of_class
    expected = float(np.full(CLASSES, chance).sum()) * of_class
    most = min(rows, op.num_local)
    hit = Plain.clip(expected, min(op.topk * op.num_local / op.experts, most), most)
    tiles = np.maximum(np.ceil(loads[:, None] / TILE_ROWS - 1e-9), 1.0)
    blocks = np.maximum((chance * (hit / expected) * tiles).sum(axis=0) * of_class, 1.0)
    return rows, hit, blocks.tolist(), float(loads.max())


def _parts(op: MoE, gpu: Gpu, blocks: list[float], width: int, depth: int) -> Parts:
    """One grouped product but for its weights."""
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype)) * gpu.sustained_fraction**0.5
    narrow = MISALIGNED_BLACKWELL if gpu.architecture == "blackwell" else MISALIGNED
    narrow, deep = narrow if op.inter % 16 else 1.0, ceil(depth / 64) * 64
    parts = []
    for block, (rows, cols) in zip(blocks, TILES, strict=True):
        rounds = block * ceil(width / cols) / gpu.sms
        waves = rounds + WAVE_ROUNDING * (ceil(rounds) - rounds)
        multiply = 2.0 * rows * cols * deep / (peak / gpu.sms * TENSOR_EFFICIENCY)
        feed = (rows * activation + cols * weight) * depth / (gpu.l2_bandwidth / gpu.sms * FEED_EFFICIENCY) * narrow
        parts.append((waves * (multiply + TILE_LATENCY), waves * feed, rounds))
    return parts


def _between(op: MoE, gpu: Gpu, tokens: float, rows: float) -> float:
    """Activation, quantising and the weighted sum."""
    traffic = rows * ((op.matrices - 1) * op.inter * 2 + op.inter * 2 + op.hidden * 4) + tokens * op.hidden * 4
    if bytes_of(op.dtype) < 2:
        traffic = traffic + tokens * op.hidden * 3 + rows * op.inter
    missed = float(Plain.miss_share(traffic, gpu.l2_bytes / 2))
    return traffic * (missed / gpu.dram_bandwidth + (1 - missed) / (gpu.l2_bandwidth / 2)) / BETWEEN_EFFICIENCY
