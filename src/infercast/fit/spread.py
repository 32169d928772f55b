"""How far a GPU that nobody measured may lie from what was learned on others.

A model of several GPUs misses a new one in two ways: every kernel by the same factor, and each kernel by its own. The
second is seen in thousands of rows, the first only once a GPU, and the physics had all of these GPUs in view when its
constants were chosen. So the variance of the common miss is the average of what was found and of what is known
beforehand, and its few degrees of freedom widen the interval as Student's law does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BEFOREHAND = {"attention_decode": 0.12, "attention_prefill": 0.16, "moe": 0.2, "collective": 0.2}
"""Standard deviation of the common miss: attention's is that of A100, L40S and H200 estimated with the rates of each
other's kernel families, the experts' that of kernels whose constants were fitted for another."""
OTHERWISE = 0.1
WORTH = 2.0
"""GPUs that this knowledge counts for."""
NORMAL = 1.2816
"""The normal law's 90th percentile."""


def pooled_interval(family: str, misses: Sequence[Array]) -> tuple[float, float]:
    """Logarithms of the 80 % interval's ends, from log(measured / predicted) of each GPU by the others' model."""
    common = np.array([np.median(of_gpu) for of_gpu in misses])
    own = np.concatenate([of_gpu - middle for of_gpu, middle in zip(misses, common, strict=True)])
    freedom = WORTH + common.size
    variance = (WORTH * BEFOREHAND.get(family, OTHERWISE) ** 2 + np.square(common).sum()) / freedom
    # The first terms of the expansion of Student's percentile around the normal one.
    percentile = NORMAL + (NORMAL**3 + NORMAL) / (4.0 * freedom)
    low, high = np.quantile(own, [0.1, 0.9])
    step = percentile * np.sqrt(variance)
    return -float(np.hypot(min(low, 0.0), step)), float(np.hypot(max(high, 0.0), step))
