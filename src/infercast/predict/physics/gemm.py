"""Dense matrix products: the best of a few tiles and split-K factors, each bound by the slowest of four pipes.

A candidate cuts ``y`` into tiles and hands them to the SMs in rounds. Its time is a soft maximum of what the busiest SM
multiplies, the operands re-read through L2, the latency of the loop over ``k`` and the DRAM traffic, plus storing the
last tiles, adding up split-K partial sums and one launch. All constants are shared by all GPUs: they were fitted by
least squares on log latency over A100, L40S, H100 and H200 together (SGLang rows), never on one GPU. The L2 shares are
not identified by that fit; they were chosen by leaving one of these GPUs out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.hardware import Gpu
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.gemm import Gemm
from infercast.predict.physics.terms import Array, Physics, columns, fill, log2, miss_share, soft_max

Size = Array | float
Terms = dict[str, Array]
# Rows and columns of ``y`` a thread block owns. Small ones serve decode, where ``m`` is a few tokens.
TILES = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 192), (128, 256))
# Tiles whose last-round fill is told to the learner: libraries choose among these and others.
FILL_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (192, 192))
# From this compute capability on, copies are asynchronous (TMA), two blocks share operands, and stores overlap.
ASYNCHRONOUS, MULTICAST = 9, 2.0
# Chips whose L2 has two partitions, which hold some data twice.
PARTITIONED = ("8.0", "9.0", "10.0", "10.3")
# The clock that the constants in seconds below belong to, and how much of a launch does not scale with the clock.
REFERENCE_CLOCK, CLOCK_FREE_LAUNCH = 1.83e9, 0.45
# One step over ``k`` stages this many bytes of a row; a split leaves several steps. Partial sums are fp32.
STEP_BYTES, SHORTEST_SPLIT, MOST_SPLITS, PARTIAL_BYTES = 128.0, 256.0, 16.0, 4.0
# Formats whose kernels (CUTLASS, DeepGEMM) take scales and a fixed schedule without split-K.
SCALED = ("fp8", "fp8_block", "int8", "nvfp4", "mxfp4")
# The tables rotate six weight copies, warm only when all fit in L2. Rows priced at once: temporaries stay in cache.
TABLE_COPIES, CHUNK = 6.0, 8192

SHARES = ("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise")
# fmt: off
FEATURES: tuple[str, ...] = (
    "log_m", "log_n", "log_k", "log_seconds", "log_n_over_k", *(f"{name}_share" for name in SHARES),
    "miss", "log_bytes_over_l2", "log_weights_over_l2", "log_intensity_over_balance", "log_rounds", "round_fill",
    "log_tile_m", "log_tile_n", "log_split", *(f"fill_{rows}x{cols}" for rows, cols in FILL_TILES),
    "log_rounds_128x128", "m_fill_8", "m_fill_64", "m_fill_256", "n_fill_256", "k_fill_512", "log_bytes_x",
    "log_bytes_w", "scaled", "log_flops_per_sm_clock", "sustained", "log_dram_per_clock", "rows_share",
    "log_rows_per_sm")
# fmt: on


@dataclass(frozen=True, slots=True)
class Constants:
    """Efficiencies and delays of a kernel library, the same on every GPU. Fitted: not to be read as hardware facts."""

    tensor: float = 1.05  # share of peak FLOP/s before the power limit
    throttle: float = 1.36  # exponent of the sustained share of the boost clock
    throttle_after: float = 143e-6  # seconds of multiplying after which half of the throttling is felt
    small_tile: float = 40.7  # side of a tile at which half of the rate is lost, without asynchronous copies
    whole_rounds: float = 0.509  # 1: a partly full round costs a whole one; 0: work is spread evenly
    step: float = 447.0  # cycles that a step over k takes at least
    l2: float = 1.1  # share of the L2 bandwidth for operands
    dram: float = 0.775  # share of the DRAM bandwidth
    warm: float = 0.231  # share of the L2 bandwidth at which warm weights stream
    miss_sharpness: float = 21.8
    copies_margin: float = 0.937  # L2 bytes that a byte of the rotating copies needs
    split_cache: float = 0.659  # share of L2 that holds distinct data where it has two partitions
    stream: float = 75.1  # bytes a clock that one SM can pull from DRAM
    store: float = 2.13e-6  # seconds to store one 128 x 128 tile
    reduce: float = 2.18e-6  # delay of adding partial sums
    reduce_l2: float = 0.252  # share of the L2 bandwidth at which they are added
    launch: float = 3.28e-6
    cold_start: float = 0.368e-6  # until the first bytes of cold weights arrive
    power: float = 5.18  # of the soft maximum
    async_step: float = 0.471  # these five: factors where copies are asynchronous
    async_store: float = 0.444
    async_dram: float = 1.1
    async_launch: float = 0.76
    async_cold: float = 2.46
    split: bool = True  # whether the library splits k


CUBLAS = Constants()
# fmt: off
CUTLASS = Constants(
    tensor=0.75, throttle=2.2, throttle_after=4.08e-3, small_tile=24.5, whole_rounds=0.7, step=256.0, l2=0.7,
    dram=0.758, warm=0.641, miss_sharpness=20.0, copies_margin=0.963, split_cache=0.499, stream=72.7, store=2.09e-6,
    launch=2.43e-6, cold_start=0.319e-6, power=3.78, async_step=0.774, async_store=0.145, async_dram=0.978,
    async_launch=1.45, async_cold=3.55, split=False)
# fmt: on
# Quantising ``x``: launch seconds, share of the DRAM bandwidth, and seconds an SM needs for a row at least.
QUANTISE_LAUNCH, QUANTISE_DRAM, QUANTISE_ROW = 2.0e-6, 0.595, 0.194e-6


class _Machine:
    """A library's constants on one GPU, as plain rates and delays."""

    def __init__(self, op: Gemm, gpu: Gpu, c: Constants) -> None:
        major = gpu.compute_capability.partition(".")[0]
        late = major.isdigit() and int(major) >= ASYNCHRONOUS
        slow = REFERENCE_CLOCK / gpu.boost_clock
        self.gpu, self.c, self.batch = gpu, c, float(op.batch)
        self.bytes_x, self.bytes_w = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        self.bytes_y, self.peak = bytes_of(op.out_dtype), gpu.dense_flops(tensor_rate_of(op.dtype))
        self.seconds_per_flop, self.slower = gpu.sms / (self.peak * c.tensor), gpu.sustained_fraction**-c.throttle - 1
        self.small_tile = 0.0 if late else c.small_tile
        self.l2_rate = gpu.l2_bandwidth * c.l2 * (MULTICAST if late else 1.0) / gpu.sms
        self.step = c.step * (c.async_step if late else 1.0) / gpu.boost_clock
        self.dram_rate = gpu.dram_bandwidth * c.dram * (c.async_dram if late else 1.0)
        self.cache = gpu.l2_bytes * (c.split_cache if gpu.compute_capability in PARTITIONED else 1.0)
        self.stream = c.stream * gpu.boost_clock * gpu.sms / gpu.dram_bandwidth
        self.store = c.store * (c.async_store if late else 1.0) * slow / (128 * 128)
        self.reduce, self.reduce_per_sum = c.reduce * slow, PARTIAL_BYTES / (gpu.l2_bandwidth * c.reduce_l2)
        self.per_launch = CLOCK_FREE_LAUNCH + (1 - CLOCK_FREE_LAUNCH) * slow
        self.launch = c.launch * (c.async_launch if late else 1.0) * self.per_launch
        self.cold = c.cold_start * (c.async_cold if late else 1.0)


class _Shapes:
    """A chunk of products, and what no tile changes: bytes moved once, their DRAM seconds, their misses."""

    def __init__(self, m: Array, n: Array, k: Array, a: _Machine, copies: float) -> None:
        self.m, self.n, self.k = m, n, k
        self.outputs, self.weights = a.batch * m * n, a.batch * a.bytes_w * n * k
        activations = a.batch * a.bytes_x * m * k + a.bytes_y * self.outputs
        self.moved = self.weights + activations
        working_set = a.c.copies_margin * copies * self.weights + activations
        self.miss = miss_share(working_set, a.cache, a.c.miss_sharpness)
        self.dram = self.moved * (self.miss / a.dram_rate + (1 - self.miss) / (a.gpu.l2_bandwidth * a.c.warm))

    def blocks(self, rows: Size, cols: Size) -> Array:
        return np.asarray(np.ceil(self.m / rows) * np.ceil(self.n / cols))


def gemm(op: Gemm, gpu: Gpu, *, quantise_input: bool = False, weight_copies: float = TABLE_COPIES) -> Physics:
    """Seconds of ``op`` on ``gpu``.

    ``quantise_input`` adds the kernel that quantises ``x`` to a scaled format (the measured fp8 and nvfp4 tables
    include it; an engine prices it as an operator of its own). ``weight_copies`` is how many weight matrices take
    turns in L2: the tables rotate six, a model has as many as layers.
    """
    machine = _Machine(op, gpu, CUTLASS if (scaled := op.dtype in SCALED) else CUBLAS)
    sizes = np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k)))
    chunks = [[size[start : start + CHUNK] for size in sizes] for start in range(0, max(sizes[0].size, 1), CHUNK)]
    shapes = (_Shapes(m, n, k, machine, weight_copies) for m, n, k in chunks)
    parts = [_price(shape, machine, quantise_input and scaled) for shape in shapes]
    terms = {name: np.concatenate([part.terms[name] for part in parts]) for name in SHARES}
    seconds = np.concatenate([part.seconds for part in parts])
    return Physics(seconds, terms, np.concatenate([part.features for part in parts]))


def _pipes(s: _Shapes, a: _Machine, rows: Size, cols: Size, blocks: Array, split: Size) -> list[Array]:
    """Seconds of tensor cores, L2, loop latency, DRAM and storing, for one tile and split."""
    rounds = blocks * (a.batch / a.gpu.sms) * split
    busiest = np.maximum(a.c.whole_rounds * np.ceil(rounds) + (1 - a.c.whole_rounds) * rounds, 1.0)
    depth = s.k / split
    lost = 0.5 * a.small_tile * (1 / rows + 1 / cols)
    tensor = busiest * depth * (2 * rows * cols * (1 + lost) * a.seconds_per_flop)
    tensor = tensor * (1 + a.slower * tensor / (tensor + a.c.throttle_after))
    l2 = rounds * depth * ((rows * a.bytes_x + cols * a.bytes_w) / a.l2_rate)
    latency = busiest * np.ceil(depth * (a.bytes_x / STEP_BYTES)) * a.step
    return [tensor, l2, latency, s.dram / np.minimum(rounds * a.stream, 1.0), busiest * (a.store * rows * cols)]


def _reduce(s: _Shapes, a: _Machine, split: Array) -> Array:
    return np.where(split > 1, split * s.outputs * a.reduce_per_sum + a.reduce, 0.0)


def _choose(s: _Shapes, a: _Machine) -> tuple[Array, Array, Array]:
    """Tile rows, tile columns and split (1, or what fills one round) of the fastest, pipes overlapping perfectly."""
    best = np.full(s.m.shape, np.inf)
    chosen = (np.ones_like(best), np.ones_like(best), np.ones_like(best))
    most = np.clip(np.floor(s.k / SHORTEST_SPLIT), 1.0, MOST_SPLITS)
    for tile in TILES:
        blocks = s.blocks(*tile)
        candidates: list[Size] = [1.0]
        if a.c.split and blocks.size and 2 * a.batch * blocks.min() <= a.gpu.sms:
            candidates.append(np.clip(np.floor(a.gpu.sms / (a.batch * blocks)), 1.0, most))
        for split in candidates:
            tensor, l2, latency, dram, store = _pipes(s, a, *tile, blocks, split)
            seconds = np.maximum(np.maximum(tensor, l2), np.maximum(latency, dram)) + store
            seconds = seconds + _reduce(s, a, split) if isinstance(split, np.ndarray) else seconds
            better = seconds < best
            for into, value in zip((best, *chosen), (seconds, *tile, split), strict=True):
                np.copyto(into, value, where=better)
    return chosen


def _price(s: _Shapes, a: _Machine, quantise: bool) -> Physics:
    """The chosen candidate with a soft maximum, its terms and its features."""
    rows, cols, split = choice = _choose(s, a)
    blocks = s.blocks(rows, cols)
    *pipes, store = _pipes(s, a, rows, cols, blocks, split)
    quantising = np.zeros_like(store)
    if quantise:
        moved = a.batch * s.m * s.k * ((bytes_of("bf16") + a.bytes_x) / (QUANTISE_DRAM * a.gpu.dram_bandwidth))
        quantising = QUANTISE_LAUNCH * a.per_launch + np.maximum(moved, s.m * (a.batch * QUANTISE_ROW / a.gpu.sms))
    launch = a.launch + a.cold * s.miss  # waiting for the first cold bytes is part of starting
    terms = dict(zip(SHARES, (*pipes, store, _reduce(s, a, split), launch, quantising), strict=True))
    seconds = soft_max(a.c.power, *pipes) + store + terms["reduce"] + launch + quantising
    return Physics(seconds, terms, _features(s, a, seconds, terms, blocks * split * (a.batch / a.gpu.sms), choice))


def _features(s: _Shapes, a: _Machine, seconds: Array, terms: Terms, rounds: Array, choice: tuple[Array, ...]) -> Array:
    """Columns as in ``FEATURES``."""
    gpu, clock = a.gpu, a.gpu.boost_clock
    over_balance = s.outputs * s.k / s.moved * (2 * gpu.dram_bandwidth / a.peak)
    return columns(
        *map(log2, (s.m, s.n, s.k, seconds / 1e-6, s.n / s.k)),
        *(terms[name] / seconds for name in SHARES),
        s.miss,
        *map(log2, (s.moved / gpu.l2_bytes, s.weights / gpu.l2_bytes, over_balance, rounds)),
        *(fill(rounds, 1), *map(log2, choice)),
        *(fill(a.batch * s.blocks(*tile), gpu.sms) for tile in FILL_TILES),
        log2(s.blocks(128, 128) * (a.batch / gpu.sms)),
        *(fill(size, side) for size, side in ((s.m, 8), (s.m, 64), (s.m, 256), (s.n, 256), (s.k, 512))),
        *(log2(a.bytes_x), log2(a.bytes_w), float(not a.c.split), log2(a.peak / (gpu.sms * clock))),
        *(gpu.sustained_fraction, log2(gpu.dram_bandwidth / clock)),
        *(s.m * (1e-6 / gpu.sms) / seconds, log2(s.m / gpu.sms)),
    )
