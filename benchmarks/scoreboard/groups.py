"""What published runs are grouped by, and errors of a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "tokens/s"}
FAMILY = re.compile(r"(gpt-oss|[a-z]+(?:-[rv])?-?\d+(?:\.\d+)?|[a-z-]+?)(?=[-.]|$)")
PRECISIONS = {
    "bfloat16": "bf16", "fp16": "bf16", "": "not stated", "fp8 (native block)": "fp8 in blocks",
    "fp8 (native)": "fp8 in blocks", "mxfp4 (native)": "mxfp4", "int4 (native w4a16)": "int4", "awq-int4": "int4",
    "UINT4": "int4", "UNSET": "not stated",
}  # fmt: skip
DIMENSIONS = {
    "source": "Source", "gpu": "GPU", "engine": "Engine", "family": "Model family", "precision": "Precision",
    "layout": "Layout", "load": "Load", "grade": "Grade",
}  # fmt: skip

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one quantity over some runs, as fractions of what was measured."""

    count: int
    mean: float
    median: float
    p90: float
    bias: float
    """Median of the signed errors: above 0 where forecasts are too high."""
    inside: float
    """Share of measured values in the 80 % intervals, as `simulate` shows them ..."""
    width: float
    """... and half the width of these in the mean, as a fraction of the forecast."""


def family_of(model: str) -> str:
    """``qwen3-coder-30b-a3b`` is a qwen3."""
    found = FAMILY.match(model.lower().rpartition("/")[2])
    return found[1] if found else model


def precision_of(stated: str) -> str:
    """One name for each format of weights."""
    return PRECISIONS.get(stated, stated)


def layout_of(layout: str) -> str:
    """Without the number of servers."""
    return "+".join(part for part in layout.split("+") if "servers" not in part)


def load_of(kind: str, about: str) -> str:
    """Closed loops by how many clients they have."""
    found = re.search(r"concurrency (\d+)", about)
    if not kind.startswith("closed") or found is None:
        return kind
    clients = int(found[1])
    return "closed loop, " + ("1 to 4" if clients <= 4 else "5 to 32" if clients <= 32 else "33 and more")


def errors_of(runs: Iterable[Run], quantity: str) -> Errors | None:
    """Errors of a quantity over the runs that tell it; None where none does."""
    told = [run[quantity] for run in runs if quantity in run]
    if not told:
        return None
    errors = np.array([each["error"] for each in told])
    sizes = np.abs(errors)
    return Errors(
        count=len(told),
        mean=float(sizes.mean()),
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(errors)),
        inside=float(np.mean([each["inside"] for each in told])),
        width=float(np.mean([each["width"] for each in told])),
    )


def grouped(runs: Iterable[Run], dimension: str) -> dict[str, list[Run]]:
    """Runs by one of the dimensions, the largest group first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run[dimension], []).append(run)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def over_sources(runs: Sequence[Run], quantity: str) -> float | None:
    """The median over sources of the median within each: no source counts more for having published more."""
    each = [errors.median for group in grouped(runs, "source").values() if (errors := errors_of(group, quantity))]
    return median(each) if each else None
