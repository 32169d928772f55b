"""What each operator asks of each part of a GPU, in seconds at the datasheet's rates.

The *pipes* of a roofline pay for whole rounds: ``blocks`` thread blocks on ``sms`` multiprocessors take
``ceil(blocks / sms)`` of them. The hard *limit* is what no implementation on this GPU can be faster than: every
operation at the peak rate of its pipe, every byte that must move once at full bandwidth, nothing else. What a kernel
reaches is counted against this limit and the launch floor that any kernel pays.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.families import families_of
from infercast.predict.families.family import Array, Pipes
from infercast.predict.physics.either import Number, kit_of


def pipes_of(op: Op, gpu: Gpu) -> Pipes:
    """Seconds each pipe is busy if nothing else holds it up."""
    return families_of(op)[0].pipes(op, gpu)


def limits_of(op: Op, gpu: Gpu) -> dict[str, Array]:
    """Seconds that each pipe needs at least, for one launch or an array of them."""
    return families_of(op)[0].limits(op, gpu)


def limit_seconds(op: Op, gpu: Gpu) -> Array:
    """The longest of them."""
    return np.asarray(reduce(np.maximum, limits_of(op, gpu).values()))


def at_least(op: Op, gpu: Gpu, size: Any, seconds: Number, *, cold: bool = True) -> Number:
    """No product is faster than the tensor cores or, where what it reads is ``cold``, than reading it."""
    work = families_of(op)[0].work
    if work is None:
        return seconds
    x, (flops, moved) = kit_of(seconds), work(op, size)
    seconds = x.larger(seconds, x.flat(flops) / gpu.dense_flops(tensor_rate_of(op.compute_dtype)))
    return x.larger(seconds, x.flat(moved) / gpu.dram_bandwidth) if cold else seconds
