"""Dense matrix products: physics of cuBLAS, CUTLASS and DeepGEMM kernels, features, and the family record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu, load_gpu
from infercast.hardware.load import facts_of
from infercast.ops import Gemm
from infercast.ops.elementwise import quantise
from infercast.ops.op import Quantity, bytes_of, tensor_rate_of
from infercast.predict.array_api import Array, Doubles, Floats, GemmKit, Number, Physics, log2
from infercast.predict.families.family import (
    Ceiling,
    Family,
    Pipes,
    Shape,
    dram_seconds,
    product_limits,
    quantised_waves,
)
from infercast.predict.families.gemm_tiling import (
    CHUNK,
    Machine,
    Plan,
    Shapes,
    Traffic,
    choose_many,
    choose_one,
    plan_of,
)
from infercast.predict.identity import SWEEP, kernel_of

if TYPE_CHECKING:
    from infercast.predict.identity import KernelProfile


# Products in fp8 by vLLM's own CUTLASS kernels, each for a range of shapes that is known.
#
# Where a library chooses among many tiles, a product's tile is a guess. vLLM compiles seven fp8 kernels and picks one
# by the shape alone (read off the names of the kernels of a sweep), so the tiles of each product, and with them the
# work of the busiest SM, are certain. Models of a sweep start from what this takes.


# fmt: off
FP8_FEATURES: tuple[str, ...] = (
    "kernel", "log_m", "log_n", "log_k", "log_rounds", "whole_rounds", "round_fill", "log_tensor_us", "log_dram_us",
    "log_latency_us", "steps", "log_seconds", "m_fill", "n_fill", "k_fill", "log_row_tiles", "log_col_tiles")
# fmt: on
FP8_LOGARITHMIC = tuple(name.startswith("log_") for name in FP8_FEATURES)

# Rows and columns of a tile, values of k in one step, tiles of rows that run as one cluster.
KERNELS = (
    (16.0, 64.0, 256.0, 1.0),  # up to 16 rows
    (16.0, 64.0, 256.0, 1.0),  # up to 64 rows, narrow
    (64.0, 64.0, 256.0, 1.0),  # up to 64 rows
    (64.0, 128.0, 128.0, 2.0),  # up to 128 rows
    (128.0, 128.0, 128.0, 2.0),
    (256.0, 128.0, 128.0, 2.0),  # many rows, deep
    (128.0, 128.0, 128.0, 1.0),  # sizes that CUTLASS cannot align: a Triton kernel
)
FEW, SOME, MORE, MANY = 16.0, 64.0, 128.0, 8192.0
NARROW, DEEP, ALIGNED = 1280.0, 6144.0, 16.0
TENSOR, DRAM = 0.75, 0.94
"""Shares of the peaks that are reached."""
STEP_CYCLES = {128.0: 495.0, 256.0: 693.0}
"""Clock cycles of one step over k when nothing else holds it up."""
LAUNCH = 2.5e-6
_TABLE = np.array([(*kernel, STEP_CYCLES[kernel[2]]) for kernel in KERNELS]).T


def is_known(op: Gemm, gpu: Gpu) -> bool:
    """Whether these are the kernels of such products."""
    return op.dtype == "fp8" and op.weight_dtype in ("", None, "fp8") and facts_of(gpu).fp8_products == "cutlass"


def fp8_products(
    m: Number, n: Number, k: Number, a: Machine, x: GemmKit, *, engine: bool = True, featured: bool = True
) -> tuple[tuple[Number, tuple[Number, ...]], list[Number]]:
    """The time of products and its terms, and their features in their own units; weights are always cold."""
    del engine, featured
    if issubclass(x, Floats):
        which: Number = _kernel(m, n, k)
        rows, cols, depth, cluster = KERNELS[which]
        cycles = STEP_CYCLES[depth]
    else:
        which = _kernels(m, n, k)
        rows, cols, depth, cluster, cycles = _TABLE.astype(x.dtype)[:, which]
    gpu, ceil, larger = a.gpu, x.ceil, x.larger
    row_tiles, col_tiles, steps = ceil(m / rows), ceil(n / cols), ceil(k / depth)
    rounds = ceil(row_tiles / cluster) * cluster * col_tiles * a.per_sm
    whole = ceil(rounds)
    tensor = whole * rows * cols * k * (2.0 * gpu.sms / (a.peak * TENSOR))
    latency = whole * steps * cycles * (1.0 / gpu.boost_clock)
    moved = n * k * a.weight_bytes + m * k * a.input_bytes + m * n * a.output_bytes
    dram = moved * (1.0 / (gpu.dram_bandwidth * DRAM))
    seconds = larger(larger(tensor, latency), dram) + LAUNCH
    features = [
        *(which, m, n, k, rounds, whole, rounds / whole, tensor * 1e6, dram * 1e6, latency * 1e6, steps, seconds * 1e6),
        *(m / (row_tiles * rows), n / (col_tiles * cols), k / (steps * depth), row_tiles, col_tiles),
    ]
    return (seconds, (tensor, 0.0, latency, dram, 0.0, 0.0, LAUNCH, 0.0)), features


def _kernel(m: float, n: float, k: float) -> int:
    """Which of ``KERNELS`` runs a product."""
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
    """The same of many products."""
    which = 4 - (m <= MORE).astype(np.intp) - (m <= SOME) - ((m <= SOME) & (n <= NARROW))
    which[m <= FEW] = 0
    which[(m >= MANY) & (k >= DEEP)] = 5
    which[(n % ALIGNED != 0) | (k % ALIGNED != 0)] = 6
    return which


# What a learner is told of a matrix product.
#
# Trees only ask whether a value is above a border, so logarithms need not be taken to walk them: columns are made in
# their own units, and ``log_`` in a name says how a learner sees them.


SHARES = ("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise")
"""The terms of an estimate: the first four overlap, the others add up."""
# Tiles whose last-round fill is told to the learner: libraries choose among these and others.
FILL_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (192, 192))
# fmt: off
FEATURES: tuple[str, ...] = (
    "log_m", "log_n", "log_k", "log_seconds", "log_n_over_k", *(f"{name}_share" for name in SHARES),
    "miss", "log_bytes_over_l2", "log_weights_over_l2", "log_intensity_over_balance", "log_rounds", "round_fill",
    "log_tile_m", "log_tile_n", "log_split", *(f"fill_{rows}x{cols}" for rows, cols in FILL_TILES),
    "log_rounds_128x128", "m_fill_8", "m_fill_64", "m_fill_256", "n_fill_256", "k_fill_512", "log_bytes_x",
    "log_bytes_w", "scaled", "log_flops_per_sm_clock", "sustained", "log_dram_per_clock", "rows_share",
    "log_rows_per_sm")
# fmt: on
LOGARITHMIC = tuple(name.startswith("log_") for name in FEATURES)


def columns(s: Shapes, a: Machine, x: GemmKit, seconds: Number, terms: tuple[Number, ...], plan: Plan) -> list[Number]:
    """As in ``FEATURES``, without their logarithms; what is the same for all products is a plain number."""
    tile, split, rounds, _, _ = plan
    ceil, per_sm, m, n, k, each = x.ceil, a.per_sm, s.m, s.n, s.k, 1.0 / seconds
    _, _, m64, m128 = s.across
    n64, n128, n192, n256 = s.along
    m192, m256 = ceil(m * (1 / 192)), ceil(m * (1 / 256))
    # Rounds over whole rounds: how full the last one is on average.
    return [
        *(m, n, k, seconds * 1e6, n / k),
        *[term * each for term in terms],
        *(s.warm[0], s.moved * a.per_cache_byte, s.weights * a.per_cache_byte, s.outputs * k / s.moved * a.balance),
        *(rounds, rounds / ceil(rounds), tile.rows, tile.cols, split),
        *((r := m64 * n64 * per_sm) / ceil(r), (r := m64 * n128 * per_sm) / ceil(r)),
        *((r := m128 * n64 * per_sm) / ceil(r), (square := m128 * n128 * per_sm) / ceil(square)),
        *((r := m128 * n256 * per_sm) / ceil(r), (r := m256 * n128 * per_sm) / ceil(r)),
        *((r := m192 * n192 * per_sm) / ceil(r), square),
        *((r := m * (1 / 8)) / ceil(r), m * (1 / 64) / m64, m * (1 / 256) / m256),
        *(n * (1 / 256) / n256, (r := k * (1 / 512)) / ceil(r)),
        *a.fixed_features,
        *(m * each * a.row_seconds, m * a.per_chip),
    ]


def matrix(values: list[Number], rows: int, logarithmic: tuple[bool, ...] = LOGARITHMIC) -> Array:
    """A row of features for each product, as learners see them."""
    stacked = np.empty((rows, len(logarithmic)))
    for number, (value, is_logarithm) in enumerate(zip(values, logarithmic, strict=True)):
        stacked[:, number] = log2(value) if is_logarithm else value
    return stacked


# Dense matrix products: the best of a few tiles and split-K factors, each bound by the slowest of four pipes.
#
# A candidate cuts ``y`` into tiles and hands them to the SMs in rounds. Its time is a soft maximum of what the busiest
# SM multiplies, the operands re-read through L2, the latency of the loop over ``k`` and the DRAM traffic, plus storing
# the last tiles, adding up split-K partial sums and one launch.
#
# One formula serves one product as plain floats and many as arrays: see `predict.array_api`.


__all__ = [
    "FEATURES",
    "PRODUCTS",
    "SHARES",
    "Machine",
    "Products",
    "products_of_sweep",
    "sizes_of",
    "swept_products",
    "time_products",
]

QUANTISE = SHARES.index("quantise")


Timed = tuple[Number, tuple[Number, ...]]
"""Seconds of products in a table or in an engine, and their terms as in ``SHARES``."""
Compute = Callable[..., tuple[Timed, list[Number]]]
"""A function like `time_products`."""
Sizes = tuple[Array, Array, Array]


def time_products(
    m: Number, n: Number, k: Number, a: Machine, x: GemmKit, *, engine: bool, featured: bool = True
) -> tuple[Timed, list[Number]]:
    """The time of products, and their features in their own units.

    A table repeats a kernel over a few weight matrices and times the quantising of its input with it. An ``engine``
    finds weights cold and quantises by a kernel of its own; its features are a table's, which is what learners know.
    A single product that is not ``featured`` has none, which saves a third of its time.
    """
    s = Shapes(m, n, k, a, x)
    if issubclass(x, Floats):
        plan, cold_plan = choose_one(s, a)
        if engine and not featured:
            return _finish(s, a, x, cold_plan, s.cold, quantise=False), []
        tabled = _finish(s, a, x, plan, s.warm, quantise=a.scaled)
        timed = _finish(s, a, x, cold_plan, s.cold, quantise=False) if engine else tabled
        return timed, columns(s, a, x, *tabled, plan)
    which, cold_which = choose_many(s, a, x)
    plan = plan_of(s, a, x, which)
    tabled = _finish(s, a, x, plan, s.warm, quantise=a.scaled)
    values = columns(s, a, x, *tabled, plan)
    if not engine:
        return tabled, values
    timed = _finish(s, a, x, plan, s.cold, quantise=False)
    others = np.flatnonzero(which != cold_which)
    if others.size:  # few products are cut in another way when cold
        part = s.part(others)
        again = _finish(part, a, x, plan_of(part, a, x, cold_which[others]), part.cold, quantise=False)
        timed[0][others] = again[0]
        for term, value in zip(timed[1][:QUANTISE], again[1], strict=False):
            term[others] = value
    return timed, values


PRODUCTS: tuple[Compute, tuple[bool, ...]] = time_products, LOGARITHMIC


def _finish(s: Shapes, a: Machine, x: GemmKit, plan: Plan, traffic: Traffic, *, quantise: bool) -> Timed:
    """The chosen candidate with a soft maximum; ``quantise`` adds the kernel that quantises ``x``."""
    miss, moving = traffic
    _, _, _, (tensor, l2, latency, longer, store), reduce = plan
    dram = moving * longer
    launch = miss * a.cold_start + a.launch  # waiting for the first cold bytes is part of starting
    seconds = x.soft_max(a.constants.power, tensor, l2, latency, dram)
    seconds += store
    seconds += reduce
    seconds += launch
    quantising: Number = 0.0
    if quantise:
        each = a.quantise_row
        if a.quantise_chunk:
            each = x.ceil(s.k * (1.0 / CHUNK)) * a.quantise_chunk + a.quantise_row
        quantising = x.larger(s.m * s.k * a.quantise_value, s.m * each) + a.quantise
        seconds += quantising
    return seconds, (tensor, l2, latency, dram, store, reduce, launch, quantising)


class Products:
    """Products of one format on one GPU, as arrays."""

    def __init__(self, op: Gemm, gpu: Gpu, by: tuple[Compute, tuple[bool, ...]] = PRODUCTS) -> None:
        self.gpu, self._machine, (self._compute, self._logarithmic) = gpu, Machine(op, gpu), by

    def physics(self, size: Sizes, *, engine: bool = False) -> Physics:
        """Of ``sizes_of`` an operator."""
        m, n, k = size
        (seconds, terms), values = self._compute(m, n, k, self._machine, Doubles, engine=engine)
        named = {name: np.broadcast_to(term, m.shape) for name, term in zip(SHARES, terms, strict=True)}
        return Physics(seconds, named, matrix(values, m.size, self._logarithmic))


def swept_products(op: Gemm, gpu: Gpu) -> Products:
    """The same by the kernels that a sweep would have measured."""
    return Products(op, gpu, products_of_sweep(op, gpu))


def sizes_of(op: Gemm) -> Sizes:
    """Rows, columns and depths side by side."""
    m, n, k = np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k)))
    return m, n, k


def products_of_sweep(op: Gemm, gpu: Gpu) -> tuple[Compute, tuple[bool, ...]]:
    """What times products of a sweep, and which of its features are logarithms to a learner."""
    return (fp8_products, FP8_LOGARITHMIC) if is_known(op, gpu) else PRODUCTS


CUTLASS_FP8 = "gemm fp8 cutlass"
# Output tiles a library can choose from. Small ones waste less of a thin matrix and fill the chip sooner.
TILES = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256))
TILE = 128
"""Rows and columns of the usual one."""
COPIES = 6
"""Tables go round so many copies of the weights."""
USUAL = "usual"
"""The kernel that multiplies a format on most chips: cuBLAS, CUTLASS by the row, DeepGEMM by the block."""
SERVED = 9.0
"""Base-two logarithm of the n and k of products that models are made of: anchors are chosen for those."""


def _pipes(op: Gemm, gpu: Gpu) -> Pipes:
    """The best tile of the menu, against moving both operands and the result once."""
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    best: Any = np.inf
    for rows, columns in TILES:
        blocks = op.batch * np.ceil(np.asarray(op.m) / rows) * np.ceil(np.asarray(op.n) / columns)
        flops = 2.0 * rows * columns * op.k * blocks
        best = np.minimum(best, flops / rate * quantised_waves(blocks, gpu.sms))
    return {"tensor": best, "dram": dram_seconds(op, gpu)}


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


def _feature_set(gpu: str, engine: str, variant: str) -> str:
    """Products of a sweep in fp8 start from kernels that are known by name where a GPU has them."""
    is_fp8 = (engine, variant) == (SWEEP, "fp8") and is_known(Gemm(1, 1, 1, "fp8"), load_gpu(gpu))
    return CUTLASS_FP8 if is_fp8 else "gemm"


def _worth_measuring(features: Array) -> Array:
    """Products that models are made of; all where there are none."""
    smaller = np.minimum(*(features[:, FEATURES.index(name)] for name in ("log_n", "log_k")))
    served = np.flatnonzero(smaller >= SERVED)
    return served if served.size else np.arange(len(features))


def _quantised(op: Gemm) -> Quantity | None:
    """Quantised products of published tables were timed with the quantising of their input."""
    widest = np.asarray(quantise(np.ravel(np.asarray(op.m)), 1).bytes_read) * np.ravel(np.asarray(op.k))
    return None if op.dtype == "bf16" else np.asarray(1.5 * widest)


def _ceiling_shape(op: Gemm, gpu: Gpu) -> list[Any]:
    m, n, k = (np.ravel(np.asarray(size, dtype=np.float64)) for size in (op.m, op.n, op.k))
    blocks = op.batch * np.ceil(m / TILE) * np.ceil(n / TILE)
    return [np.log2(m), np.log2(k), np.log2(blocks / gpu.sms), (n * k) % 64 == 0]


GEMM = Family(
    name="gemm",
    position=0,
    op=Gemm,
    shapes={
        "gemm": Shape(
            ("m", "n", "k"),
            {"dtype": "bf16", "weight_dtype": None},
            lambda values: Gemm(values["m"], values["n"], values["k"], values["dtype"], values["weight_dtype"]),
        )
    },
    step_sizes=("m",),
    sizes=sizes_of,
    size_of_one=lambda op: (op.m, op.n, op.k),
    kind=attrgetter("dtype", "weight_dtype", "out_dtype", "batch", "quantiser"),
    core=Products,
    swept_core=swept_products,
    timed_by=lambda op, engine: op if op.quantiser else replace(op, quantiser=engine),
    features={"gemm": FEATURES, CUTLASS_FP8: FP8_FEATURES},
    feature_set=_feature_set,
    shares=("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise"),
    worth_measuring=_worth_measuring,
    pipes=_pipes,
    limits=lambda op, gpu: product_limits(op, gpu, op.bytes_read + op.bytes_written),
    work=_work,
    has_weights=True,
    throttled=("gemm",),
    variants=_variants,
    # The ratio overstates what memory bandwidth does to kernels whose operands are warm (H100 and H200).
    trust={"fp8": 0.75, "fp8_block": 0.75, "nvfp4": 0.75},
    between_kernels={"": (1.03, 0.5e-6), "fp8": (1.0, 0.0)},
    spread={"gemm": 3.7, "lm_head": 1.9},
    typical=lambda op: (f"gemm/{op.dtype}", "gemm"),
    ceiling=Ceiling(
        features=("log_m", "log_k", "log_rounds", "aligned"),
        shape=_ceiling_shape,
        variant=lambda op: op.dtype if op.dtype != "fp16" else "bf16",
        read_again=lambda op: COPIES * np.ravel(op.weight_bytes),
        beside=_quantised,
    ),
)
