"""Memory-bound kernels: norms, activations, rotary embedding, KV writes, embedding, sampling and quantisation."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Elementwise
from infercast.ops.op import gated_activation, kv_write, norm, quantise, rope
from infercast.predict.array_api import Kit, Number, Physics, kit_of
from infercast.predict.families import family as common

# Memory-bound kernels that an engine's compiler (PyTorch's) writes: norms, activations, rotations, quantising.
#
# A kernel that must see a row before it writes one (a *reduction*) takes it in whole chunks; rows of up to half a chunk
# stay in the registers of one warp. The time is a start, with one wait for each chunk, and the slowest of DRAM, L2 and
# the multiprocessors' own work.

CHUNK = 2048  # Values of a row that a block takes at once


COMPILED = common.constants("compiled")


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
    cache = moved / (gpu.l2_bandwidth * 0.65)
    ports, blocks = per_sm * worked / port * cycle, per_sm * row * cycle
    start = floor * (0.45 + 0.55 * 1.98e9 / gpu.boost_clock)
    launch = start + x.where(is_short, 0.0, chunks) * kernel.chunk * cycle + 0.0 * rows
    seconds = launch + x.soft_max(kernel.overlap, dram + 1e-12, cache, ports + blocks)
    return seconds, {"dram": dram, "l2": cache, "port": ports, "blocks": blocks, "launch": launch}


KERNELS = common.constants("memory-bound")


class MemoryBoundPhysics:
    """Memory-bound kernels: those that an engine's compiler writes (above), and others with one thread block a row. The
    time is a launch floor and the slowest of four pipes: DRAM for what L2 does not hold, L2, the multiprocessor's own
    load and store rate, and starting and streaming blocks. L2 holds traffic softly in a model, where a kernel reads
    what the last one wrote, and with a cliff in the quantising tables, which replay one buffer.
    """

    def __init__(self, op: Elementwise, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """By rows; an ``engine`` takes as long as a table."""
        op, gpu, x = self.op, self.gpu, kit_of(rows)
        row_bytes = op.read_per_row + op.written_per_row
        kind = op.kind or op.family
        if kind in COMPILED:
            seconds, terms = compiled_terms(op, rows, gpu, x)
        else:
            seconds, terms = _terms(op, rows, gpu, KERNELS[kind], x)
        log2 = x.log2
        features = x.columns(
            *(term / seconds for term in terms.values()), log2(rows), log2(row_bytes), log2(rows / gpu.sms),
            x.fill(rows, gpu.sms), log2((rows * row_bytes + op.shared_read) / gpu.l2_bytes),
            op.read_per_row / x.larger(row_bytes, 1.0), log2(seconds * 1e6),
        )  # fmt: skip
        return Physics(seconds, terms, features)


def _terms(
    op: Elementwise, rows: Number, gpu: Gpu, kernel: common.Constants, x: Kit
) -> tuple[Number, dict[str, Number]]:
    row_bytes = op.read_per_row + op.written_per_row
    moved = rows * row_bytes + op.shared_read
    missed = x.miss_share(moved, gpu.l2_bytes * kernel.cache, kernel.cliff)
    per_sm = rows / gpu.sms
    cycle = 1.0 / gpu.boost_clock
    dram = moved * missed / (gpu.dram_bandwidth * kernel.dram)
    cache = moved / (gpu.l2_bandwidth * 0.65)
    port = per_sm * row_bytes / kernel.port * cycle
    filled = x.smaller(1.0, op.read_per_row / kernel.full_row) if kernel.full_row else 1.0
    blocks = (per_sm * kernel.block * filled + row_bytes / kernel.row) * cycle
    launch = kernel.floor * (0.45 + 0.55 * 1.83e9 / gpu.boost_clock) + 0.0 * rows
    seconds = launch + x.soft_max(4.0, dram + 1e-12, cache, port, blocks)
    return seconds, {"dram": dram, "l2": cache, "port": port, "blocks": blocks, "launch": launch}


def _rows(make: Callable[..., Elementwise], *sizes: str, **options: Any) -> common.Shape:
    return common.Shape(
        ("rows", *sizes), {}, lambda values: make(values["rows"], *(int(values[name]) for name in sizes), **options)
    )


MEMORY_BOUND = common.Family(
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
    sizes=lambda op: common.floats(op.rows),
    size_of_one=lambda op: (
        None if isinstance(op.read_per_row + op.written_per_row, np.ndarray) else common.lone(op.rows)
    ),
    kind=attrgetter("family", "kind"),
    core=MemoryBoundPhysics,
    features={"memory_bound": common.feature_names("memory_bound")},
    pipes=common.fma_and_dram,
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
    # Of what is several kernels, what was measured of single ones does not hold.
    ceiling=common.Ceiling(is_known=lambda op: op.family not in ("sampling", "moe")),
)
