"""Dense matrix products: physics of cuBLAS, CUTLASS and DeepGEMM kernels, features, and the family record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import compress
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.load import facts_of, is_modelled
from infercast.lazy_classes import replace
from infercast.ops import Gemm, MoE
from infercast.ops.op import Quantity, bytes_of, quantise, tensor_rate_of
from infercast.predict.array_api import Array, Arrays, Kit, Number, Physics, Plain, kit_of
from infercast.predict.families import family as common
from infercast.predict.identity import KernelProfile, kernel_of

# Products in a format that a chip does not multiply in: weights stay as stored, everything else is 16 bits wide.
#
# Engines run such checkpoints with kernels (Marlin) that widen weights on the way to the tensor cores.

WIDE = ("bf16", "fp16", "fp32", "tf32")  # Formats that are multiplied as they are stored, or in another of them

Product = TypeVar("Product", Gemm, MoE)


def as_run(op: Product, gpu: Gpu) -> Product:
    if op.dtype in WIDE or gpu.supports(tensor_rate_of(op.dtype)):
        return op
    return replace(op, dtype="bf16", weight_dtype=op.weight_dtype or op.dtype)


def is_widened(op: Gemm | MoE) -> bool:
    """Whether its weights are widened to 16 bits on the way to the tensor cores."""
    return op.dtype in WIDE and op.weight_dtype not in (None, "", *WIDE)


def multiplying(op: MoE, gpu: Gpu) -> float:
    """FLOP/s of the tensor cores for these experts, before what a kernel loses. Kernels that widen weights reach half
    of the tensor cores' rate where it is whole (A100, L40S; H200 and B200, whose other half is for instructions that
    they do not use, less). Boards that are sold with half of that rate (GeForce, L40, L20, A10G) lose nothing by it; a
    rate less than a tenth below is rounded.
    """
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    return gpu.whole_tensor_flops if is_widened(op) and gpu.whole_tensor_flops > 1.1 * peak else peak


# Rows and columns of ``y`` a thread block owns. Small ones serve decode, where ``m`` is a few tokens.
TILES = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 192), (128, 256))
ROWS, COLS = (sorted({tile[side] for tile in TILES}) for side in (0, 1))
PER_ROW, PER_COL = ([1 / side for side in sides] for sides in (ROWS, COLS))
# From this compute capability on, copies are asynchronous (TMA), two blocks share operands, and stores overlap.
ASYNCHRONOUS, MULTICAST = 9, 2.0
# Chips whose L2 has two partitions, which hold some data twice.
PARTITIONED = ("8.0", "9.0", "10.0", "10.3")
# The clock that the constants in seconds below belong to, and how much of a launch does not scale with the clock.
REFERENCE_CLOCK, CLOCK_FREE_LAUNCH = 1.83e9, 0.45
# One step over ``k`` stages this many bytes of a row. Partial sums are fp32.
STEP_BYTES, PARTIAL_BYTES = 128.0, 4.0
# Formats whose kernels (CUTLASS, DeepGEMM) take scales and a fixed schedule without split-K.
SCALED = ("fp8", "fp8_block", "int8", "nvfp4", "mxfp4")


LIBRARIES = common.constants("gemm")
# Quantising ``x``: launch seconds, share of the DRAM bandwidth, and seconds an SM needs for a row at least.
QUANTISE_LAUNCH, QUANTISE_DRAM, QUANTISE_ROW = 2.0e-6, 0.595, 0.194e-6
# Where an engine takes whole chunks of a row (data/kernels.toml, quantisers): values of a chunk, threads of a row.
CHUNK, ROW_THREADS = 2048.0, 1024


@cache
def library_of(dtype: str, architecture: str) -> common.Constants:
    """Constants of the library that multiplies a format, of its kernels for an architecture where it has some."""
    usual, own = ("cutlass", dtype) if dtype in SCALED else ("plain",) * 2 if dtype == "fp32" else ("cublas",) * 2
    return LIBRARIES.get(f"{own} {architecture}", LIBRARIES[usual])


@cache
def _quantiser(engine: str, dtype: str, architecture: str) -> Mapping[str, float]:
    """What is known of the kernel that quantises the input, where it is not the usual one."""
    for row in read_data("kernels.toml")["quantisers"]:
        is_of = engine in row["engines"] and architecture in row.get("architectures", (architecture,))
        if is_of and dtype in row["formats"]:
            return row  # type: ignore[no-any-return]
    return {}


@cache
def quantiser_of(engine: str, version: str) -> str:
    """The name that a version's quantising kernels go by: its own where they were others."""
    named = f"{engine} {version}"
    return named if any(named in row["engines"] for row in read_data("kernels.toml")["quantisers"]) else engine


class Tile:
    """A tile on one GPU, or arrays of them."""

    __slots__ = ("col", "cols", "covered", "flop", "l2", "row", "rows", "store")

    def __init__(self, rows: Number, cols: Number, flop: Number, l2: Number, store: Number) -> None:
        """Seconds of a round: ``flop`` to multiply and ``l2`` to read for each 1 of ``k``, ``store`` to store."""
        self.rows, self.cols, self.flop, self.l2, self.store = rows, cols, flop, l2, store

    def placed(self, rows: int, cols: int) -> Tile:
        """On the menu: its places among `ROWS` and `COLS`, and up to which ``m`` a lower tile is never slower."""
        self.row, self.col = ROWS.index(rows), COLS.index(cols)
        self.covered = max((height for height, width in TILES if width == cols and height < rows), default=0)
        return self


class Machine:
    """A library's constants on one GPU and for one number format, as plain rates and delays."""

    def __init__(self, op: Gemm, gpu: Gpu) -> None:
        op = as_run(op, gpu)
        major = gpu.compute_capability.partition(".")[0]
        late = major.isdigit() and int(major) >= ASYNCHRONOUS
        slow = REFERENCE_CLOCK / gpu.boost_clock
        facts = facts_of(gpu) if is_modelled(gpu) else None
        per_launch = (CLOCK_FREE_LAUNCH + (1 - CLOCK_FREE_LAUNCH) * slow) * (facts.launch if facts else 1.0)
        self.gpu, self.batch, self.scaled = gpu, float(op.batch), op.dtype in SCALED
        self.constants = c = library_of(op.dtype, gpu.kernels)
        self.bytes_x, self.bytes_w = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        self.input_bytes, self.weight_bytes = self.batch * self.bytes_x, self.batch * self.bytes_w
        self.output_bytes, self.peak = self.batch * bytes_of(op.out_dtype), gpu.dense_flops(tensor_rate_of(op.dtype))
        self.per_sm, self.slots = self.batch / gpu.sms, gpu.sms / self.batch
        self.whole, self.part = c.whole_rounds, 1 - c.whole_rounds
        self.slower, self.throttle_after = gpu.sustained_fraction**-c.throttle - 1, c.throttle_after
        self.steps_per_k, self.step = (
            self.bytes_x / STEP_BYTES,
            c.step * (c.async_step if late else 1.0) / gpu.boost_clock,
        )
        self.cache = gpu.l2_bytes * (c.split_cache if gpu.compute_capability in PARTITIONED else 1.0)
        self.copies_margin, self.miss_sharpness = c.copies_margin, c.miss_sharpness
        self.warm_byte = 1 / (gpu.l2_bandwidth * c.warm)
        self.miss_byte = 1 / (gpu.dram_bandwidth * c.dram * (c.async_dram if late else 1.0)) - self.warm_byte
        self.drawn = gpu.dram_bandwidth / (c.stream * gpu.boost_clock * gpu.sms)
        self.splits, self.reduce = c.split, c.reduce * slow
        self.reduce_value = self.batch * PARTIAL_BYTES / (gpu.l2_bandwidth * c.reduce_l2)
        self.launch = c.launch * (c.async_launch if late else 1.0) * per_launch
        self.cold_start = c.cold_start * (c.async_cold if late else 1.0)
        chunked = _quantiser(op.quantiser, op.dtype, gpu.kernels)
        self.quantise = chunked.get("launch", QUANTISE_LAUNCH) * per_launch
        quantised = chunked.get("dram", QUANTISE_DRAM) * gpu.dram_bandwidth
        self.quantise_value = self.batch * (bytes_of("bf16") + self.bytes_x) / quantised
        self.quantise_row, self.quantise_chunk = self.batch * QUANTISE_ROW / gpu.sms, 0.0
        if chunked:
            slots = facts.threads_per_sm // ROW_THREADS if facts else 2
            self.quantise_row = self.batch * chunked["row"] * 2 / (slots * gpu.sms)
            self.quantise_chunk = self.batch * chunked["chunk"] / gpu.sms
        self.per_cache_byte, self.balance = 1 / gpu.l2_bytes, self.batch * 2 * gpu.dram_bandwidth / self.peak
        self.per_chip, self.row_seconds = 1 / gpu.sms, 1e-6 / gpu.sms
        self.tiles = tuple(self._tile(late, slow, rows, cols) for rows, cols in TILES)
        self.tile_table = np.array([[t.rows, t.cols, t.flop, t.l2, t.store] for t in self.tiles]).T
        self.fixed_features = (
            *(self.bytes_x, self.bytes_w, float(not c.split), self.peak / (gpu.sms * gpu.boost_clock)),
            *(gpu.sustained_fraction, gpu.dram_bandwidth / gpu.boost_clock),
        )

    def _tile(self, late: bool, slow: float, rows: int, cols: int) -> Tile:
        c, gpu = self.constants, self.gpu
        lost = 0.0 if late else 0.5 * c.small_tile * (1 / rows + 1 / cols)
        flop = 2 * rows * cols * (1 + lost) * gpu.sms / (self.peak * c.tensor)
        l2_rate = gpu.l2_bandwidth * c.l2 * (MULTICAST if late else 1.0) / gpu.sms
        store = c.store * (c.async_store if late else 1.0) * slow / (128 * 128)
        l2 = (rows * self.bytes_x + cols * self.bytes_w) / l2_rate
        return Tile(float(rows), float(cols), flop, l2, store * rows * cols).placed(rows, cols)


# How a matrix product is cut: the best of a few tiles and split-K factors.
#
# A product is planned twice at once: *warm* as in the tables, which repeat a few weight matrices, and *cold* as in an
# engine, which comes back to a layer's weights after all others. Only the DRAM seconds differ.


# The tables rotate six weight copies, warm only when all fit in L2; a model has more than any cache holds.
TABLE_COPIES, MANY_COPIES = 6.0, 1000.0
# A split of ``k`` leaves several steps.
SHORTEST_SPLIT, MOST_SPLITS = 256.0, 16.0

TIE = 1 + 2.0**-28  # Candidates whose seconds differ by less are equal

TilePipes = tuple[Number, Number, Number, Number, Number]
"""Seconds of tensor cores, L2 and latency; how many times longer DRAM takes for few blocks; seconds of storing."""
Traffic = tuple[Number, Number]
"""Share of a product's bytes that come from DRAM, and seconds that all take with all of the bandwidth."""
Plan = tuple[Tile, Number, Number, TilePipes, Number]
"""The tile, split and rounds that are fastest if pipes overlap perfectly; its pipes; seconds to add up partial sums."""


class Shapes:
    """Products, and what no tile changes: bytes moved once, tiles along each side, and traffic warm and cold."""

    __slots__ = ("across", "along", "cold", "k", "m", "moved", "n", "outputs", "warm", "weights")

    def __init__(self, m: Number, n: Number, k: Number, a: Machine, x: Kit) -> None:
        self.m, self.n, self.k = m, n, k
        self.outputs = m * n
        self.weights = n * k * a.weight_bytes
        activations = m * k * a.input_bytes + self.outputs * a.output_bytes
        self.moved = self.weights + activations
        self.across: Sequence[Number] = [x.ceil(m * each) for each in PER_ROW]
        self.along: Sequence[Number] = [x.ceil(n * each) for each in PER_COL]
        self.warm = self._traffic(a, x, self.weights * (a.copies_margin * TABLE_COPIES) + activations)
        self.cold = self._traffic(a, x, self.weights * (a.copies_margin * MANY_COPIES) + activations)

    def _traffic(self, a: Machine, x: Kit, working_set: Number) -> Traffic:
        miss = x.miss_share(working_set, a.cache, a.miss_sharpness)
        return miss, self.moved * (miss * a.miss_byte + a.warm_byte)


def plan_of(s: Shapes, a: Machine, x: Kit, tile: Tile, blocks: Number, split: Number) -> Plan:
    """Products cut into so many blocks of a tile, each with ``k`` in so many parts."""
    rounds, k = blocks * a.per_sm * split, s.k / split
    busiest = x.larger(x.ceil(rounds) * a.whole + rounds * a.part, 1.0)
    tensor = busiest * k * tile.flop
    throttled = tensor + tensor * tensor * a.slower / (tensor + a.throttle_after)
    latency = busiest * (x.ceil(k * a.steps_per_k) * a.step)
    longer = x.larger(a.drawn / rounds, 1.0)
    pipes = throttled, rounds * k * tile.l2, latency, longer, busiest * tile.store
    return tile, split, rounds, pipes, x.where(split > 1.0, split * s.outputs * a.reduce_value + a.reduce, 0.0)


def choose_one(s: Shapes, a: Machine) -> tuple[Plan, Plan]:
    """The best plan of a single product, warm and cold; `plan_of` once more, as a quarter of all time is spent here."""
    (_, warm), (_, cold), outputs, ceil = s.warm, s.cold, s.outputs, math.ceil
    m, all_k, across, along, per_sm, slots = s.m, s.k, s.across, s.along, a.per_sm, a.slots
    whole, part, slower, after, drawn = a.whole, a.part, a.slower, a.throttle_after, a.drawn
    best_warm = best_cold = bar = inf
    plan_warm = plan_cold = (a.tiles[0], 1.0, 1.0)
    most = min(all_k // SHORTEST_SPLIT, MOST_SPLITS) if a.splits else 1.0
    for tile in reversed(a.tiles):
        blocks = across[tile.row] * along[tile.col]
        rounds = blocks * per_sm
        l2 = rounds * all_k * tile.l2
        if m <= tile.covered or l2 > bar:
            continue
        split, k, reduce = 1.0, all_k, 0.0
        while True:
            longer = drawn / rounds if rounds < drawn else 1.0
            dram, cold_dram = warm * longer, cold * longer
            if dram < best_warm or cold_dram < best_cold:
                busiest = ceil(rounds) * whole + rounds * part
                busiest = busiest if busiest > 1.0 else 1.0
                tensor = busiest * k * tile.flop
                busy = tensor + tensor * tensor * slower / (tensor + after)
                busy = busy if busy > l2 else l2
                latency = busiest * (ceil(k * a.steps_per_k) * a.step)
                busy = busy if busy > latency else latency
                added = busiest * tile.store + reduce
                seconds = (dram if dram > busy else busy) + added
                if seconds < best_warm:
                    best_warm, plan_warm = seconds * TIE, (tile, blocks, split)
                seconds = (cold_dram if cold_dram > busy else busy) + added
                if seconds < best_cold:
                    best_cold, plan_cold = seconds * TIE, (tile, blocks, split)
            if split > 1.0 or most <= 1.0 or 2.0 * blocks > slots:
                break
            split = min(slots // blocks, most)
            k, rounds = all_k / split, rounds * split
            reduce = split * outputs * a.reduce_value + a.reduce
        bar = best_warm if best_warm > best_cold else best_cold
    warm_plan = plan_of(s, a, Plain, *plan_warm)
    return warm_plan, warm_plan if plan_cold == plan_warm else plan_of(s, a, Plain, *plan_cold)


def choose_many(s: Shapes, a: Machine) -> tuple[Plan, Plan]:
    """The same of each of many products: all candidates are timed, and the best ones once more together."""
    largest, best = s.m.max(initial=0), np.full((2, s.m.size), inf)
    which = np.zeros((2, s.m.size), dtype=np.intp)  # Numbers of tiles, higher by all of them where ``k`` is split
    for number, tile in reversed([*enumerate(a.tiles)]):
        if largest <= tile.covered:
            continue
        blocks = s.across[tile.row] * s.along[tile.col]
        candidates = [(number, plan_of(s, a, Arrays, tile, blocks, 1.0))]
        if a.splits and ((2.0 * blocks <= a.slots) & (s.k >= 2.0 * SHORTEST_SPLIT)).any():
            candidates.append((number + len(TILES), plan_of(s, a, Arrays, tile, blocks, _split(s, a, blocks))))
        for candidate, (_, _, _, (tensor, l2, latency, longer, store), reduce) in candidates:
            busy, added = np.maximum(np.maximum(tensor, l2), latency), store + reduce
            for place, (_, dram) in enumerate((s.warm, s.cold)):
                seconds = np.maximum(dram * longer, busy) + added
                is_better = seconds < best[place]
                np.copyto(best[place], seconds * TIE, where=is_better)
                np.copyto(which[place], candidate, where=is_better)
    warm, cold = (_plan_of_numbers(s, a, each) for each in which)
    return warm, cold


def _split(s: Shapes, a: Machine, blocks: Array) -> Array:
    """Parts of ``k`` that fill one round, or 1."""
    most = np.minimum(np.floor(s.k / SHORTEST_SPLIT), MOST_SPLITS)
    return np.asarray(np.maximum(np.minimum(np.floor(a.slots / blocks), most), 1.0))


def _plan_of_numbers(s: Shapes, a: Machine, which: Array) -> Plan:
    tile = Tile(*(values.take(which % len(TILES)) for values in a.tile_table))
    blocks = np.ceil(s.m / tile.rows) * np.ceil(s.n / tile.cols)
    return plan_of(s, a, Arrays, tile, blocks, np.where(which >= len(TILES), _split(s, a, blocks), 1.0))


# Products in fp8 by vLLM's own CUTLASS kernels, each for a range of shapes that is known.
#
# Where a library chooses among many tiles, a product's tile is a guess. vLLM compiles seven fp8 kernels and picks one
# by the shape alone (read off the names of the kernels of a sweep), so the tiles of each product, and with them the
# work of the busiest SM, are certain. Models of a sweep start from what this takes.

FP8_FEATURES = common.feature_names("gemm fp8 cutlass")
FP8_LOGARITHMIC = tuple(name.startswith("log_") for name in FP8_FEATURES)

# Rows and columns of a tile, values of k in one step, tiles of rows that run as one cluster; then, from our sweep,
# microseconds of a launch and of starting a round, clock cycles of a step, and how sharply the memory's bandwidth takes
# over from waiting (the power of a soft maximum: a few dozen blocks draw less than all of it).
KERNELS = (
    (16.0, 64.0, 256.0, 1.0, 1.07, 1.98, 215.0, 1.68),  # up to 16 rows
    (16.0, 64.0, 256.0, 1.0, 3.0, 0.0, 224.0, 2.63),  # up to 64 rows, narrow
    (64.0, 64.0, 256.0, 1.0, 1.09, 1.92, 341.0, 1.39),  # up to 64 rows
    (64.0, 128.0, 128.0, 2.0, 3.23, 0.51, 302.0, 2.32),  # up to 128 rows
    (128.0, 128.0, 128.0, 2.0, 3.43, 0.84, 565.0, 2.0),
    (256.0, 128.0, 128.0, 2.0, 0.5, 4.4, 200.0, 3.58),  # many rows, deep
    (128.0, 128.0, 128.0, 1.0, 3.49, 0.31, 633.0, 1.0),  # sizes that CUTLASS cannot align: a Triton kernel
)
FEW, SOME, MORE, MANY = 16.0, 64.0, 128.0, 8192.0
NARROW, DEEP, ALIGNED = 1280.0, 6144.0, 16.0
TENSOR, DRAM = 0.75, 0.94  # Shares of the peaks that are reached
_TABLE = np.array(KERNELS).T


def is_known(op: Gemm, gpu: Gpu) -> bool:
    return op.dtype == "fp8" and op.weight_dtype in ("", None, "fp8") and facts_of(gpu).fp8_products == "cutlass"


def fp8_products(
    m: Number, n: Number, k: Number, a: Machine, x: Kit, *, engine: bool = True
) -> tuple[tuple[Number, tuple[Number, ...]], list[Number]]:
    """The time of products and its terms, and their features in their own units; weights are always cold."""
    which: Number = _kernel(m, n, k) if x is Plain else _kernels(m, n, k)
    rows, cols, depth, cluster, launch, start, cycles, sharpness = KERNELS[which] if x is Plain else _TABLE[:, which]
    gpu, ceil, larger = a.gpu, x.ceil, x.larger
    row_tiles, col_tiles, steps = ceil(m / rows), ceil(n / cols), ceil(k / depth)
    rounds = ceil(row_tiles / cluster) * cluster * col_tiles * a.per_sm
    whole = ceil(rounds)
    tensor = whole * rows * cols * k * (2.0 * gpu.sms / (a.peak * TENSOR))
    latency = whole * (start * 1e-6 + steps * cycles * (1.0 / gpu.boost_clock))
    moved = n * k * a.weight_bytes + m * k * a.input_bytes + m * n * a.output_bytes
    dram = moved * (1.0 / (gpu.dram_bandwidth * DRAM))
    slowest = larger(waiting := larger(tensor, latency), dram)
    overlap = (waiting / slowest) ** sharpness + (dram / slowest) ** sharpness
    seconds = slowest * overlap ** (1.0 / sharpness) + launch * 1e-6
    features = [
        *(which, m, n, k, rounds, whole, rounds / whole, tensor * 1e6, dram * 1e6, latency * 1e6, steps, seconds * 1e6),
        *(m / (row_tiles * rows), n / (col_tiles * cols), k / (steps * depth), row_tiles, col_tiles),
    ]
    return (seconds, (tensor, 0.0, latency, dram, 0.0, 0.0, launch * 1e-6, 0.0)), features


def _kernel(m: float, n: float, k: float) -> int:
    if n % ALIGNED or k % ALIGNED:
        return 6
    if m <= FEW:
        return 0
    if m <= SOME:
        return 1 if n <= NARROW else 2
    if m <= MORE:
        return 3
    return 5 if m >= MANY and k >= DEEP else 4


def _kernels(m: Array, n: Array, k: Array) -> Array:
    which = 4 - (m <= MORE).astype(np.intp) - (m <= SOME) - ((m <= SOME) & (n <= NARROW))
    which[m <= FEW] = 0
    which[(m >= MANY) & (k >= DEEP)] = 5
    which[(n % ALIGNED != 0) | (k % ALIGNED != 0)] = 6
    return which


# Features of a matrix product.
#
# Trees only ask whether a value is above a border, so logarithms need not be taken to walk them: columns are made in
# their own units, and ``log_`` in a name says how a learner sees them.

SHARES = ("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise")
"""The terms of an estimate: the first four overlap, the others add up."""
FEATURES = common.feature_names("gemm")
LOGARITHMIC = tuple(name.startswith("log_") for name in FEATURES)


def columns(s: Shapes, a: Machine, x: Kit, seconds: Number, terms: tuple[Number, ...], plan: Plan) -> list[Number]:
    """As in ``FEATURES``, without their logarithms; what is the same for all products is a plain number."""
    tile, split, rounds, _, _ = plan
    ceil, per_sm, m, n, k, each = x.ceil, a.per_sm, s.m, s.n, s.k, 1.0 / seconds
    _, _, m64, m128 = s.across
    n64, n128, n192, n256 = s.along
    m192, m256 = ceil(m * (1 / 192)), ceil(m * (1 / 256))
    # Rounds over whole rounds: how full the last one is on average.
    return [
        *(m, n, k, seconds * 1e6, n / k), *[term * each for term in terms],
        *(s.warm[0], s.moved * a.per_cache_byte, s.weights * a.per_cache_byte, s.outputs * k / s.moved * a.balance),
        *(rounds, rounds / ceil(rounds), tile.rows, tile.cols, split),
        *((r := m64 * n64 * per_sm) / ceil(r), (r := m64 * n128 * per_sm) / ceil(r)),
        *((r := m128 * n64 * per_sm) / ceil(r), (square := m128 * n128 * per_sm) / ceil(square)),
        *((r := m128 * n256 * per_sm) / ceil(r), (r := m256 * n128 * per_sm) / ceil(r)),
        *((r := m192 * n192 * per_sm) / ceil(r), square),
        *((r := m * (1 / 8)) / ceil(r), m * (1 / 64) / m64, m * (1 / 256) / m256),
        *(n * (1 / 256) / n256, (r := k * (1 / 512)) / ceil(r)), *a.fixed_features,
        *(m * each * a.row_seconds, m * a.per_chip),
    ]  # fmt: skip


Timed = tuple[Number, tuple[Number, ...]]
"""Seconds of products in a table or in an engine, and their terms as in ``SHARES``."""
Compute = Callable[..., tuple[Timed, list[Number]]]  # A function like `time_products`


def time_products(m: Number, n: Number, k: Number, a: Machine, x: Kit, *, engine: bool) -> tuple[Timed, list[Number]]:
    """The time of products, and their features in their own units. A table repeats a kernel over a few weight matrices
    and times the quantising of its input with it. An ``engine`` finds weights cold and quantises by a kernel of its
    own; its features are a table's, which is what learners know.
    """
    s = Shapes(m, n, k, a, x)
    plan, cold_plan = choose_one(s, a) if x is Plain else choose_many(s, a)
    tabled = _finish(s, a, x, plan, s.warm, quantise=a.scaled)
    timed = _finish(s, a, x, cold_plan, s.cold, quantise=False) if engine else tabled
    return timed, columns(s, a, x, *tabled, plan)


PRODUCTS: tuple[Compute, tuple[bool, ...]] = time_products, LOGARITHMIC


def _finish(s: Shapes, a: Machine, x: Kit, plan: Plan, traffic: Traffic, *, quantise: bool) -> Timed:
    """The chosen candidate with a soft maximum; ``quantise`` adds the kernel that quantises ``x``."""
    miss, moving = traffic
    _, _, _, (tensor, l2, latency, longer, store), reduce = plan
    dram = moving * longer
    launch = miss * a.cold_start + a.launch  # waiting for the first cold bytes is part of starting
    seconds = x.soft_max(a.constants.power, tensor, l2, latency, dram) + store + reduce + launch
    quantising: Number = 0.0
    if quantise:
        each = a.quantise_row
        if a.quantise_chunk:
            each = x.ceil(s.k * (1.0 / CHUNK)) * a.quantise_chunk + a.quantise_row
        quantising = x.larger(s.m * s.k * a.quantise_value, s.m * each) + a.quantise
    return seconds + quantising, (tensor, l2, latency, dram, store, reduce, launch, quantising)


class GemmPhysics:
    """Dense matrix products: the best of a few tiles and split-K factors, each bound by the slowest of four pipes. A
    candidate cuts ``y`` into tiles and hands them to the SMs in rounds. Its time is a soft maximum of what the busiest
    SM multiplies, the operands re-read through L2, the latency of the loop over ``k`` and the DRAM traffic, plus
    storing the last tiles, adding up split-K partial sums and one launch.
    """

    def __init__(self, op: Gemm, gpu: Gpu, by: tuple[Compute, tuple[bool, ...]] = PRODUCTS) -> None:
        self.gpu, self._machine, (self._compute, self._logarithmic) = gpu, Machine(op, gpu), by

    def physics(self, size: tuple[Number, Number, Number], *, engine: bool = False) -> Physics:
        """Sizes of many, or of one as plain floats."""
        x = kit_of(size[0])
        (seconds, terms), values = self._compute(*size, self._machine, x, engine=engine)
        logs = iter(x.logs(*compress(values, self._logarithmic)))
        features = [next(logs) if each else value for value, each in zip(values, self._logarithmic, strict=True)]
        return Physics(seconds, dict(zip(SHARES, terms, strict=True)), x.columns(*features))


def products_of_sweep(op: Gemm, gpu: Gpu) -> tuple[Compute, tuple[bool, ...]]:
    """What times products of a sweep, and which of its features are logarithms to a learner."""
    return (fp8_products, FP8_LOGARITHMIC) if is_known(op, gpu) else PRODUCTS


# Output tiles a library can choose from. Small ones waste less of a thin matrix and fill the chip sooner.
ROOFLINE_TILES = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256))
TILE = 128  # Rows and columns of the usual one
USUAL = "usual"  # The kernel that multiplies a format on most chips: cuBLAS, CUTLASS by the row, DeepGEMM by the block


def _pipes(op: Gemm, gpu: Gpu) -> common.Pipes:
    """The best tile of the menu, against moving both operands and the result once."""
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    best: Any = np.inf
    for rows, columns in ROOFLINE_TILES:
        blocks = op.batch * np.ceil(np.asarray(op.m) / rows) * np.ceil(np.asarray(op.n) / columns)
        flops = 2.0 * rows * columns * op.k * blocks
        best = np.minimum(best, flops / rate * common.quantised_waves(blocks, gpu.sms))
    return {"tensor": best, "dram": common.dram_seconds(op, gpu)}


def _work(op: Gemm, size: tuple[Any, Any, Any]) -> tuple[Quantity, Quantity]:
    m, n, k = size
    return 2.0 * op.batch * m * n * k, op.batch * bytes_of(op.weight_dtype or op.dtype) * n * k


def product_variant(dtype: str, kernel: str) -> str:
    """Products of a format that several kernels multiply are learned by kernel; the usual one needs no name."""
    return f"{dtype}/{kernel}" if kernel and kernel != USUAL else dtype


def _variants(op: Gemm, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    if not gpu.supports(tensor_rate_of(op.dtype)) or op.dtype == "fp16":
        return ("bf16",)
    return tuple(dict.fromkeys((product_variant(op.dtype, kernel_of(op, gpu, profile.engine)), op.dtype)))


def _quantised(op: Gemm) -> Quantity | None:
    """Quantised products of published tables were timed with the quantising of their input."""
    widest = np.asarray(quantise(np.ravel(np.asarray(op.m)), 1).bytes_read) * np.ravel(np.asarray(op.k))
    return None if op.dtype == "bf16" else np.asarray(1.5 * widest)


def _ceiling_shape(op: Gemm, gpu: Gpu) -> list[Any]:
    m, n, k = (np.ravel(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k))
    blocks = op.batch * np.ceil(m / TILE) * np.ceil(n / TILE)
    return [np.log2(m), np.log2(k), np.log2(blocks / gpu.sms), (n * k) % 64 == 0]


_KIND = ("dtype", "weight_dtype", "out_dtype", "batch", "quantiser")
GEMM = common.Family(
    name="gemm",
    op=Gemm,
    shapes={
        "gemm": common.Shape(
            ("m", "n", "k"),
            {"dtype": "bf16", "weight_dtype": None},
            lambda values: Gemm(values["m"], values["n"], values["k"], values["dtype"], values["weight_dtype"]),
            ("dtype", "weight_dtype"),
            itemgetter("m", "n", "k"),
        )
    },
    step_sizes=("m",),
    sizes=lambda op: common.all_floats(op.m, op.n, op.k),
    size_of_one=lambda op: common.all_lone(op.m, op.n, op.k),
    kind=attrgetter(*_KIND),
    core=GemmPhysics,
    core_key=attrgetter(*_KIND),
    # Narrower weights are multiplied as inputs are.
    swept_core=lambda op, gpu: GemmPhysics(op, gpu, products_of_sweep(replace(op, weight_dtype=op.dtype), gpu)),
    timed_by=lambda op, engine: op if op.quantiser else replace(op, quantiser=engine),
    features={"gemm": FEATURES, "gemm fp8 cutlass": FP8_FEATURES},
    shares=SHARES,
    pipes=_pipes,
    limits=lambda op, gpu: common.product_limits(op, gpu, op.bytes_read + op.bytes_written),
    work=_work,
    throttled=("gemm",),
    variants=_variants,
    # The ratio overstates what memory bandwidth does to kernels whose operands are warm (H100 and H200).
    trust={"fp8": 0.75, "fp8_block": 0.75, "nvfp4": 0.75},
    between_kernels={"": (1.03, 0.5e-6), "fp8": (1.0, 0.5e-6)},
    spread={"gemm": 3.7, "lm_head": 1.9},
    typical=lambda op: (f"gemm/{op.dtype}", "gemm"),
    ceiling=common.Ceiling(
        features=("log_m", "log_k", "log_rounds", "aligned"),
        shape=_ceiling_shape,
        variant=lambda op: op.dtype if op.dtype != "fp16" else "bf16",
        read_again=lambda op: TABLE_COPIES * np.ravel(op.weight_bytes),
        beside=_quantised,
    ),
)
