"""What each operator asks of each part of a GPU, in seconds at the datasheet's rates.

The *pipes* of a roofline pay for whole rounds: ``blocks`` thread blocks on ``sms`` multiprocessors take
``ceil(blocks / sms)`` of them. The hard *limit* is what no implementation on this GPU can be faster than: every
operation at the peak rate of its pipe, every byte that must move once at full bandwidth, nothing else. What a kernel
reaches is counted against this limit and the launch floor that any kernel pays.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.families import families_of
from infercast.predict.families.family import Array, Pipes


def pipes_of(op: Op, gpu: Gpu) -> Pipes:
    """Seconds each pipe is busy if nothing else holds it up."""
    return families_of(op)[0].pipes(op, gpu)


def limits_of(op: Op, gpu: Gpu) -> dict[str, Array]:
    """Seconds that each pipe needs at least, for one launch or an array of them."""
    return families_of(op)[0].limits(op, gpu)


def limit_seconds(op: Op, gpu: Gpu) -> Array:
    """The longest of them."""
    return np.asarray(reduce(np.maximum, limits_of(op, gpu).values()))


def at_least(op: Op, gpu: Gpu, seconds: Array, *, cold: bool = True) -> Array:
    """No product is faster than the tensor cores or, where what it reads is ``cold``, than reading it."""
    cold_bytes = families_of(op)[0].cold_bytes
    if cold_bytes is None:
        return seconds
    limit = np.ravel(op.flops) / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    if cold:
        limit = np.maximum(limit, np.ravel(cold_bytes(op)) / gpu.dram_bandwidth)
    return np.maximum(seconds, limit)
