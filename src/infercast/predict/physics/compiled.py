"""Memory-bound kernels that an engine's compiler (PyTorch's) writes: norms, activations, rotations, quantising.

A kernel that must see a row before it writes one (a *reduction*) takes it chunk by chunk, always whole chunks: a row of
2,304 values takes as long as one of 4,096 where memory does not decide. Rows of up to one half chunk stay in the
registers of one warp. Kernels that write each value by itself do not know rows. The time is a start, with one wait for
each chunk, and the slowest of DRAM, L2 and the multiprocessors' own work.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.ops.elementwise import Elementwise
from infercast.predict.physics.either import Kit, Number

CHUNK = 2048
"""Values of a row that a block takes at once."""
L2_EFFICIENCY = 0.65
REFERENCE_CLOCK = 1.98e9


class _Short(NamedTuple):
    """Rows that one warp holds, half a chunk at most."""

    floor: float
    port: float
    row: float


class _Kernel(NamedTuple):
    """What a kernel can do."""

    floor: float
    """Seconds of an empty launch at ``REFERENCE_CLOCK``."""
    dram: float
    """Share of the DRAM bandwidth that it reaches on large tensors."""
    cache: float
    """Share of L2 that holds its tensors."""
    cliff: float
    """How sharply the hits end there."""
    port: float
    """Bytes a cycle that a multiprocessor moves with its blocks together."""
    row: float
    """Cycles of a row beside its bytes."""
    overlap: float
    """How sharply the slowest pipe decides."""
    chunk: float = 0.0
    """Cycles that a row waits for each of its chunks."""
    busy: float = 0.0
    """Rows a multiprocessor that fill it half."""
    single: float = 1.0
    """What rows of a single chunk cost of a chunk; two rows share a block there."""
    short: _Short | None = None


# Fitted on our own sweep of an H200. The rotation of latent attention starts as in an engine, where it is one kernel.
COMPILED = {
    "norm": _Kernel(1.32e-6, 0.96, 0.894, 7.55, 39.4, 252.0, 2.58, 216.0, 1.28, 0.539, _Short(1.24e-6, 50.5, 90.8)),
    "add_norm": _Kernel(1.35e-6, 0.94, 0.334, 1.37, 40.4, 71.2, 2.95, 457.0, 2.57, 1.02, _Short(1.63e-6, 80.4, 56.8)),
    "norm_quantise": _Kernel(
        2.01e-6, 0.96, 0.65, 3.1, 8.28, 293.0, 2.31, 428.0, 1.26, 1.09, _Short(1.94e-6, 41.6, 191.0)
    ),
    "add_norm_quantise": _Kernel(
        2.17e-6, 0.96, 0.205, 2.14, 19.4, 39.5, 1.96, 984.0, 1.46, 1.08, _Short(2.37e-6, 84.5, 54.0)
    ),
    "compiled_quantise": _Kernel(
        1.23e-6, 0.95, 0.664, 3.14, 10.9, 316.0, 5.18, 503.0, 1.04, 0.757, _Short(1.62e-6, 41.1, 182.0)
    ),
    "activation": _Kernel(1.07e-6, 0.96, 0.806, 8.0, 28.0, 15.2, 3.67),
    "rope": _Kernel(1.31e-6, 0.938, 0.738, 5.56, 15.4, 9.82, 2.04),
    "latent_rope": _Kernel(2.00e-6, 0.95, 0.7, 3.0, 4.0, 100.0, 3.0),
}


def compiled_terms(op: Elementwise, rows: Number, gpu: Gpu, x: Kit) -> tuple[Number, dict[str, Number]]:
    """Seconds in all, and of each pipe."""
    kernel = COMPILED[op.kind or op.family]
    row_bytes, reduced = op.read_per_row + op.written_per_row, op.reduced
    moved = rows * row_bytes
    chunks = x.ceil(reduced / CHUNK)
    of_chunks = x.where(chunks == 1.0, kernel.single, chunks) * CHUNK / x.larger(reduced, 1.0)
    is_short = (reduced > 0) & (reduced <= CHUNK // 2) & (kernel.short is not None)
    own = (kernel.floor, kernel.port, kernel.row)
    floor, port, row = (x.where(is_short, *pair) for pair in zip(kernel.short or own, own, strict=True))
    worked = row_bytes * x.where(is_short, 1.0, x.where(chunks > 0, of_chunks, 1.0))
    per_sm = rows / gpu.sms
    per_sm = per_sm * per_sm / (per_sm + kernel.busy)
    cycle = 1.0 / gpu.boost_clock
    missed = x.miss_share(moved, gpu.l2_bytes * kernel.cache, kernel.cliff)
    dram = moved * missed / (gpu.dram_bandwidth * kernel.dram)
    cache = moved / (gpu.l2_bandwidth * L2_EFFICIENCY)
    ports, blocks = per_sm * worked / port * cycle, per_sm * row * cycle
    start = floor * (0.45 + 0.55 * REFERENCE_CLOCK / gpu.boost_clock)
    launch = start + x.where(is_short, 0.0, chunks) * kernel.chunk * cycle + 0.0 * rows
    seconds = launch + x.soft_max(kernel.overlap, dram + 1e-12, cache, ports + blocks)
    return seconds, {"dram": dram, "l2": cache, "port": ports, "blocks": blocks, "launch": launch}
