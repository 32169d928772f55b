"""What a meter reads of kernels on boards whose readings were published: a learned factor of power by physics.

Readings are not a kernel's power alone. Short loops are over before the meter has settled, first launches compile, and
the operands of some tables are zeros or one number. So a factor tells what *such a meter* shows. It is the kernel's own
only where the loop settles and operands are random numbers (`OWN`): where joules were counted on an H200, products
drew what physics says and not what the factor made of it (docs/energy.md). Steps and runs never use it: energies add
up there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from typing import Any

import numpy as np

from infercast.bundled import DATA
from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.artifact.artifact import Artifact, load_artifact
from infercast.predict.artifact.features import Inputs
from infercast.predict.artifact.forest import Forest
from infercast.predict.energy.loops import FEATURES, METER_SECONDS, SIZES, Loops, copies_of, loops_of, tabled_calls
from infercast.predict.energy.model import BoardPower, board_power

POWER = Inputs(
    "power",
    {"power": FEATURES},
    lambda *_: "power",
    ("data/energy.toml", "predict/energy/loops.py", "predict/energy/work.py"),
)
ARCHIVE = DATA / "fitted" / "power.npz"
ENGINE = "*"
OWN = frozenset(("encoder_attention", "recurrent", "attention_decode"))
"""Families whose settled loops read the kernel's own power: operands are random numbers, nothing compiles within the
loop, and no counted joules say otherwise."""
RECURRENT = frozenset(("scan", "state_update", "convolution"))
SIMPLE = frozenset(("gemm", "encoder_attention", "moe", "quantise"))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows of one loop, in watts."""

    watts: float
    low: float
    """Lower end of the 80 % interval, from readings of shapes that were held out."""
    high: float
    factor: float
    """Times the power by physics."""
    own: float
    """How much of the factor is the kernel's own power: from 0, none of it, to 1."""
    ends: tuple[float, float]
    """Ends of the 80 % interval of the factor's logarithm."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The factor of one family on one GPU."""

    forest: Forest
    short: tuple[float, float]
    """Of the logarithm of the factor's error on held-out shapes, the 10th and the 90th percentile ..."""
    settled: tuple[float, float]
    """... and the same of loops that settle."""

    def factors(self, loops: Loops, board: BoardPower) -> Any:
        """What power by physics is to be multiplied with, for each loop."""
        return np.exp(self.forest.predict(loops.features(board)))

    def read(self, loops: Loops, board: BoardPower) -> Any:
        """What the meter shows, for each loop."""
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
    """What a meter shows while one kernel of so many seconds is repeated as in published tables.

    None where nobody published readings: on other GPUs, of other kernels, under a power limit or at a locked clock.
    """
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
    """The archive that comes with infercast; None where it was left out."""
    return load_artifact(ARCHIVE, POWER) if ARCHIVE.exists() else None
