"""Launch configurations of a Triton kernel for routed experts: how many run on an SM at once, and which cannot run.

A configuration is a tile (rows x columns of the result, depth of one step), how many row blocks are taken together
before the next columns, warps of a thread block, and stages of the software pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.dtypes import bytes_of
from infercast.predict.physics.terms import Array

ROWS, COLUMNS, DEPTHS = (16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128, 256)
GROUPS, WARPS, STAGES = (1, 8, 16, 32, 64), (4, 8), (2, 3, 4, 5)
SCALE_BLOCK = 128
"""Rows and columns that share a scale in block-scaled formats; a step never goes past one."""
RESERVED_SHARED = 1024
"""Shared memory that the system keeps of each thread block's."""
MOST_REGISTERS, LANES, MOST_WARPS = 255, 32, 64
OTHER_REGISTERS = 56
"""Of a thread, besides accumulators: addresses, masks and operands on their way."""
WARP_GROUP_ROWS = 64
"""Rows of the wide multiply instruction, issued by four warps together."""


class Tiles(NamedTuple):
    """Configurations, an array a field."""

    rows: Array
    columns: Array
    depth: Array
    group: Array
    warps: Array
    stages: Array

    def take(self, which: Array) -> Tiles:
        """Some of them."""
        return Tiles(*(field[which] for field in self))

    def one(self, number: int) -> tuple[int, ...]:
        """A configuration as plain numbers, in the order of the fields."""
        return tuple(int(field[number]) for field in self)


def tiles_of(configurations: Iterable[tuple[int, ...]]) -> Tiles:
    """Configurations given one by one."""
    return Tiles(*(np.array(field) for field in zip(*configurations, strict=True)))


def all_tiles() -> Tiles:
    """Every configuration that is worth a look."""
    return tiles_of(product(ROWS, COLUMNS, DEPTHS, GROUPS, WARPS, STAGES))


def wide_multiply(tiles: Tiles, dtype: str, gpu: Gpu) -> Array:
    """Whether a tile is multiplied by the wide instruction of four warps, which reads shared memory itself.

    It takes 64 rows. Triton swaps the operands of narrow fp8 tiles, so that columns take the place of rows.
    """
    if not facts_of(gpu).wide_multiply:
        return np.zeros(len(tiles.rows), dtype=bool)
    swapped = (tiles.columns >= WARP_GROUP_ROWS) & (bytes_of(dtype) < 2)
    return np.asarray((tiles.rows >= WARP_GROUP_ROWS) | swapped)


def shared_bytes(tiles: Tiles, dtype: str, gpu: Gpu) -> Array:
    """Buffers of operands: one a stage, one less where a step is in registers by the time it is multiplied."""
    depth = np.minimum(tiles.depth, SCALE_BLOCK) if dtype == "fp8_block" else tiles.depth
    buffers = np.where(wide_multiply(tiles, dtype, gpu), tiles.stages, np.maximum(tiles.stages - 1, 1))
    return np.asarray((tiles.rows + tiles.columns) * depth * np.floor(bytes_of(dtype)) * buffers)


def thread_registers(tiles: Tiles, dtype: str) -> Array:
    """Accumulators of a thread, twice where each step is scaled before it is added, and all else."""
    sums = tiles.rows * tiles.columns / (LANES * tiles.warps)
    return np.asarray(sums * (2 if dtype == "fp8_block" else 1) + OTHER_REGISTERS)


def blocks_per_sm(tiles: Tiles, dtype: str, gpu: Gpu) -> Array:
    """Thread blocks that an SM holds at once, as shared memory, registers and warps allow; at least one."""
    shared = gpu.shared_memory_per_sm / (shared_bytes(tiles, dtype, gpu) + RESERVED_SHARED)
    registers = np.ceil(np.minimum(thread_registers(tiles, dtype), MOST_REGISTERS) / 8) * 8
    by_registers = gpu.registers_per_sm / (registers * LANES * tiles.warps)
    return np.asarray(np.maximum(np.floor(np.minimum.reduce([shared, by_registers, MOST_WARPS / tiles.warps])), 1.0))


def excluded(tiles: Tiles, dtype: str, depths: tuple[int, ...], gpu: Gpu) -> list[str]:
    """Why each configuration cannot run, or would for a reason known beforehand run badly; empty where it may.

    ``depths`` are the inner sizes of the products.
    """
    most = gpu.shared_memory_per_sm - RESERVED_SHARED
    shared, registers = shared_bytes(tiles, dtype, gpu), thread_registers(tiles, dtype)
    reasons = [""] * len(tiles.rows)
    for number in range(len(reasons)):
        rows, columns, depth, _, warps, _ = tiles.one(number)
        if shared[number] > most:
            reasons[number] = f"{shared[number] / 1024:.0f} KiB of shared memory, {most / 1024:.0f} at most"
        elif registers[number] > MOST_REGISTERS:
            reasons[number] = f"{registers[number]:.0f} registers a thread, {MOST_REGISTERS} at most"
        elif dtype == "fp8_block" and depth > SCALE_BLOCK:
            reasons[number] = f"a step of {depth}, where {SCALE_BLOCK} share a scale"
        elif depth >= 2 * min(depths):
            reasons[number] = f"a step of {depth}, where a product is {min(depths)} deep"
        elif dtype != "bf16" and depth < 2 * LANES:
            reasons[number] = f"a step of {depth} one-byte values is less than a line of memory"
        elif rows * columns < 2 * LANES * warps * 4:
            reasons[number] = f"{warps} warps for {rows} x {columns} results"
    return reasons
