"""Plain PyTorch operators on one GPU: the time that its pipes need, times an efficiency learned on an H200."""

from __future__ import annotations

from math import exp

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Op
from infercast.predict.estimate import Estimate
from infercast.predict.roofline import launch_floor


def estimate_op(op: Op, gpu: Gpu) -> Estimate:
    """One launch of a plain operator, among others like it, as in a CUDA graph."""
    computed = op.flops / (gpu.dense_flops(op.compute_dtype) if op.family != "tensor" else gpu.fma_flops)
    moved = (op.bytes_read + op.bytes_written) / gpu.dram_bandwidth
    terms = {"tensor": float(computed), "dram": float(moved), "launch": launch_floor(gpu)}
    seconds = terms["launch"] + float(np.maximum(computed / 0.6, moved / 0.8))
    return Estimate(seconds, seconds * exp(-0.4), seconds * exp(0.5), "physics", max(terms, key=terms.__getitem__))
