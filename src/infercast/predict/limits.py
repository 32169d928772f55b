"""The hard limit of a kernel: no implementation on this GPU can take less.

Every operation at the peak rate of its pipe, every byte that must move once at full bandwidth, nothing else. What a
kernel reaches is counted against this limit and the launch floor that any kernel pays.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Elementwise, MoE, Op
from infercast.ops.dtypes import tensor_rate_of

Array = npt.NDArray[Any]


def limits_of(op: Op, gpu: Gpu) -> dict[str, Array]:
    """Seconds that each pipe needs at least, for one launch or an array of them."""
    if isinstance(op, Collective):
        return {"link": np.ravel(op.link_bytes) / gpu.link_bandwidth(op.gpus)}
    pipes = {"dram": np.ravel(_least_bytes(op)) / gpu.dram_bandwidth}
    if isinstance(op, Elementwise):
        return {"fma": np.ravel(op.flops) / gpu.fma_flops, **pipes}
    pipes["tensor"] = np.ravel(op.flops) / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    if isinstance(op, Attention):
        pipes["special"] = np.ravel(op.exponentials) / gpu.special_rate
    return pipes


def limit_seconds(op: Op, gpu: Gpu) -> Array:
    """The longest of them."""
    return np.asarray(reduce(np.maximum, limits_of(op, gpu).values()))


def _least_bytes(op: Op) -> Any:
    """What must move even if everything between the parts of a kernel stays on the chip."""
    if isinstance(op, MoE):
        return op.weight_bytes + 4.0 * op.hidden * np.asarray(op.tokens)
    return op.bytes_read + op.bytes_written
