"""GPUs of which no kernel was measured: the roofline, at what kernels of measured GPUs typically reach of it.

Of each family two numbers were fitted to the prices of A100, L40S, H100, H200 and B200 over shapes of models from one
token to 8,192 (benchmarks/accuracy/typical_efficiency.py): how many empty launches it takes, and which share of its
busiest pipe it reaches. Products on AMD's GPUs have numbers of their own, from published rows of tuned kernels (ROCm's
aiter, MIT) on MI300X and MI355X; the other families' kernels of other vendors are taken to be as good as NVIDIA's, and
the upper end of the interval holds what products lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Attention, Collective, Elementwise, Gemm, MoE, Op
from infercast.ops.dtypes import bytes_of
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.pipes import pipes_of
from infercast.predict.profile import family_of
from infercast.predict.roofline import launch_floor


class Efficiency(NamedTuple):
    """What kernels of a family typically reach."""

    launches: float
    """Empty launches that one takes besides its work."""
    share: float
    """Of the busiest pipe's rate."""
    low: float
    high: float
    """Logarithms of the ends of the 80 % interval, as kernels and GPUs differ."""


# Ends of the intervals: the spread of kernels in the fit, and a vendor's own way of being different (30 % faster to
# 45 % slower, which is how far AMD's products are from NVIDIA's), as the root of the sum of squares.
TYPICAL = {
    "gemm": Efficiency(2.6, 0.69, -0.38, 0.59),
    "attention_prefill": Efficiency(6.9, 0.52, -0.39, 0.52),
    "attention_decode": Efficiency(6.0, 0.82, -0.34, 0.49),
    "latent": Efficiency(8.2, 0.84, -0.32, 0.5),
    "moe": Efficiency(6.7, 0.72, -0.37, 0.72),
    "moe narrow": Efficiency(8.7, 0.5, -0.54, 0.87),
    "norm": Efficiency(0.94, 1.0, -0.4, 0.51),
    "activation": Efficiency(0.57, 1.0, -0.48, 0.48),
    "rope": Efficiency(0.72, 0.72, -0.5, 0.54),
    "quantise": Efficiency(0.93, 0.64, -0.68, 0.56),
    "kv_write": Efficiency(1.1, 0.39, -0.52, 0.64),
    "sampling": Efficiency(21.7, 0.92, -0.34, 0.46),
    "embedding": Efficiency(0.97, 1.0, -0.42, 0.51),
    "routing": Efficiency(2.3, 0.13, -0.31, 0.47),
    "collective": Efficiency(6.2, 0.55, -0.54, 0.58),
}
OF_VENDOR = {
    "AMD": {"gemm": Efficiency(3.6, 0.48, -0.46, 0.45), "gemm/fp8_block": Efficiency(4.5, 0.28, -0.20, 0.20)},
}
"""What is known better of a vendor's GPUs, by family or family and format."""
SOURCE = "typical"


class Typical:
    """The roofline at typical efficiencies."""

    is_cheap = True
    is_bound = False

    def describe(self, gpu: Gpu) -> str:
        """For people: what its prices on this GPU rest on."""
        return (
            "the roofline at what kernels of measured NVIDIA GPUs typically reach of it; no kernel of "
            f"{gpu.vendor}'s GPUs in an engine was measured, so intervals are wide"
        )

    def price(self, op: Op, gpu: Gpu) -> Estimate:
        """One launch of ``op``; arrays of shapes give arrays of prices."""
        pipes, floor, typical = pipes_of(op, gpu), launch_floor(gpu), efficiency_of(op, gpu)
        demands = np.stack(np.broadcast_arrays(typical.launches * floor, *pipes.values()))
        bound = np.array(["launch", *pipes])[np.argmax(demands, axis=0)]
        busiest = np.max(demands[1:], axis=0)
        seconds = typical.launches * floor + busiest / typical.share
        # Nothing is faster than the busiest pipe at its full rate.
        low, high = np.maximum(seconds * np.exp(typical.low), busiest), seconds * np.exp(typical.high)
        if seconds.ndim == 0:
            return Estimate(float(seconds), float(low), float(high), SOURCE, str(bound))
        return Estimate(seconds, low, high, SOURCE, bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        """The same without interval and reason, for those who price by the thousand."""
        typical = efficiency_of(op, gpu)
        busiest: Quantity = reduce(np.maximum, pipes_of(op, gpu).values())
        return typical.launches * launch_floor(gpu) + busiest / typical.share

    def explain(self, op: Op, gpu: Gpu) -> dict[str, float]:
        """The terms of one price: seconds of each pipe at its full rate and of launching, and the share reached."""
        typical = efficiency_of(op, gpu)
        terms = {name: float(np.ravel(value)[0]) for name, value in pipes_of(op, gpu).items()}
        return {**terms, "launch": typical.launches * launch_floor(gpu), "efficiency factor": typical.share}


def efficiency_of(op: Op, gpu: Gpu) -> Efficiency:
    """What kernels like this one typically reach on GPUs like this one."""
    own: Mapping[str, Efficiency] = OF_VENDOR.get(gpu.vendor, {})
    if isinstance(op, Gemm):
        return own.get(f"gemm/{op.dtype}") or own.get("gemm") or TYPICAL["gemm"]
    if isinstance(op, MoE):
        return TYPICAL["moe narrow" if bytes_of(op.weight_dtype or op.dtype) < 1 else "moe"]
    if isinstance(op, Attention):
        return TYPICAL["latent" if op.latent_kv else family_of(op)]
    if isinstance(op, Elementwise):
        return TYPICAL["routing" if op.family == "moe" else op.family]
    assert isinstance(op, Collective)
    return TYPICAL["collective"]
