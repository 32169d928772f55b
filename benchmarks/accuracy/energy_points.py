"""Published readings of board power as numbers: what each row did, how long its loop was, what the meter said.

The meter of these boards gives the mean of the last second. The collector repeats a launch at most 3,000 times, so that
loops of short kernels are over before the meter has seen them alone: a row is *settled* if 3,000 launches of all copies
of its operands take longer than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.fit.power_tables import PowerRows, read_power
from infercast.fit.samples import stable_hash
from infercast.hardware import Gpu, load_gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.default import default_artifact
from infercast.predict.energy.model import BoardPower, board_power
from infercast.predict.energy.work import work_of
from infercast.predict.learned import Learned
from infercast.predict.physics.terms import miss_share
from infercast.predict.profile import kernel_profile

Array = npt.NDArray[Any]

PARTS = ("active_watts", "flop", "dram", "l2")
MOST_LAUNCHES, METER_SECONDS = 3000, 1.3
CONSTANT = {"mla": (0.33, 0.5), "sparse_attention": (0.33, 0.5)}
"""Tables of whole modules fill weights and caches with one number (aiconfigurator, collect_mla_module.py), so that
hardly a bit changes: share of the energy of an operation, as counted on zeros, and of a byte, which is assumed."""
KEPT, SHARPNESS = 0.55, 4.0
"""Share of L2 that holds what a loop comes back to, and how sharp that is."""
SIZES = (
    "m",
    "n",
    "k",
    "tokens",
    "hidden",
    "inter",
    "experts",
    "topk",
    "local_experts",
    "heads",
    "kv_heads",
    "head_dim",
)
SIZES += ("window", "images", "rows", "read_per_row", "chunk", "channels", "queries", "keys", "sequences")


ARRAYS = ("parts", "seconds", "watts", "loop", "group", "shape")


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of one family, GPU and engine."""

    gpu: str
    family: str
    parts: Array
    """What each of a board's four numbers is multiplied by in the energy of a launch."""
    seconds: Array
    watts: Array
    loop: Array
    """Seconds that a loop lasts at most."""
    group: Array
    shape: Array
    """Logarithms of what a row is told apart by."""

    @property
    def is_settled(self) -> Array:
        """Whether the meter could see the kernel alone."""
        return np.asarray(self.loop > METER_SECONDS)

    def part(self, chosen: Array) -> Points:
        """Some of the rows."""
        return Points(self.gpu, self.family, *(getattr(self, name)[chosen] for name in ARRAYS))

    def raw_watts(self, board: BoardPower) -> Array:
        """Power by a board's numbers, if no limit bound."""
        numbers = np.array([getattr(board, name) for name in PARTS])
        return np.asarray(board.static_watts + self.parts @ numbers / self.seconds)

    def power(self, board: BoardPower) -> Array:
        """The same within the board's limit."""
        return np.minimum(board.held_watts, self.raw_watts(board))

    def features(self, board: BoardPower) -> Array:
        """What a learner of readings may know, the same on all boards."""
        raw = self.raw_watts(board)
        shares = (
            self.parts
            * np.array([getattr(board, name) for name in PARTS])
            / (self.seconds * board.limit_watts)[:, None]
        )
        columns = [np.log(self.seconds), np.log(self.loop), raw / board.limit_watts, *shares.T, *self.shape.T]
        return np.column_stack(columns)


def points_of(path: Path, every: int = 1, *, predicted: bool = False) -> list[Points]:
    """All rows of a file, or every so many of them, by family and GPU; with latencies as measured or ``predicted``."""
    found: dict[tuple[str, str], list[Points]] = defaultdict(list)
    predictor = Learned(default_artifact(), kernel_profile(), as_tabled=True)
    for each in read_power(path, every=every):
        rows = _estimated(each, predictor) if predicted else each
        found[rows.gpu, rows.family].append(_points(rows))
    return [_joined(each) for each in found.values()]


def _estimated(rows: PowerRows, predictor: Learned) -> PowerRows:
    """The same with the time that its kernels are estimated to take."""
    gpu = load_gpu(rows.gpu)
    return replace(rows, seconds=sum(_flat(predictor.seconds(op, gpu), rows) * count for op, count in rows.calls))


def parts_of(board: BoardPower, op: Op, seconds: Any, warm: Any) -> list[Any]:
    """What each of the four numbers is multiplied by in the energy of a launch."""
    nothing = replace(board, active_watts=0.0, flop=0.0, dram=0.0, l2=0.0, burst_watts=np.inf)
    return [replace(nothing, **{name: 1.0}).dynamic_joules(op, seconds, warm=warm) for name in PARTS]


def warm_share(rows: PowerRows, gpu: Gpu) -> Array:
    """Share of the bytes that a loop finds in L2."""
    moved = sum(_flat(work_of(op).bytes, rows) * count for op, count in rows.calls) * rows.copies
    return 1.0 - miss_share(np.asarray(moved), KEPT * gpu.l2_bytes, SHARPNESS)


def _points(rows: PowerRows) -> Points:
    gpu = load_gpu(rows.gpu)
    board, warm = board_power(gpu), warm_share(rows, gpu)
    total = np.zeros((rows.seconds.size, len(PARTS)))
    # A module's kernels share its time as they share its work: what is active is counted once.
    for op, count in rows.calls:
        launches = count * np.column_stack([_flat(each, rows) for each in parts_of(board, op, rows.seconds, warm)])
        total[:, 1:] += launches[:, 1:]
        total[:, 0] = np.maximum(total[:, 0], launches[:, 0])
    operation, byte = CONSTANT.get(rows.family, (1.0, 1.0))
    total *= np.array([1.0, operation, byte, byte])
    loop = MOST_LAUNCHES * rows.seconds * rows.copies
    prefix = f"{rows.family}|{rows.gpu}|"
    names, where = np.unique(rows.group, return_inverse=True)
    group = np.array([stable_hash(prefix + name) for name in names])[where]
    return Points(rows.gpu, rows.family, total, rows.seconds, rows.watts, loop, group, _shape(rows))


def _shape(rows: PowerRows) -> Array:
    """Sizes of the operator that does most, and which kernel it is."""
    op = max((op for op, _ in rows.calls), key=lambda each: float(np.sum(np.ravel(each.flops))))
    names = {each.name for each in fields(op)}  # type: ignore[arg-type]
    sizes = (getattr(op, name) if name in names else 0 for name in SIZES)
    columns = [np.log2(np.maximum(_flat(0 if size is None else size, rows), 0.5)) for size in sizes]
    width = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "fp4": 4.0}.get(tensor_rate_of(op.compute_dtype), 32.0)
    kind = float(stable_hash(f"{rows.engine}|{rows.kernel}") % 97)
    columns += [_flat(width, rows), _flat(kind, rows), _flat(len(rows.calls), rows)]
    columns.append(_flat(getattr(op, "kv_dtype", "") == "fp8", rows))
    return np.column_stack(columns)


def _flat(value: Any, rows: PowerRows) -> Array:
    return np.asarray(np.broadcast_to(np.ravel(np.asarray(value, dtype=float)), rows.seconds.shape))


def _joined(points: list[Points]) -> Points:
    arrays = (np.concatenate([getattr(each, name) for each in points]) for name in ARRAYS)
    return Points(points[0].gpu, points[0].family, *arrays)


def by_family(points: list[Points]) -> Iterator[tuple[str, dict[str, Points]]]:
    """Families with their rows by GPU."""
    for family in dict.fromkeys(each.family for each in points):
        yield family, {each.gpu: each for each in points if each.family == family}
