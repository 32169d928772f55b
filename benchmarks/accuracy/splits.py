"""What is fitted on and what is tested on: the splits of `benchmarks/training/evaluate.py`, for everybody."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from infercast.lab.fit.train import HELD_OUT_SHARE
from points import Kernel, Points

ByGpu = dict[str, dict[Kernel, Points]]

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "moe", "collective")
COLUMNS = ("GEMM bf16", "GEMM fp8", "prefill", "decode", "MoE", "collectives")
GPUS = ("a100-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm")


@dataclass(frozen=True)
class Split:
    """Fit on ``sources``, test on ``target``; where they are the same GPU, one shape group in five is hidden."""

    sources: tuple[str, ...]
    target: str

    @property
    def is_measured(self) -> bool:
        return self.target in self.sources

    @property
    def name(self) -> str:
        return f"measured {self.target}" if self.is_measured else f"{', '.join(self.sources)} -> {self.target}"


MEASURED = (Split(("h200-sxm",), "h200-sxm"), Split(("b200-sxm",), "b200-sxm"))
UNSEEN = (Split(("a100-sxm", "l40s", "h200-sxm"), "b200-sxm"), Split(("a100-sxm", "l40s"), "h200-sxm"))


def divide(split: Split, points: ByGpu) -> tuple[ByGpu, dict[Kernel, Points]]:
    """(rows to fit on by GPU, rows to test on). Kernels with one group only cannot be divided and are left out."""
    if not split.is_measured:
        return {gpu: points[gpu] for gpu in split.sources if gpu in points}, points.get(split.target, {})
    known, hidden = {}, {}
    for kernel, rows in points.get(split.target, {}).items():
        is_hidden = rows.group % HELD_OUT_SHARE == 0
        if is_hidden.any() and not is_hidden.all():
            known[kernel], hidden[kernel] = rows.part(~is_hidden), rows.part(is_hidden)
    return {split.target: known}, hidden


def columns_of(family: str, kernel: Kernel, rows: Points) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of the table that rows of a kernel count in."""
    if family == "gemm":
        if kernel[1] in ("bf16", "fp8"):
            yield f"GEMM {kernel[1]}", rows.served
    else:
        yield COLUMNS[FAMILIES.index(family) + 1], np.ones(rows.seconds.size, dtype=bool)
