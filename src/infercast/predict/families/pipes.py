"""What kernels of several families ask of a GPU alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.ops.op import Quantity, Size

Array = npt.NDArray[Any]
Pipes = dict[str, Quantity]
"""Seconds by pipe."""


def quantised_waves(blocks: Quantity, sms: int) -> Quantity:
    """``u`` >= 1: how much longer whole rounds take than a perfectly even spread, once there is more than one.

    A kernel that does not fill one round is cut finer (along k, or along the keys) until it does.
    """
    if np.ndim(blocks) == 0:
        return math.ceil(blocks / sms) * sms / float(blocks) if blocks > sms else 1.0
    rounds = np.ceil(blocks / sms)
    result: Quantity = np.where(rounds > 1, rounds * sms / np.maximum(blocks, 1), 1.0)
    return result


def dram_seconds(op: Op, gpu: Gpu) -> Quantity:
    """Every distinct byte moved once at full bandwidth."""
    seconds: Quantity = (op.bytes_read + op.bytes_written) / gpu.dram_bandwidth
    return seconds


def product_limits(op: Op, gpu: Gpu, least_bytes: Quantity) -> dict[str, Array]:
    """Of a product: what must move, and the tensor cores at their peak."""
    tensor = np.ravel(op.flops) / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    return {"dram": np.ravel(least_bytes) / gpu.dram_bandwidth, "tensor": tensor}


def floats(size: Size) -> Array:
    """Sizes of many kernels."""
    return np.atleast_1d(np.asarray(size, dtype=np.float64))


def lone(size: Size) -> float | None:
    """A size that is one number, also in an array of one."""
    if isinstance(size, np.ndarray):
        return float(size.item()) if size.size == 1 else None
    return float(size)
