"""Rows that say nothing of a kernel on other chips: its tuner was not run, or its launches were not replayed.

FlashInfer's CUTLASS experts in fp8 take three to five times their physics on H100 and H200 in vLLM's tables, where
TensorRT-LLM's tables have the same kernels at 0.95 of it. The rule needs no names: a whole group of rows (one layout of
experts under one routing, one pair of sizes of a product) whose median takes more than twice the physics is left out of
models for other GPUs. A GPU's own model keeps it: there it is what was measured.

Where the host launched kernels one by one, a table has a floor that no kernel has: vLLM's products in fp8 by blocks
take 290 us on an L40S (Triton's), 80 on an H100 (DeepGEMM's), whatever their size. Rows of products that physics puts
below it are of the host, and no model is fitted to them. Their own time must not decide that: of those that stand out
the host was slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FAMILIES = ("moe", "gemm")
TWICE = float(np.log(2.0))
FLOOR, NEAR, HOST = 0.05, 1.25, float(np.log(8.0))
"""Share of the shortest rows that tells the floor of a table, how many times it a kernel must take to show beside the
host, and log(measured / physics) of the rows at the floor from which on it is the host's."""


def is_of_kernel(family: str, seconds: Array, residual: Array) -> Array:
    """For each row of a table, whether its kernel is longer than what the host takes to launch one.

    Of experts: whether it takes less than eight times the physics. Triton's in fp8 take 9 to 31 times as long on an
    L40S where 16 does not divide their width (704 over 8 GPUs), and a forest gave a part of that to others.
    """
    if family not in FAMILIES or not seconds.size:
        return np.ones(seconds.size, dtype=bool)
    if family == "moe":
        return np.asarray(residual <= HOST)
    floor = np.quantile(seconds, FLOOR)
    by_host = np.median(residual[seconds <= NEAR * floor]) > HOST
    physics = seconds / np.exp(residual)
    return np.asarray(physics > NEAR * floor if by_host else np.ones(seconds.size, dtype=bool))


def is_usual(family: str, residual: Array, group: Array) -> Array:
    """For each row, whether its group's median log(measured / physics) is below that bar."""
    if family not in FAMILIES:
        return np.ones(residual.size, dtype=bool)
    _, which = np.unique(group, return_inverse=True)
    order = np.lexsort((residual, which))
    starts = np.searchsorted(which[order], np.arange(which.max(initial=-1) + 2))
    middles = residual[order][(starts[:-1] + starts[1:] - 1) // 2]
    return np.asarray(middles[which] <= TWICE)
