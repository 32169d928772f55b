"""Memory-bound kernels: norms, activations, rotary embedding, KV writes, embedding, sampling, quantising.

Those that an engine's compiler writes are timed in ``compiled.py``. Of the others one thread block takes one row. The
time is that of the slowest of four pipes: DRAM for what L2 does not hold, L2 for everything, the multiprocessor's own
load and store rate, and starting and streaming one block after another; a launch floor comes on top. How much of the
traffic L2 holds depends on who wrote it: softly in a model, where a kernel reads what the last one wrote; with a cliff
in the quantising tables, which replay one buffer.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.ops.elementwise import BY_HAND, FUSED_NORM, Elementwise
from infercast.predict.physics.compiled import COMPILED, compiled_terms
from infercast.predict.physics.either import Kit, Number, kit_of
from infercast.predict.physics.terms import Physics

FEATURES = (
    "dram_share",
    "l2_share",
    "port_share",
    "blocks_share",
    "launch_share",
    "log_rows",
    "log_row_bytes",
    "log_rows_per_sm",
    "fill",
    "log_bytes_over_l2",
    "read_share",
    "log_microseconds",
)

OVERLAP = 4.0
L2_EFFICIENCY = 0.65
REFERENCE_CLOCK = 1.83e9


class _Kernel(NamedTuple):
    """What the usual kernel of a family can do."""

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
    block: float
    """Cycles between the starts of two blocks on one multiprocessor."""
    row: float
    """Bytes a cycle of one block alone."""
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
    # Nobody measured these: the floor of a Triton kernel, and adapters that come from memory in every step.
    "lora_shrink": _Kernel(2.5e-6, 0.80, 0.05, 1.8, 30.0, 20.0, 1e6),
    "lora_expand": _Kernel(2.5e-6, 0.80, 0.05, 1.8, 30.0, 20.0, 1e6),
    "quantise": _Kernel(1.88e-6, 0.90, 1.03, 24.0, 27.0, 170.0, 20.0),
}


class MemoryBound:
    """Kernels of one kind on one GPU that only move bytes."""

    def __init__(self, op: Elementwise, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """So many rows; in an ``engine`` they take as long as in a table."""
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
    """Seconds in all, and of each pipe."""
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
