"""Power readings of kernels repeated in a loop: their physics, and a learned correction for metered boards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp
from typing import Any

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.lazy_classes import dataclass, fields, replace
from infercast.ops import Gemm, Op
from infercast.ops.op import BYTES, quantise, tensor_rate_of
from infercast.predict.array_api import Array, miss_share
from infercast.predict.board_power import BoardPower, board_power, work_of
from infercast.predict.fitted import Artifact, Forest, Inputs, load_artifact

PARTS = ("active_watts", "flop", "dram", "l2")  # What of a board the energy of a launch is a sum of
MOST_LAUNCHES, METER_SECONDS = 3000, 1.3
DEFAULT_KERNEL = 0.0  # The number that a fit gives the default engine's kernel of a family
CONSTANT = {"mla": (0.33, 0.5), "sparse_attention": (0.33, 0.5)}
"""Tables of whole modules repeat one number: share of an operation's energy on zeros, and of a byte's (assumed)."""
COPIES, COPIED = 6, ("bf16", "fp8")
"""Copies of the weights that tables of the default engine's products go round, and in which formats."""
KEPT, SHARPNESS = 0.55, 4.0  # Share of L2 that holds what a loop comes back to, and how sharp that is
SIZES = (
    *("m", "n", "k", "tokens", "hidden", "inter", "experts", "topk", "local_experts", "heads", "kv_heads", "head_dim"),
    *("window", "images", "rows", "read_per_row", "chunk", "channels", "queries", "keys", "sequences"),
)
FEATURES = (
    *("log_loop", "raw_share", *(f"{name}_share" for name in PARTS), *(f"log2_{name}" for name in SIZES)),
    *("rate_bits", "weight_bits", "kv_bits", "operators", "updates", "kernel"),
)


@dataclass(frozen=True, slots=True)
class Loops:
    """Kernels of one family on one GPU, each repeated in a loop while a meter is read.

    A published table repeats a launch at most `MOST_LAUNCHES` times with the same operands: what is small stays in L2,
    and a loop shorter than `METER_SECONDS` is over before the meter has *settled*.
    """

    parts: Array  # What each of a board's four numbers is multiplied by in the energy of a launch
    seconds: Array  # Of a launch
    lasts: Array  # Seconds that a loop lasts at most
    shape: Array  # Sizes and formats of the kernel

    @property
    def is_settled(self) -> Array:
        """Whether the meter could see the kernel alone."""
        return np.asarray(self.lasts > METER_SECONDS)

    def raw_watts(self, board: BoardPower) -> Array:
        """Power by a board's numbers, if no limit bound."""
        numbers = np.array([getattr(board, name) for name in PARTS])
        return np.asarray(board.idle_watts + self.parts @ numbers / self.seconds)

    def power(self, board: BoardPower) -> Array:
        return np.minimum(board.held_watts, self.raw_watts(board))

    def features(self, board: BoardPower) -> Array:
        numbers = np.array([getattr(board, name) for name in PARTS])
        shares = self.parts * numbers / (self.seconds * board.limit_watts)[:, None]
        columns = [np.log(self.lasts), self.raw_watts(board) / board.limit_watts, *shares.T, *self.shape.T]
        return np.column_stack(columns)


def loops_of(family: str, calls: Sequence[tuple[Op, int]], gpu: Gpu, seconds: Any, *, copies: int = 1) -> Loops:
    """Loops of operators with their launches, of ``seconds`` once, going round ``copies`` of the operands."""
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
    return Loops(total, seconds, MOST_LAUNCHES * seconds * copies, _shape(calls, rows))


def tabled_calls(op: Op) -> tuple[tuple[Op, int], ...]:
    """What tables time as one: a product in a narrow format comes with the kernel that quantises its input."""
    if not isinstance(op, Gemm) or op.dtype in ("bf16", "fp16"):
        return ((op, 1),)
    quantised = replace(quantise(op.m, 1), read_per_row=2.0 * op.k, written_per_row=1.0 * op.k)  # type: ignore[arg-type]
    return ((op, 1), (quantised, 1))


def copies_of(op: Op) -> int:
    """Sets of operands that a table of the default engine goes round."""
    return COPIES if isinstance(op, Gemm) and op.dtype in COPIED and op.weight_dtype in (None, op.dtype) else 1


def parts_of(board: BoardPower, op: Op, seconds: Any, warm: Any) -> list[Any]:
    """What each of the four numbers is multiplied by in the energy of a launch."""
    nothing = replace(board, active_watts=0.0, flop=0.0, dram=0.0, l2=0.0, burst_watts=np.inf)
    return [replace(nothing, **{name: 1.0}).dynamic_joules(op, seconds, warm=warm) for name in PARTS]  # type: ignore[arg-type]


def _shape(calls: Sequence[tuple[Op, int]], rows: int) -> Array:
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
    columns += [_flat(each, rows) for each in (rate, weight, cached, float(len(calls)), updates, DEFAULT_KERNEL)]
    return np.column_stack(columns)


def _flat(value: Any, rows: int) -> Array:
    return np.asarray(np.broadcast_to(np.ravel(np.asarray(value, dtype=float)), rows))


POWER = Inputs(
    "power",
    {"power": FEATURES},
    ("data/energy.toml", "predict/metered.py", "predict/board_power.py"),
)
ARCHIVE = DATA / "fitted" / "power.npz"
ENGINE = "*"
OWN = frozenset(("encoder_attention", "recurrent", "attention_decode"))
"""Families whose settled loops read a kernel's own power: random operands, nothing compiles, no joules disagree."""
RECURRENT = frozenset(("scan", "state_update", "convolution"))
SIMPLE = frozenset(("gemm", "encoder_attention", "moe", "quantise"))


@dataclass(frozen=True, slots=True)
class Reading:
    watts: float
    low: float  # Lower end of the 80 % interval, from readings of shapes that were held out
    high: float
    factor: float  # Times the power by physics
    own: float  # How much of the factor is the kernel's own power: from 0, none of it, to 1
    ends: tuple[float, float]  # Ends of the 80 % interval of the factor's logarithm


@dataclass(frozen=True, slots=True)
class Reader:
    """A learned factor from power by physics to what a meter reads, of one family on one GPU.

    It is the kernel's own only where the loop settles and operands are random (`OWN`). Steps and runs never use it.
    """

    forest: Forest
    short: tuple[float, float]
    """Of the logarithm of the factor's error on held-out shapes, the 10th and the 90th percentile ..."""
    settled: tuple[float, float]  # ... and the same of loops that settle

    def factors(self, loops: Loops, board: BoardPower) -> Any:
        return np.exp(self.forest.predict(loops.features(board)))

    def read(self, loops: Loops, board: BoardPower) -> Any:
        return np.minimum(loops.power(board) * self.factors(loops, board), board.limit_watts)

    def ends(self, loops: Loops) -> Any:
        """Ends of the 80 % interval of the logarithm of each reading."""
        return np.where(loops.is_settled[:, None], self.settled, self.short)


def family_of_reading(op: Op) -> str | None:
    """The published family that a kernel belongs to; None where no table has kernels like it."""
    if any(np.size(getattr(op, name, 1)) > 1 for name in SIZES):
        return None
    if op.family == "attention":
        if getattr(op, "latent_kv", False) or getattr(op, "head_dim", 0) != getattr(op, "value_dim", 0):
            return None
        return "attention_decode" if np.all(np.asarray(op.queries) == 1) else "attention_prefill"  # type: ignore[attr-defined]
    return op.family if op.family in SIMPLE else "recurrent" if op.family in RECURRENT else None


def meter_reading(op: Op, gpu: Gpu, seconds: float) -> Reading | None:
    """What a meter shows while a kernel is repeated as in published tables; None without readings of its like."""
    family = family_of_reading(op)
    if getattr(op, "dtype", "") == "fp16":  # tables have 16 bits as bf16; kernels and operands are as large
        op = replace(op, dtype="bf16")  # type: ignore[type-var]
    return None if family is None else module_reading(family, tabled_calls(op), gpu, seconds, copies=copies_of(op))


def module_reading(
    family: str, calls: Sequence[tuple[Op, int]], gpu: Gpu, seconds: float, *, copies: int = 1
) -> Reading | None:
    """The same of a whole module: its kernels with their launches; families ``mla`` and ``sparse_attention``."""
    reader = reader_of(family, gpu.name)
    if reader is None or gpu.board_limit < gpu.tdp or gpu.clock_share != 1.0:
        return None
    board, loops = board_power(gpu), loops_of(family, calls, gpu, seconds, copies=copies)
    watts, (low, high) = float(reader.read(loops, board)[0]), reader.ends(loops)[0]
    ends = min(float(low), 0.0), max(float(high), 0.0)
    # The factor is believed bit by bit, so that power has no step where loops begin to settle.
    settles = min(max(float(loops.lasts[0]) / METER_SECONDS - 1.0, 0.0), 1.0)
    return Reading(
        watts=watts,
        low=watts * exp(ends[0]),
        high=min(watts * exp(ends[1]), board.limit_watts),
        factor=float(reader.factors(loops, board)[0]),
        own=settles if family in OWN else 0.0,
        ends=ends,
    )


@cache
def reader_of(family: str, gpu: str) -> Reader | None:
    """The factor of a family on a GPU by its name, where readings were published."""
    archive = power_archive()
    found = None if archive is None else archive.find(family, gpu, ENGINE, "")
    if archive is None or found is None:
        return None
    entry, forest = found
    low, high = archive.header["settled"][f"{family} {gpu}"]
    return Reader(forest, (entry.low, entry.high), (low, high))


@cache
def power_archive() -> Artifact | None:
    return load_artifact(ARCHIVE, POWER) if ARCHIVE.exists() else None
