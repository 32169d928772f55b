"""Launch configurations of Triton's fused-MoE kernel: which can run on a chip, and the time that each takes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.ops import MoE
from infercast.ops.op import bytes_of, tensor_rate_of
from infercast.predict.array_api import Array, Arrays, soft_max
from infercast.predict.families.moe import between, route

# Launch configurations of a Triton kernel for routed experts: how many run on an SM at once, and which cannot run.
#
# A configuration is a tile (rows x columns of the result, depth of one step), how many row blocks are taken together
# before the next columns, warps of a thread block, and stages of the software pipeline.

ROWS, COLUMNS, DEPTHS = (16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128, 256)
GROUPS, WARPS, STAGES = (1, 8, 16, 32, 64), (4, 8), (2, 3, 4, 5)
SCALE_BLOCK = 128  # Rows and columns that share a scale in block-scaled formats; a step never goes past one
RESERVED_SHARED = 1024  # Shared memory that the system keeps of each thread block's
MOST_REGISTERS, LANES, MOST_WARPS = 255, 32, 64
WARP_GROUP_ROWS = 64  # Rows of the wide multiply instruction, issued by four warps together


class ExpertTiles(NamedTuple):
    rows: Array
    columns: Array
    depth: Array
    group: Array
    warps: Array
    stages: Array

    def take(self, which: Array) -> ExpertTiles:
        return ExpertTiles(*(field[which] for field in self))

    def one(self, number: int) -> tuple[int, ...]:
        return tuple(int(field[number]) for field in self)


def tiles_of(configurations: Iterable[tuple[int, ...]]) -> ExpertTiles:
    return ExpertTiles(*(np.array(field) for field in zip(*configurations, strict=True)))


def all_tiles() -> ExpertTiles:
    return tiles_of(product(ROWS, COLUMNS, DEPTHS, GROUPS, WARPS, STAGES))


FEW, MANY = (16, 32, 64, 1, 4, 3), (64, 64, 32, 8, 4, 3)
"""Defaults of SGLang and of old releases of vLLM, for at most as many tokens as experts and for more."""
GOOD = (
    (16, 64, 128, 1, 4, 4), (32, 64, 128, 1, 4, 3), (64, 128, 64, 1, 4, 3), (64, 128, 64, 1, 8, 3),
    (128, 128, 64, 16, 8, 3),
)  # fmt: skip
"""Tiles of the measured kernels, by tokens."""


def slowdown(tokens: int, layer: MoE, gpu: Gpu, gpus: int) -> float:
    """How many times longer the defaults take than good tiles."""
    op = replace(layer, tokens=np.array([max(tokens / gpus, 1.0)]))
    configurations = np.array([FEW if tokens <= layer.experts else MANY, *GOOD], dtype=float)
    seconds = time_tiles(op, gpu, ExpertTiles(*configurations.T)).seconds
    return float(max(1.0, seconds[0] / seconds[1:].min()))


def wide_multiply(tiles: ExpertTiles, dtype: str, gpu: Gpu) -> Array:
    """Whether a tile takes the wide instruction of four warps and 64 rows; narrow fp8 tiles are swapped."""
    if not facts_of(gpu).wide_multiply:
        return np.zeros(len(tiles.rows), dtype=bool)
    swapped = (tiles.columns >= WARP_GROUP_ROWS) & (bytes_of(dtype) < 2)
    return np.asarray((tiles.rows >= WARP_GROUP_ROWS) | swapped)


def shared_bytes(tiles: ExpertTiles, dtype: str, gpu: Gpu) -> Array:
    """Buffers of operands: one a stage, one less where a step is in registers by the time it is multiplied."""
    depth = np.minimum(tiles.depth, SCALE_BLOCK) if dtype == "fp8_block" else tiles.depth
    buffers = np.where(wide_multiply(tiles, dtype, gpu), tiles.stages, np.maximum(tiles.stages - 1, 1))
    return np.asarray((tiles.rows + tiles.columns) * depth * np.floor(bytes_of(dtype)) * buffers)


def thread_registers(tiles: ExpertTiles, dtype: str) -> Array:
    """Accumulators of a thread, twice where each step is scaled before it is added, and all else."""
    sums = tiles.rows * tiles.columns / (LANES * tiles.warps)
    other_registers = 56  # Of a thread, besides accumulators: addresses, masks and operands on their way
    return np.asarray(sums * (2 if dtype == "fp8_block" else 1) + other_registers)


def blocks_per_sm(tiles: ExpertTiles, dtype: str, gpu: Gpu) -> Array:
    """Thread blocks that an SM holds at once, as shared memory, registers and warps allow; at least one."""
    shared = gpu.shared_memory_per_sm / (shared_bytes(tiles, dtype, gpu) + RESERVED_SHARED)
    registers = np.ceil(np.minimum(thread_registers(tiles, dtype), MOST_REGISTERS) / 8) * 8
    by_registers = gpu.registers_per_sm / (registers * LANES * tiles.warps)
    return np.asarray(np.maximum(np.floor(np.minimum.reduce([shared, by_registers, MOST_WARPS / tiles.warps])), 1.0))


def excluded(tiles: ExpertTiles, dtype: str, depths: tuple[int, ...], gpu: Gpu) -> list[str]:
    """Why each configuration cannot run, or would run badly; empty where it may. ``depths``: of the products."""
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


# What routed experts take under a launch configuration of Triton's kernel: two grouped products, tile by tile.
#
# A product is as slow as the slowest of four, softened: tensor cores of the busiest SM, the road from L2 to it, the
# latency of its tiles one round after the other, and DRAM. Constants were fitted to kernels of an H200
# (docs/tuning.md).


@dataclass(frozen=True, slots=True)
class TritonConstants:
    """Of Triton's kernel, not of the hardware alone."""

    wide_rate: float = 0.746  # Share of the tensor peak that the wide instruction reaches
    wider: float = 0.114  # Power of the columns that the wide instruction gains by
    plain_rate: float = 0.468  # The same of the instruction that all chips have
    lone: float = 0.88  # What it loses where four warps multiply 128 rows, one half after the other
    feed: float = 1.10  # Share of the L2 bandwidth that an SM's part of it reaches
    short: float = 0.682  # What loads of less than a line of memory reach of a bandwidth
    value: float = 0.124e-9  # Of one SM to load a value of a row not a multiple of 16 long: Triton loads one at a time
    spill: float = 72.0  # Values a thread at which those loads, by way of registers, double their time; more spill
    memory: float = 0.97  # Share of the DRAM bandwidth
    latency: float = 0.256e-6  # A load from memory under load
    begin: float = 2.86e-6  # Before a tile's first step: its tokens, its expert, the first loads
    end: float = 1.51e-6  # After the last: results to memory
    step: float = 0.050e-6  # Each step at least: barriers and addresses
    empty: float = 0.863e-6  # A thread block that finds that it has nothing to do
    overlap: float = 2.26  # How sharply the slowest of the four decides: a sum at 1, a maximum far above
    scaled: float = 0.568  # Tensor rate where every step's results are scaled before they are added


FITTED = TritonConstants()


class Blocks(NamedTuple):
    rows: float  # Token-expert pairs
    hit: float  # Experts with a token
    blocks: Array  # Row blocks of a product, all experts together
    launched: Array  # Those that the grid has: the host does not know how full experts are


class Times(NamedTuple):
    """Seconds of each configuration, and of its parts, both products together."""

    seconds: Array  # All kernels of the layer
    products: Array
    tensor: Array
    feed: Array
    latency: Array
    dram: Array
    padding: Array  # Rows computed for each that is wanted
    weight_reads: Array  # How often a weight travels from L2 to an SM
    resident: Array  # Thread blocks on an SM at once


def row_blocks(op: MoE, tiles: ExpertTiles) -> Blocks:
    tokens = np.atleast_1d(np.asarray(op.tokens, dtype=np.float64))
    rows, hit, by_height, _ = route(op, tokens, tiles.rows, Arrays)
    blocks = np.concatenate(by_height)
    pairs = float(tokens[0]) * op.topk
    room = pairs + op.experts * (tiles.rows - 1)
    room = np.where(tokens[0] < tiles.rows, np.minimum(room, pairs * tiles.rows), room)
    return Blocks(float(rows[0]), float(hit[0]), blocks, np.maximum(np.ceil(room / tiles.rows), blocks))


def time_tiles(op: MoE, gpu: Gpu, tiles: ExpertTiles, constants: TritonConstants = FITTED) -> Times:
    spread = row_blocks(op, tiles)
    shapes = ((op.matrices - 1) * op.inter, op.hidden), (op.hidden, op.inter)
    both = zip(*(_product(op, gpu, tiles, spread, shape, constants) for shape in shapes), strict=True)
    products, tensor, feed, latency, dram = (first + second for first, second in both)
    tokens, rows = np.atleast_1d(np.asarray(op.tokens, dtype=np.float64)), np.array([spread.rows])
    others = float(between(op, gpu, tokens, rows, Arrays)[0]) + SMALL_KERNELS + PER_EXPERT * op.experts
    padding, weight_reads = spread.blocks * tiles.rows / spread.rows, spread.blocks / spread.hit
    resident = blocks_per_sm(tiles, op.dtype, gpu)
    return Times(products + others, products, tensor, feed, latency, dram, padding, weight_reads, resident)


LINE, ALIGNED, SPILLING = 128, 16, 2.5
"""Bytes of a line of memory; what rows must be a multiple of to be loaded many values at once; power of spilling."""
SMALL_KERNELS, PER_EXPERT = 8e-6, 2e-8  # Sorting tokens by expert, and starting what lies between the products


def _product(
    op: MoE, gpu: Gpu, tiles: ExpertTiles, spread: Blocks, shape: tuple[int, int], constants: TritonConstants
) -> tuple[Array, ...]:
    """Seconds of one grouped product and of its pipes; ``shape`` is the width of its result and its depth."""
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
        # Seconds of an SM to load values one at a time, through registers, which spill if there are too many.
        values = (tiles.rows + tiles.columns) * depth
        held = values / (LANES * tiles.warps)
        load = np.maximum(load, np.asarray(values * constants.value * (1.0 + (held / constants.spill) ** SPILLING)))
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
    return soft_max(constants.overlap, tensor, feed, latency, dram), tensor, feed, latency, dram


def _tensor_rate(op: MoE, gpu: Gpu, tiles: ExpertTiles, wide: Array, constants: TritonConstants) -> Array:
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype)) / gpu.sms
    peak *= constants.scaled if op.dtype == "fp8_block" else 1.0
    rate = peak * np.where(wide, constants.wide_rate, constants.plain_rate)
    rate = rate * np.where(wide & (tiles.rows >= WARP_GROUP_ROWS), (tiles.columns / 128) ** constants.wider, 1.0)
    rate = rate * np.where(wide & (tiles.warps == 4) & (tiles.rows >= 2 * WARP_GROUP_ROWS), constants.lone, 1.0)
    # Narrow results wait for shared memory: the wide instruction reads both operands from it for every 64 rows.
    narrow = np.where(tiles.rows < WARP_GROUP_ROWS, tiles.rows, tiles.columns) / WARP_GROUP_ROWS
    return np.asarray(rate * np.minimum(1.0, np.where(wide, narrow, 1.0)))


def _traffic(op: MoE, gpu: Gpu, tiles: ExpertTiles, spread: Blocks, shape: tuple[int, int], value: float) -> Array:
    """Bytes from and to DRAM: weights again for each group of row blocks where L2 does not hold an expert's."""
    width, inner = shape
    weights = width * inner * bytes_of(op.weight_dtype or op.dtype)
    each = spread.blocks / spread.hit
    again = np.maximum(each / np.minimum(tiles.group, each), 1.0)
    missed = weights / (weights + gpu.l2_bytes / 2)
    reads = 1.0 + (again - 1.0) * missed**2
    inputs = min(spread.rows, float(np.ravel(op.tokens)[0])) if inner == op.hidden else spread.rows
    return np.asarray(spread.hit * weights * reads + inputs * inner * value + spread.rows * width * 2)
