"""`moe` for one layer of uniformly routed experts, mostly in plain floats: the same numbers in a tenth of the time."""

from __future__ import annotations

from math import ceil, expm1, inf, log1p, sqrt

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import by_kernels
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.either import Plain
from infercast.predict.physics.formats import as_run, multiplying
from infercast.predict.physics.moe import (
    BETWEEN_EFFICIENCY,
    CLASSES,
    DRAM_EFFICIENCY,
    FEED_EFFICIENCY,
    LAUNCHES,
    MISALIGNED,
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
ROWS = TILE_ROWS.astype(np.float64)
Part = tuple[float, float, float]
"""Of a tile: seconds of the busiest SM's products and of its operands, and rounds."""


class Layer:
    """What the experts of one layer on one GPU share, however many tokens there are."""

    def __init__(self, op: MoE, gpu: Gpu) -> None:
        self.gpu, op = gpu, as_run(op, gpu)
        self.activation, self.weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        self.matrices, self.hidden, self.inter = op.matrices, op.hidden, op.inter
        self.topk, self.experts, self.local = op.topk, op.experts, op.num_local
        self.up = (op.matrices - 1) * op.inter
        self.products = (up, down) = (self.up, op.hidden), (op.hidden, op.inter)
        self.tiles = _tiles(op, gpu, *up), _tiles(op, gpu, *down)
        self.stream_rate = gpu.dram_bandwidth * DRAM_EFFICIENCY
        self.launch = LAUNCHES * (0.45 + 0.55 * 1.83e9 / gpu.boost_clock) + PER_EXPERT * op.experts
        log2 = Plain.log2
        self.sizes = log2(op.inter), log2(op.hidden), log2(op.experts), op.topk
        self.formats = self.weight, self.activation, self.local / op.experts, op.inter & -op.inter, op.matrices

    def priced(self, compute: list[tuple[float, float]], streams: list[float]) -> tuple[float, int]:
        """Seconds of both products by the best tile, and which it is."""
        first, second = streams
        best, tile = inf, 0
        for number, (one, other) in enumerate(compute):
            # A soft maximum is never below the maximum: most tiles need not be looked at closer.
            if (one if one > first else first) + (other if other > second else second) < best:
                seconds = Plain.soft_max(OVERLAP, one, first) + Plain.soft_max(OVERLAP, other, second)
                if seconds < best:
                    best, tile = seconds, number
        return best, tile


def moe_one(layer: Layer, tokens: float, *, cold: bool) -> OnePhysics:
    """Price the routed experts of a layer; ``cold``: their weights are never in L2, though features are a table's."""
    log2, fill, miss_share = Plain.log2, Plain.fill, Plain.miss_share
    hidden, inter, l2_bytes = layer.hidden, layer.inter, layer.gpu.l2_bytes
    mean = tokens * layer.topk / layer.experts
    rows, hit, blocks, most_loaded = _route(layer, tokens, mean)
    weights = hit * layer.matrices * hidden * inter * layer.weight
    inner = rows * (2 * layer.up + 2 * inter + 2 * hidden) * 2
    inner_missed = miss_share(inner, l2_bytes)
    parts = [_parts(blocks, tiles, layer.gpu.sms) for tiles in layer.tiles]
    compute = [(one[0] + one[1], other[0] + other[1]) for one, other in zip(*parts, strict=True)]
    between, launch = _between(layer, tokens, rows), layer.launch

    def priced(missed: float) -> tuple[float, dict[str, float], int]:
        streams = [
            (hit * width * depth * layer.weight * missed + rows * (depth * layer.activation + width * 2) * inner_missed)
            / layer.stream_rate
            + 1e-12
            for width, depth in layer.products
        ]
        seconds, tile = layer.priced(compute, streams)
        one, other = parts[0][tile], parts[1][tile]
        terms = {"tensor": one[0] + other[0], "l2": one[1] + other[1], "dram": streams[0] + streams[1]}
        terms["between"], terms["launch"] = between, launch
        return launch + between + seconds, terms, tile

    seconds, terms, tile = priced(miss_share(weights + 0.3 * inner, l2_bytes))
    rounds = parts[0][tile][2], parts[1][tile][2]
    features = [
        *[term / seconds for term in terms.values()],
        *(log2(mean), log2(hit), hit / layer.local, log2(tokens), *layer.sizes, tile),
        log2(blocks[tile] * TILES[tile][0] / max(rows, 1e-9)),
        *(log2(rounds[0]), log2(rounds[1]), fill(rounds[0], 1), fill(rounds[1], 1)),
        *(log2(weights / l2_bytes), log2(inner / l2_bytes), most_loaded / max(mean, 1e-9), *layer.formats),
    ]
    if cold:
        seconds, terms, _ = priced(1.0)
    return OnePhysics(seconds, terms, features)


def _route(layer: Layer, tokens: float, mean: float) -> tuple[float, float, list[float], float]:
    """Rows and experts hit on this GPU, blocks by tile, and the tokens of the most loaded expert."""
    add, experts, local = np.add.reduce, layer.experts, layer.local
    loads = np.maximum(mean + sqrt(mean) * standard_deviations(), 0.0)
    loads *= mean / (float(add(loads)) / CLASSES)
    chance = -expm1(tokens * log1p(-min(layer.topk / experts, 1 - 1e-9)))
    of_class = local / CLASSES
    rows = float(add(loads)) * of_class
    expected = CLASSES * chance * of_class
    most = min(rows, local)
    hit = Plain.clip(expected, min(layer.topk * local / experts, most), most)
    # Added up in the order of `moe`: where tiles make whole rounds, the last digit decides on one more.
    tiles = np.maximum(np.ceil(loads[:, None] / ROWS - 1e-9), 1.0)
    tiles *= chance * (hit / expected)
    blocks = [max(block * of_class, 1.0) for block in add(tiles).tolist()]
    return rows, hit, blocks, float(loads[-1])  # classes are in rising order


def _tiles(op: MoE, gpu: Gpu, width: int, depth: int) -> list[Part]:
    """For each tile of a product: tiles across, and seconds to multiply one and to feed it."""
    activation, weight = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
    peak = multiplying(op, gpu) * gpu.sustained_fraction**0.5
    narrow, deep = by_kernels(MISALIGNED, gpu) if op.inter % 16 else 1.0, ceil(depth / 64) * 64
    tiles = []
    for rows, cols in TILES:
        multiply = 2.0 * rows * cols * deep / (peak / gpu.sms * TENSOR_EFFICIENCY)
        feed = (rows * activation + cols * weight) * depth / (gpu.l2_bandwidth / gpu.sms * FEED_EFFICIENCY) * narrow
        tiles.append((ceil(width / cols), multiply + TILE_LATENCY, feed))
    return tiles


def _parts(blocks: list[float], tiles: list[Part], sms: int) -> list[Part]:
    """One grouped product but for its weights."""
    parts = []
    for block, (across, multiply, feed) in zip(blocks, tiles, strict=True):
        rounds = block * across / sms
        waves = rounds + WAVE_ROUNDING * (ceil(rounds) - rounds)
        parts.append((waves * multiply, waves * feed, rounds))
    return parts


def _between(layer: Layer, tokens: float, rows: float) -> float:
    """Activation, quantising and the weighted sum."""
    gpu, inter, hidden = layer.gpu, layer.inter, layer.hidden
    traffic = rows * (layer.up * 2 + inter * 2 + hidden * 4) + tokens * hidden * 4
    if layer.activation < 2:
        traffic = traffic + tokens * hidden * 3 + rows * inter
    missed = float(Plain.miss_share(traffic, gpu.l2_bytes / 2))
    return traffic * (missed / gpu.dram_bandwidth + (1 - missed) / (gpu.l2_bandwidth / 2)) / BETWEEN_EFFICIENCY
