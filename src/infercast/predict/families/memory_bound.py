"""Memory-bound kernels: norms, activations, rotary embedding, KV writes, embedding, sampling and quantisation."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Elementwise
from infercast.ops.op import BY_HAND, FUSED_NORM, gated_activation, kv_write, norm, quantise, rope
from infercast.predict.array_api import Kit, Number, Physics, kit_of
from infercast.predict.families.family import Ceiling, Family, Shape, floats, fma_and_dram, lone

# Memory-bound kernels that an engine's compiler (PyTorch's) writes: norms, activations, rotations, quantising.
#
# A kernel that must see a row before it writes one (a *reduction*) takes it in whole chunks; rows of up to half a chunk
# stay in the registers of one warp. The time is a start, with one wait for each chunk, and the slowest of DRAM, L2 and
# the multiprocessors' own work.

CHUNK = 2048  # Values of a row that a block takes at once
COMPILED_L2_EFFICIENCY = 0.65
COMPILED_REFERENCE_CLOCK = 1.98e9


class _Short(NamedTuple):
    """Rows that one warp holds, half a chunk at most."""

    floor: float
    port: float
    row: float


class _CompiledKernel(NamedTuple):
    floor: float  # Seconds of an empty launch at ``REFERENCE_CLOCK``
    dram: float  # Share of the DRAM bandwidth that it reaches on large tensors
    cache: float  # Share of L2 that holds its tensors
    cliff: float  # How sharply the hits end there
    port: float  # Bytes a cycle that a multiprocessor moves with its blocks together
    row: float  # Cycles of a row on top of its bytes
    overlap: float  # How sharply the slowest pipe decides
    chunk: float = 0.0  # Cycles that a row waits for each of its chunks
    busy: float = 0.0  # Rows a multiprocessor that fill it half
    single: float = 1.0  # What rows of a single chunk cost of a chunk; two rows share a block there
    short: _Short | None = None


# Fitted on our own sweep of an H200. The rotation of latent attention starts as in an engine, where it is one kernel.
COMPILED = {
    "norm": _CompiledKernel(
        1.32e-6, 0.96, 0.894, 7.55, 39.4, 252.0, 2.58, 216.0, 1.28, 0.539, _Short(1.24e-6, 50.5, 90.8)
    ),
    "add_norm": _CompiledKernel(
        1.35e-6, 0.94, 0.334, 1.37, 40.4, 71.2, 2.95, 457.0, 2.57, 1.02, _Short(1.63e-6, 80.4, 56.8)
    ),
    "norm_quantise": _CompiledKernel(
        2.01e-6, 0.96, 0.65, 3.1, 8.28, 293.0, 2.31, 428.0, 1.26, 1.09, _Short(1.94e-6, 41.6, 191.0)
    ),
    "add_norm_quantise": _CompiledKernel(
        2.17e-6, 0.96, 0.205, 2.14, 19.4, 39.5, 1.96, 984.0, 1.46, 1.08, _Short(2.37e-6, 84.5, 54.0)
    ),
    "compiled_quantise": _CompiledKernel(
        1.23e-6, 0.95, 0.664, 3.14, 10.9, 316.0, 5.18, 503.0, 1.04, 0.757, _Short(1.62e-6, 41.1, 182.0)
    ),
    "activation": _CompiledKernel(1.07e-6, 0.96, 0.806, 8.0, 28.0, 15.2, 3.67),
    "rope": _CompiledKernel(1.31e-6, 0.938, 0.738, 5.56, 15.4, 9.82, 2.04),
    "latent_rope": _CompiledKernel(2.00e-6, 0.95, 0.7, 3.0, 4.0, 100.0, 3.0),
}


def compiled_terms(op: Elementwise, rows: Number, gpu: Gpu, x: Kit) -> tuple[Number, dict[str, Number]]:
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
    cache = moved / (gpu.l2_bandwidth * COMPILED_L2_EFFICIENCY)
    ports, blocks = per_sm * worked / port * cycle, per_sm * row * cycle
    start = floor * (0.45 + 0.55 * COMPILED_REFERENCE_CLOCK / gpu.boost_clock)
    launch = start + x.where(is_short, 0.0, chunks) * kernel.chunk * cycle + 0.0 * rows
    seconds = launch + x.soft_max(kernel.overlap, dram + 1e-12, cache, ports + blocks)
    return seconds, {"dram": dram, "l2": cache, "port": ports, "blocks": blocks, "launch": launch}


FEATURES = (
    "dram_share", "l2_share", "port_share", "blocks_share", "launch_share", "log_rows", "log_row_bytes",
    "log_rows_per_sm", "fill", "log_bytes_over_l2", "read_share", "log_microseconds",
)  # fmt: skip

OVERLAP = 4.0
L2_EFFICIENCY = 0.65
REFERENCE_CLOCK = 1.83e9


class _Kernel(NamedTuple):
    floor: float  # Seconds of an empty launch at ``REFERENCE_CLOCK``
    dram: float  # Share of the DRAM bandwidth that it reaches on large tensors
    cache: float  # Share of L2 that holds its tensors
    cliff: float  # How sharply the hits end there
    port: float  # Bytes a cycle that a multiprocessor moves with its blocks together
    block: float  # Cycles between the starts of two blocks on one multiprocessor
    row: float  # Bytes a cycle of one block alone
    full_row: float = 0.0
    """Bytes a row must read to fill its block with threads; a block of a shorter row starts sooner."""


# Fitted: quantise on H100, H200, L40S and B200 tables; the others so that kernels of vLLM on an H200 come out. The KV
# kernel starts a block of up to 512 threads a token. Small blocks: two kernels of GLM-5. Sampling is several kernels.
# Sorting by PyTorch, 70 sizes on an H200: off by 6 % in the median, by 17 % at most from 8 rows on.
# By hand, strided and row by row: SGLang's kernels on an H200, profiles of Llama 3.1 8B.
KERNELS = {
    FUSED_NORM: _Kernel(0.0, 1.00, 0.62, 2.6, 20.9, 0.0, 1e9),
    "head_norm": _Kernel(1.2e-6, 0.82, 0.7, 1.8, 30.0, 200.0, 200.0),
    "activation_quantise": _Kernel(1.5e-6, 0.85, 0.70, 1.8, 8.5, 251.0, 11.0),
    "normed_rope": _Kernel(1.6e-6, 0.85, 0.7, 1.8, 20.0, 200.0, 200.0),
    "small_blocks": _Kernel(1.3e-6, 0.85, 0.7, 1.8, 1e3, 150.0, 1e6),
    "kv_write": _Kernel(2.1e-6, 0.82, 0.5, 1.5, 12.0, 1350.0, 64.0, 2048.0),
    BY_HAND: _Kernel(1.6e-6, 0.85, 0.7, 1.8, 30.0, 150.0, 200.0),
    "row_quantise": _Kernel(2.0e-6, 0.50, 0.7, 1.8, 27.0, 170.0, 60.0),
    "strided_copy": _Kernel(2.1e-6, 0.85, 0.7, 1.8, 6.4, 0.0, 1e6),
    "routing": _Kernel(4.4e-6, 0.85, 0.7, 1.8, 1.5, 15.0, 64.0),
    "embedding": _Kernel(1.9e-6, 0.80, 0.5, 1.5, 26.0, 200.0, 64.0),
    "sampling": _Kernel(36.0e-6, 0.82, 0.8, 1.5, 26.0, 300.0, 64.0),
    "sorted_sampling": _Kernel(350.0e-6, 0.82, 0.3, 1.5, 1e3, 0.0, 1e9),
    # Not measured: the floor of a Triton kernel, and adapters that come from memory in every step.
    "lora_shrink": _Kernel(2.5e-6, 0.80, 0.05, 1.8, 30.0, 20.0, 1e6),
    "lora_expand": _Kernel(2.5e-6, 0.80, 0.05, 1.8, 30.0, 20.0, 1e6),
    "quantise": _Kernel(1.88e-6, 0.90, 1.03, 24.0, 27.0, 170.0, 20.0),
}


class MemoryBoundPhysics:
    """Memory-bound kernels: those that an engine's compiler writes (above), and others with one thread block a row.

    The time is a launch floor and the slowest of four pipes: DRAM for what L2 does not hold, L2, the multiprocessor's
    own load and store rate, and starting and streaming blocks. L2 holds traffic softly in a model, where a kernel reads
    what the last one wrote, and with a cliff in the quantising tables, which replay one buffer.
    """

    def __init__(self, op: Elementwise, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """By rows; an ``engine`` takes as long as a table."""
        del engine
        op, gpu, x = self.op, self.gpu, kit_of(rows)
        row_bytes = op.read_per_row + op.written_per_row
        kind = op.kind or op.family
        if kind in COMPILED:
            seconds, terms = compiled_terms(op, rows, gpu, x)
        else:
            seconds, terms = _terms(op, rows, gpu, KERNELS[kind], x)
        log2 = x.log2
        features = x.columns(
            *(term / seconds for term in terms.values()),
            log2(rows),
            log2(row_bytes),
            log2(rows / gpu.sms),
            x.fill(rows, gpu.sms),
            log2((rows * row_bytes + op.shared_read) / gpu.l2_bytes),
            op.read_per_row / x.larger(row_bytes, 1.0),
            log2(seconds * 1e6),
        )
        return Physics(seconds, terms, features)


def _terms(op: Elementwise, rows: Number, gpu: Gpu, kernel: _Kernel, x: Kit) -> tuple[Number, dict[str, Number]]:
    row_bytes = op.read_per_row + op.written_per_row
    moved = rows * row_bytes + op.shared_read
    missed = x.miss_share(moved, gpu.l2_bytes * kernel.cache, kernel.cliff)
    per_sm = rows / gpu.sms
    cycle = 1.0 / gpu.boost_clock
    dram = moved * missed / (gpu.dram_bandwidth * kernel.dram)
    cache = moved / (gpu.l2_bandwidth * L2_EFFICIENCY)
    port = per_sm * row_bytes / kernel.port * cycle
    filled = x.smaller(1.0, op.read_per_row / kernel.full_row) if kernel.full_row else 1.0
    blocks = (per_sm * kernel.block * filled + row_bytes / kernel.row) * cycle
    launch = kernel.floor * (0.45 + 0.55 * REFERENCE_CLOCK / gpu.boost_clock) + 0.0 * rows
    seconds = launch + x.soft_max(OVERLAP, dram + 1e-12, cache, port, blocks)
    return seconds, {"dram": dram, "l2": cache, "port": port, "blocks": blocks, "launch": launch}


NOT_STREAMED = ("sampling", "moe")  # What is several kernels: what was measured of single ones does not hold


def _rows(make: Callable[..., Elementwise], *sizes: str, **options: Any) -> Shape:
    return Shape(
        ("rows", *sizes), {}, lambda values: make(values["rows"], *(int(values[name]) for name in sizes), **options)
    )


MEMORY_BOUND = Family(
    name="memory_bound",
    op=Elementwise,
    shapes={
        "norm": _rows(norm, "width", residual=True),
        "activation": _rows(gated_activation, "width"),
        "rope": _rows(rope, "heads", "head_dim"),
        "kv_write": _rows(kv_write, "width"),
        "quantise": _rows(quantise, "width"),
    },
    step_sizes=("rows",),
    sizes=lambda op: floats(op.rows),
    size_of_one=lambda op: None if isinstance(op.read_per_row + op.written_per_row, np.ndarray) else lone(op.rows),
    kind=attrgetter("family", "kind"),
    core=MemoryBoundPhysics,
    features={"memory_bound": FEATURES},
    pipes=fma_and_dram,
    variants=lambda op, *_: ("",) if op.family == "quantise" and not op.kind else (op.kind or op.family,),
    # In an engine what is rotated lies apart in the projection's output, and quantising is fused with a little more.
    between_kernels={
        "": (1.0, 0.25e-6),
        "rope": (1.12, 0.1e-6),
        "add_norm_quantise": (1.18, 0.25e-6),
        "compiled_quantise": (1.12, 0.0),
    },
    spread={"moe": 6.7},
    typical=lambda op: ("routing" if op.family == "moe" else op.family,),
    ceiling=Ceiling(is_known=lambda op: op.family not in NOT_STREAMED),
)
