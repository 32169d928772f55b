"""One new token for each of many recurrent states: a kernel that reads and writes them, and hardly computes.

It takes what the slowest of three pipes does: memory for states that L2 does not hold, L2 for all, and the
multiprocessors, each with one state of one head after another; a launch comes on top. A table repeats one batch, so
that small ones stay in L2. An engine comes back to a layer's states after all other layers, and finds none there.
Nothing depends on how many tokens a sequence has had.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware.gpu import Gpu
from infercast.ops.recurrent import GATED_DELTA, KIMI_DELTA, MAMBA2, StateUpdate
from infercast.predict.physics.either import Number, kit_of
from infercast.predict.physics.terms import Physics

UPDATE_FEATURES = (
    "log_rows",
    "log_heads",
    "log_blocks_per_sm",
    "block_fill",
    "log_state_over_l2",
    "dram_share",
    "l2_share",
    "blocks_share",
    "launch_share",
    "log_microseconds",
)
OVERLAP = 4.0
WIDTH = 128.0
UNIT = WIDTH * WIDTH
"""Values of the states that cycles were fitted on."""


UNTUNED = 4.0


class _Kernel(NamedTuple):
    """Fitted to tables of L40S, H100 and H200 together, that of a state space to our own of an H200."""

    launch: float
    """Cycles of a launch with one state."""
    dram: float
    """Share of the memory's bandwidth that it reaches."""
    cache: float
    """Share of L2 that holds states."""
    cliff: float
    """How sharply the hits end there."""
    l2: float
    """Share of L2's bandwidth."""
    block: float
    """Cycles of a multiprocessor with one state ..."""
    wide: float = 0.0
    """... and the power of its width that they grow by beside its size: rows of a state are held in registers."""
    tuned: int = 0
    """The values of a head for which vLLM has a tuned launch, if not for all; ..."""
    untuned: float = 1.0
    """... all others take so many times the cycles: decode steps of Nemotron Nano 9B v2, whose heads have 80 values."""


KERNELS = {
    GATED_DELTA: _Kernel(7800.0, 0.91, 0.73, 20.0, 0.53, 2200.0),
    KIMI_DELTA: _Kernel(6500.0, 0.88, 0.72, 5.5, 0.53, 1000.0),
    MAMBA2: _Kernel(3800.0, 0.88, 0.73, 10.0, 0.60, 2600.0, 2.0, tuned=64, untuned=UNTUNED),
}


class Updating:
    """States of one kind on one GPU."""

    def __init__(self, op: StateUpdate, gpu: Gpu) -> None:
        self.op, self.gpu, self.kernel = op, gpu, KERNELS[op.kind]

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """So many sequences; in an ``engine`` their states are cold."""
        op, gpu, kernel, x = self.op, self.gpu, self.kernel, kit_of(rows)
        one = StateUpdate(1, op.heads, op.key_heads, op.key_dim, op.value_dim, op.kind, op.dtype, op.state_dtype)
        states, moved = rows * one.state_bytes, rows * (one.bytes_read + one.bytes_written)
        blocks = rows * (op.heads * op.key_dim * op.value_dim / UNIT * (op.key_dim / WIDTH) ** kernel.wide)
        if kernel.tuned and op.value_dim != kernel.tuned:
            blocks = blocks * kernel.untuned
        launch = x.like(moved, kernel.launch / gpu.boost_clock)
        missed = x.miss_share(states, gpu.l2_bytes * kernel.cache, kernel.cliff)

        def taken(share: Number) -> tuple[Number, dict[str, Number]]:
            terms = {
                "dram": moved * share / (gpu.dram_bandwidth * kernel.dram),
                "l2": moved / (gpu.l2_bandwidth * kernel.l2),
                "blocks": blocks / gpu.sms * kernel.block / gpu.boost_clock,
                "launch": launch,
            }
            return launch + x.soft_max(OVERLAP, terms["dram"] + 1e-12, terms["l2"], terms["blocks"]), terms

        seconds, terms = taken(missed)
        features = x.columns(
            *x.logs(rows, op.heads + 0.0 * rows, blocks / gpu.sms),
            x.fill(rows * op.heads, gpu.sms),
            x.log2(states / gpu.l2_bytes),
            *(term / seconds for term in terms.values()),
            x.log2(seconds * 1e6),
        )
        if engine:
            seconds, terms = taken(1.0)
        return Physics(seconds, terms, features)
