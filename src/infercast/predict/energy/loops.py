"""Kernels repeated in a loop while a meter is read: their power by physics, and what a learner of readings may know.

A published table repeats a launch at most `MOST_LAUNCHES` times, with the same operands. So what is small stays in L2,
and loops of short kernels are over before the meter, which gives the mean of the last second, has seen them alone. A
loop that lasts longer than `METER_SECONDS` is *settled*. Rows of whole modules have several operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import BYTES, tensor_rate_of
from infercast.predict.energy.model import BoardPower, board_power
from infercast.predict.energy.work import work_of
from infercast.predict.physics.terms import miss_share

Array = npt.NDArray[Any]

PARTS = ("active_watts", "flop", "dram", "l2")
"""What of a board the energy of a launch is a sum of."""
MOST_LAUNCHES, METER_SECONDS = 3000, 1.3
SETTLED_SECONDS = 3.0
"""How long a loop is said to last where the kernel alone is asked for: the meter has long settled."""
CONSTANT = {"mla": (0.33, 0.5), "sparse_attention": (0.33, 0.5)}
"""Tables of whole modules fill weights and caches with one number (aiconfigurator, collect_mla_module.py), so that
hardly a bit changes: share of the energy of an operation, as counted on zeros, and of a byte, which is assumed."""
KEPT, SHARPNESS = 0.55, 4.0
"""Share of L2 that holds what a loop comes back to, and how sharp that is."""
SIZES = (
    *("m", "n", "k", "tokens", "hidden", "inter", "experts", "topk", "local_experts", "heads", "kv_heads", "head_dim"),
    *("window", "images", "rows", "read_per_row", "chunk", "channels", "queries", "keys", "sequences"),
)
"""What operators are told apart by."""
FEATURES = (
    *("log_loop", "raw_share", *(f"{name}_share" for name in PARTS), *(f"log2_{name}" for name in SIZES)),
    *("rate_bits", "weight_bits", "kv_bits", "operators", "updates", "kernel"),
)
_LOOP = 0
"""Where the length of a loop is among them."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops of kernels of one family on one GPU, one element each."""

    parts: Array
    """What each of a board's four numbers is multiplied by in the energy of a launch."""
    seconds: Array
    """Of a launch."""
    lasts: Array
    """Seconds that a loop lasts at most."""
    shape: Array
    """What a kernel is told apart by."""

    @property
    def is_settled(self) -> Array:
        """Whether the meter could see the kernel alone."""
        return np.asarray(self.lasts > METER_SECONDS)

    def raw_watts(self, board: BoardPower) -> Array:
        """Power by a board's numbers, if no limit bound."""
        numbers = np.array([getattr(board, name) for name in PARTS])
        return np.asarray(board.static_watts + self.parts @ numbers / self.seconds)

    def power(self, board: BoardPower) -> Array:
        """The same within the board's limit."""
        return np.minimum(board.held_watts, self.raw_watts(board))

    def features(self, board: BoardPower, *, settled: bool = False) -> Array:
        """One row a loop, columns as in `FEATURES`; ``settled``: as if it had lasted long enough for the meter."""
        numbers = np.array([getattr(board, name) for name in PARTS])
        shares = self.parts * numbers / (self.seconds * board.limit_watts)[:, None]
        columns = [np.log(self.lasts), self.raw_watts(board) / board.limit_watts, *shares.T, *self.shape.T]
        found = np.column_stack(columns)
        if settled:
            found[:, _LOOP] = np.maximum(found[:, _LOOP], np.log(SETTLED_SECONDS))
        return found


def loops_of(
    family: str, calls: Sequence[tuple[Op, int]], gpu: Gpu, seconds: Any, *, copies: int = 1, kernel: float = 0.0
) -> Loops:
    """Loops of operators with their launches, whose sizes may be arrays; ``seconds``: of all of them once.

    ``copies``: sets of operands that the loop goes round. ``kernel``: which of a family's kernels it is, by the number
    that a fit has given it; 0 is the default engine's.
    """
    seconds = np.atleast_1d(np.asarray(seconds, dtype=float))
    board, rows = board_power(gpu), seconds.size
    moved = sum(_flat(work_of(op).bytes, rows) * count for op, count in calls) * copies
    warm = 1.0 - miss_share(np.asarray(moved), KEPT * gpu.l2_bytes, SHARPNESS)
    total = np.zeros((rows, len(PARTS)))
    # A module's kernels share its time as they share its work: what is active is counted once.
    for op, count in calls:
        launches = count * np.column_stack([_flat(each, rows) for each in parts_of(board, op, seconds, warm)])
        total[:, 1:] += launches[:, 1:]
        total[:, 0] = np.maximum(total[:, 0], launches[:, 0])
    operation, byte = CONSTANT.get(family, (1.0, 1.0))
    total *= np.array([1.0, operation, byte, byte])
    return Loops(total, seconds, MOST_LAUNCHES * seconds * copies, _shape(calls, rows, kernel))


def parts_of(board: BoardPower, op: Op, seconds: Any, warm: Any) -> list[Any]:
    """What each of the four numbers is multiplied by in the energy of a launch."""
    nothing = replace(board, active_watts=0.0, flop=0.0, dram=0.0, l2=0.0, burst_watts=np.inf)
    return [replace(nothing, **{name: 1.0}).dynamic_joules(op, seconds, warm=warm) for name in PARTS]  # type: ignore[arg-type]


def _shape(calls: Sequence[tuple[Op, int]], rows: int, kernel: float) -> Array:
    """Sizes and formats of the operator that does most, and which kernel it is."""
    op = max((op for op, _ in calls), key=lambda each: float(np.sum(np.ravel(each.flops))))
    names = {each.name for each in fields(op)}  # type: ignore[arg-type]
    sizes = (getattr(op, name) if name in names else 0 for name in SIZES)
    columns = [np.log2(np.maximum(_flat(0 if size is None else size, rows), 0.5)) for size in sizes]
    rate = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "fp4": 4.0}.get(tensor_rate_of(op.compute_dtype), 32.0)
    dtype = str(getattr(op, "dtype", "bf16"))
    weight = 8.0 * BYTES.get(getattr(op, "weight_dtype", None) or dtype, 2.0)
    cached = 8.0 * BYTES.get(getattr(op, "kv_dtype", None) or "bf16", 2.0)
    updates = float(bool(getattr(op, "update", op.family == "state_update")))
    columns += [_flat(each, rows) for each in (rate, weight, cached, float(len(calls)), updates, kernel)]
    return np.column_stack(columns)


def _flat(value: Any, rows: int) -> Array:
    return np.asarray(np.broadcast_to(np.ravel(np.asarray(value, dtype=float)), rows))
