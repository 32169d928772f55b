"""Products in fp8 by vLLM's own CUTLASS kernels, each for a range of shapes that is known.

Where a library chooses among many tiles, a product's tile is a guess. vLLM compiles seven fp8 kernels and picks one by
the shape alone (read off the names of the kernels of a sweep), so the tiles of each product, and with them the work of
the busiest SM, are certain. Models of a sweep start from what this takes.
"""

from __future__ import annotations

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.gemm import Gemm
from infercast.predict.physics.gemm_machine import Machine
from infercast.predict.physics.numbers import Floats, Kit, Number
from infercast.predict.physics.terms import Array

# fmt: off
FEATURES: tuple[str, ...] = (
    "kernel", "log_m", "log_n", "log_k", "log_rounds", "whole_rounds", "round_fill", "log_tensor_us", "log_dram_us",
    "log_latency_us", "steps", "log_seconds", "m_fill", "n_fill", "k_fill", "log_row_tiles", "log_col_tiles")
# fmt: on
LOGARITHMIC = tuple(name.startswith("log_") for name in FEATURES)

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
    m: Number, n: Number, k: Number, a: Machine, x: Kit, *, engine: bool = True, featured: bool = True
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
