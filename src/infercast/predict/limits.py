"""What each operator asks of each part of a GPU, in seconds at the datasheet's rates.

The *pipes* of a roofline pay for whole rounds: ``blocks`` thread blocks on ``sms`` multiprocessors take
``ceil(blocks / sms)`` of them. The hard *limit* is what no implementation on this GPU can be faster than: every
operation at the peak rate of its pipe, every byte that must move once at full bandwidth, nothing else. What a kernel
reaches is counted against this limit and the launch floor that any kernel pays.
"""

from __future__ import annotations

from functools import reduce
from math import inf
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.families import families_of
from infercast.predict.families.pipes import Array, Pipes
from infercast.predict.physics.either import Number


def pipes_of(op: Op, gpu: Gpu) -> Pipes:
    """Seconds each pipe is busy if nothing else holds it up."""
    return families_of(op)[0].pipes(op, gpu)


def limits_of(op: Op, gpu: Gpu) -> dict[str, Array]:
    """Seconds that each pipe needs at least, for one launch or an array of them."""
    return families_of(op)[0].limits(op, gpu)


def limit_seconds(op: Op, gpu: Gpu) -> Array:
    """The longest of them."""
    return np.asarray(reduce(np.maximum, limits_of(op, gpu).values()))


class Floor:
    """No product is faster than the tensor cores or, where what it reads is ``cold``, than reading it."""

    def __init__(self, op: Op, gpu: Gpu, *, cold: bool = True) -> None:
        """For all products like ``op`` on one GPU."""
        self._work, self._peak = families_of(op)[0].work, gpu.dense_flops(tensor_rate_of(op.compute_dtype))
        self._bandwidth = gpu.dram_bandwidth if cold else inf

    def __call__(self, op: Op, size: Any, seconds: Number) -> Number:
        """The seconds, or what the hardware takes where that is more."""
        if self._work is None:
            return seconds
        flops, moved = self._work(op, size)
        if isinstance(seconds, np.ndarray):
            limit = np.maximum(np.ravel(flops) / self._peak, np.ravel(moved) / self._bandwidth)
            return np.maximum(seconds, limit)
        return max(seconds, flops / self._peak, moved / self._bandwidth)
