"""Kernels whose joules a board's own counter gave: ``measurements/GPU/power_bursts.json.gz``.

A kernel is launched again and again for a second or two, without a pause or for a share of the time (``duty``), so that
the clock stays up although the kernel alone would reach the power limit. Power is that of the time in which it ran.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infercast.errors import FileFormatError
from infercast.ops import Attention, Elementwise, Gemm, Op

NOT_WORK = ("tiny", "zeros")
"""What tells of idle power, and of operands that no model has."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One measured kernel."""

    name: str
    op: Op
    seconds: float
    """Of one launch."""
    watts: float
    """Mean board power while it ran."""
    is_steady: bool
    """Whether it ran without a pause, so that the power limit could bind."""
    warm: float
    """Share of its bytes that stay in L2 from launch to launch."""


def read_counted(path: Path, idle_watts: float) -> Iterator[Counted]:
    """All kernels of a file that do what kernels of models do."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = json.load(file)["kernels"]
        for row in rows:
            if not row["name"].startswith(NOT_WORK):
                yield _counted(row, idle_watts)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FileFormatError(path, f"is no file of counted joules: {problem!r}") from None


def _counted(row: dict[str, Any], idle_watts: float) -> Counted:
    watts = (row["joules"] - idle_watts * (row["seconds"] - row["busy"])) / row["busy"]
    warm = 1.0 if row["name"].endswith("in L2") else 0.0
    return Counted(row["name"], _op(row), row["busy"] / row["launches"], watts, row["duty"] == 1.0, warm)


def _op(row: dict[str, Any]) -> Op:
    kind, _, rest = row["name"].partition(" ")
    sizes = [int(each) for each in re.findall(r"\d+", rest)]
    if kind in ("gemm", "fp8"):
        m, n, k = sizes[:3]
        return Gemm(m, n, k, "fp8" if kind == "fp8" else "bf16")
    if kind == "attention":
        batch, heads, length, head_dim = sizes
        lengths = np.array([length])
        return Attention(lengths, lengths, heads, heads, head_dim, head_dim, sequences=np.array([batch]))
    return Elementwise("activation", 1, float(row["bytes"]), 0.0, 0.0)
