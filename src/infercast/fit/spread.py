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

GENERATION = {"attention_prefill": -0.1, "attention_decode": -0.1}
"""How much less than the physics of the kernels that were measured a new one takes, as a logarithm: what the next
generation of kernels gained. FlashAttention 3 on an H200 takes 0.04 (prompts) and 0.09 (decoding) less than the rates
of version 2 say in the median, 0.30 and 0.25 less in calls above 100 us."""
GENERATION_SPREAD = 0.1
"""Standard deviation of that gain, for want of more generations: as large as the gain."""
NEW_SHARE = {"attention_prefill": 0.65, "attention_decode": 0.65}
"""Of the interval that leaving out whole kernels says, what a new one needs: Triton's attention, which few run, is far
from all others, and widens it. With FlashAttention 3 new to A100 and L40S, and FlashInfer new to the others,
82 to 97 % of prompts and 68 to 94 % of decoding lie inside."""
BEFOREHAND = {"attention_decode": 0.09, "attention_prefill": 0.11, "moe": 0.2, "collective": 0.2}
"""Standard deviation of the common miss: attention's is that of A100, L40S and H200 estimated with the rates of each
other's kernel families, the experts' that of kernels whose constants were fitted for another."""
OTHERWISE = 0.1
WORTH = 2.0
"""GPUs that this knowledge counts for."""
NORMAL = 1.2816
"""The normal law's 90th percentile."""


def pooled_interval(family: str, misses: Sequence[Array], *, new_kernel: bool = False) -> tuple[float, float]:
    """Logarithms of the 80 % interval's ends, from log(measured / predicted) of each GPU by the others' model.

    ``new_kernel``: they are of kernels by those of other kernels, and what the next generation gains is not known.
    """
    common = np.array([np.median(of_gpu) for of_gpu in misses])
    own = np.concatenate([of_gpu - middle for of_gpu, middle in zip(misses, common, strict=True)])
    freedom = WORTH + common.size
    variance = (WORTH * BEFOREHAND.get(family, OTHERWISE) ** 2 + np.square(common).sum()) / freedom
    if new_kernel:
        variance += GENERATION_SPREAD**2
    # The first terms of the expansion of Student's percentile around the normal one.
    percentile = NORMAL + (NORMAL**3 + NORMAL) / (4.0 * freedom)
    low, high = np.quantile(own, [0.1, 0.9])
    step = percentile * np.sqrt(variance)
    share = NEW_SHARE.get(family, 1.0) if new_kernel else 1.0
    return -share * float(np.hypot(min(low, 0.0), step)), share * float(np.hypot(max(high, 0.0), step))
