"""What routed experts take under a launch configuration of Triton's kernel: two grouped products, tile by tile.

A product is as slow as the slowest of four, softened: tensor cores of the busiest SM, the road from L2 to it, the
latency of its tiles one round after the other (each has to find its tokens, fill its pipeline, go through its steps and
write), and DRAM. Constants were fitted to kernels of an H200, most under vLLM's own configurations (docs/tuning.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.predict.physics.either import Arrays
from infercast.predict.physics.expert_routing import route
from infercast.predict.physics.expert_tiles import (
    LANES,
    SCALE_BLOCK,
    WARP_GROUP_ROWS,
    Tiles,
    blocks_per_sm,
    wide_multiply,
)
from infercast.predict.physics.moe import between
from infercast.predict.physics.terms import Array, soft_max


@dataclass(frozen=True, slots=True)
class Constants:
    """Of Triton's kernel, not of the hardware alone."""

    wide_rate: float = 0.746
    """Share of the tensor peak that the wide instruction reaches."""
    wider: float = 0.114
    """Power of the columns that the wide instruction gains by."""
    plain_rate: float = 0.468
    """The same of the instruction that all chips have."""
    lone: float = 0.88
    """What it loses where four warps multiply 128 rows, one half after the other."""
    feed: float = 1.10
    """Share of the L2 bandwidth that an SM's part of it reaches."""
    short: float = 0.682
    """What loads of less than a line of memory reach of a bandwidth."""
    value: float = 0.124e-9
    """Of one SM to load a value of a row that is not a multiple of 16 long: Triton then loads one at a time."""
    spill: float = 72.0
    """Values a thread that those loads, which go through registers, double their time at; more spill."""
    memory: float = 0.97
    """Share of the DRAM bandwidth."""
    latency: float = 0.256e-6
    """A load from memory under load."""
    begin: float = 2.86e-6
    """Before a tile's first step: its tokens, its expert, the first loads."""
    end: float = 1.51e-6
    """After the last: results to memory."""
    step: float = 0.050e-6
    """Each step at least: barriers and addresses."""
    empty: float = 0.863e-6
    """A thread block that finds that it has nothing to do."""
    overlap: float = 2.26
    """How sharply the slowest of the four decides: a sum at 1, a maximum far above."""
    scaled: float = 0.568
    """Tensor rate where every step's results are scaled before they are added."""


FITTED = Constants()


class Blocks(NamedTuple):
    """Where the tokens went, for each configuration."""

    rows: float
    """Token-expert pairs."""
    hit: float
    """Experts with a token."""
    blocks: Array
    """Row blocks of a product, all experts together."""
    launched: Array
    """Those that the grid has: the host does not know how full experts are."""


class _Product(NamedTuple):
    """Seconds of one product and of its pipes."""

    seconds: Array
    tensor: Array
    feed: Array
    latency: Array
    dram: Array


class Times(NamedTuple):
    """Seconds of each configuration, and of its parts, both products together."""

    seconds: Array
    """All kernels of the layer."""
    products: Array
    tensor: Array
    feed: Array
    latency: Array
    dram: Array
    padding: Array
    """Rows computed for each that is wanted."""
    weight_reads: Array
    """How often a weight travels from L2 to an SM."""
    resident: Array
    """Thread blocks on an SM at once."""


def row_blocks(op: MoE, tiles: Tiles) -> Blocks:
    """Spread the tokens over the experts and cut each expert's into row blocks."""
    tokens = np.atleast_1d(np.asarray(op.tokens, dtype=np.float64))
    rows, hit, by_height, _ = route(op, tokens, tiles.rows, Arrays)
    blocks = np.concatenate(by_height)
    pairs = float(tokens[0]) * op.topk
    room = pairs + op.experts * (tiles.rows - 1)
    room = np.where(tokens[0] < tiles.rows, np.minimum(room, pairs * tiles.rows), room)
    return Blocks(float(rows[0]), float(hit[0]), blocks, np.maximum(np.ceil(room / tiles.rows), blocks))


def time_tiles(op: MoE, gpu: Gpu, tiles: Tiles, constants: Constants = FITTED) -> Times:
    """Time one layer's experts, one token count, under every configuration."""
    spread = row_blocks(op, tiles)
    up = (op.matrices - 1) * op.inter
    first = _product(op, gpu, tiles, spread, (up, op.hidden), constants)
    second = _product(op, gpu, tiles, spread, (op.hidden, op.inter), constants)
    tokens, rows = np.atleast_1d(np.asarray(op.tokens, dtype=np.float64)), np.array([spread.rows])
    others = float(between(op, gpu, tokens, rows, Arrays)[0]) + SMALL_KERNELS + PER_EXPERT * op.experts
    resident = blocks_per_sm(tiles, op.dtype, gpu)
    return Times(
        seconds=first.seconds + second.seconds + others,
        products=first.seconds + second.seconds,
        tensor=first.tensor + second.tensor,
        feed=first.feed + second.feed,
        latency=first.latency + second.latency,
        dram=first.dram + second.dram,
        padding=spread.blocks * tiles.rows / spread.rows,
        weight_reads=spread.blocks / spread.hit,
        resident=resident,
    )


LINE, ALIGNED, SPILLING = 128, 16, 2.5
"""Bytes of a line of memory; what rows must be a multiple of to be loaded many values at once; power of spilling."""
SMALL_KERNELS, PER_EXPERT = 8e-6, 2e-8
"""Sorting tokens by expert, and starting what lies between the products."""


def _product(op: MoE, gpu: Gpu, tiles: Tiles, spread: Blocks, shape: tuple[int, int], constants: Constants) -> _Product:
    """One grouped product, ``shape`` being the width of its result and its depth."""
    width, inner = shape
    depth = np.minimum(tiles.depth, SCALE_BLOCK) if op.dtype == "fp8_block" else tiles.depth
    value = float(np.floor(bytes_of(op.dtype)))
    steps = np.ceil(inner / depth)
    across = np.ceil(width / tiles.columns)
    wide = wide_multiply(tiles, op.dtype, gpu)
    multiply = 2.0 * tiles.rows * tiles.columns * depth / _tensor_rate(op, gpu, tiles, wide, constants)
    lines = np.where(depth * value < LINE, constants.short, 1.0)
    valid = np.minimum(spread.rows / spread.blocks, tiles.rows)
    load = (valid + tiles.columns) * depth * value / (gpu.l2_bandwidth / gpu.sms * constants.feed * lines)
    if inner % ALIGNED:
        load = np.maximum(load, _one_by_one((tiles.rows + tiles.columns) * depth, tiles.warps, constants))
    resident = blocks_per_sm(tiles, op.dtype, gpu)
    tiles_on_sm = spread.blocks * across / gpu.sms
    waited = np.ceil(tiles_on_sm)
    # The wide instruction reads a stage while it runs: with two, nothing is loaded meanwhile.
    ahead = tiles.stages - 1 - wide
    fetched = np.maximum(load, constants.latency / np.maximum(ahead, 1))
    step = np.where(ahead > 0, np.maximum(multiply, fetched), multiply + fetched) + constants.step
    alone = constants.begin + steps * step + constants.end
    rounds = np.ceil(tiles_on_sm / resident)
    tensor, feed = waited * steps * multiply, waited * steps * load
    idle = (spread.launched - spread.blocks) * across * constants.empty / (gpu.sms * resident)
    latency = rounds * alone + idle
    traffic = _traffic(op, gpu, tiles, spread, shape, value)
    dram = traffic / (gpu.dram_bandwidth * constants.memory * lines)
    return _Product(soft_max(constants.overlap, tensor, feed, latency, dram), tensor, feed, latency, dram)


def _tensor_rate(op: MoE, gpu: Gpu, tiles: Tiles, wide: Array, constants: Constants) -> Array:
    """Operations a second of one SM's tensor cores."""
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype)) / gpu.sms
    peak *= constants.scaled if op.dtype == "fp8_block" else 1.0
    rate = peak * np.where(wide, constants.wide_rate, constants.plain_rate)
    rate = rate * np.where(wide & (tiles.rows >= WARP_GROUP_ROWS), (tiles.columns / 128) ** constants.wider, 1.0)
    rate = rate * np.where(wide & (tiles.warps == 4) & (tiles.rows >= 2 * WARP_GROUP_ROWS), constants.lone, 1.0)
    # Narrow results wait for shared memory: the wide instruction reads both operands from it for every 64 rows.
    narrow = np.where(tiles.rows < WARP_GROUP_ROWS, tiles.rows, tiles.columns) / WARP_GROUP_ROWS
    return np.asarray(rate * np.minimum(1.0, np.where(wide, narrow, 1.0)))


def _one_by_one(values: Array, warps: Array, constants: Constants) -> Array:
    """Seconds of an SM to load so many values one at a time, through registers, which spill if there are too many."""
    held = values / (LANES * warps)
    return np.asarray(values * constants.value * (1.0 + (held / constants.spill) ** SPILLING))


def _traffic(op: MoE, gpu: Gpu, tiles: Tiles, spread: Blocks, shape: tuple[int, int], value: float) -> Array:
    """Bytes from and to DRAM: weights again for each group of row blocks where L2 does not hold an expert's."""
    width, inner = shape
    weights = width * inner * bytes_of(op.weight_dtype or op.dtype)
    each = spread.blocks / spread.hit
    again = np.maximum(each / np.minimum(tiles.group, each), 1.0)
    missed = weights / (weights + gpu.l2_bytes / 2)
    reads = 1.0 + (again - 1.0) * missed**2
    inputs = min(spread.rows, float(np.ravel(op.tokens)[0])) if inner == op.hidden else spread.rows
    return np.asarray(spread.hit * weights * reads + inputs * inner * value + spread.rows * width * 2)
