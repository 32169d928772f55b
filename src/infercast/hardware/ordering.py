"""Which of two GPUs has more of everything, so that none of its kernels should take longer.

*Everything* is what a kernel can be bound by: multiprocessors, clocks, memory and its kind, caches, special functions,
and the tensor rate of every format that the other chip has. A chip that lacks a format which the other has is not above
it, whatever else it has.
"""

from __future__ import annotations

from infercast.hardware.gpu import Gpu

RATES = ("sms", "boost_clock", "sustained_clock", "fma_flops", "special_rate", "dram_bandwidth", "l2_bandwidth")
"""What a kernel on one GPU can be bound by, beside tensor rates and the size of the last cache."""
FORMATS = ("bf16", "fp8", "fp4")
"""What models are multiplied in; Blackwell Ultra gave int8 up for fp4."""
EQUAL = 0.999
"""Datasheets are rounded: what differs by less is the same."""
FAST_MEMORY = "hbm"


def rate_ratios(gpu: Gpu, other: Gpu) -> list[float]:
    """How many times as much the first has of each rate."""
    ratios = [getattr(gpu, name) / getattr(other, name) for name in RATES]
    return ratios + [gpu.dense_flops(dtype) / other.dense_flops(dtype) for dtype in FORMATS]


def has_at_least(gpu: Gpu, other: Gpu) -> bool:
    """Whether the first has at least as much of everything, of a generation at least as new.

    Boards with GDDR are never above chips with stacked memory: they reach less of their bandwidth.
    """
    if gpu.vendor != other.vendor or _capability(gpu) < _capability(other):
        return False
    if gpu.memory not in (other.memory, FAST_MEMORY):
        return False
    if any(other.supports(dtype) and not gpu.supports(dtype) for dtype in FORMATS[:2]):
        return False
    return min(*rate_ratios(gpu, other), gpu.l2_bytes / other.l2_bytes) >= EQUAL


def ratio_bounds(gpu: Gpu, other: Gpu) -> tuple[float, float]:
    """Between what a kernel's time on the first can lie, in times on the second.

    No kernel gains more than by the rate that grew most, or loses more than by the one that shrank most. A cache of
    another size can do more than its size says, but a larger one never harms.
    """
    ratios = rate_ratios(gpu, other)
    least = 1.0 / max(1.0, *ratios) if gpu.l2_bytes <= other.l2_bytes else 0.0
    most = 1.0 / min(1.0, *ratios) if gpu.l2_bytes >= other.l2_bytes else float("inf")
    return least, most


def _capability(gpu: Gpu) -> tuple[int, ...]:
    """Compute capabilities in order; other vendors' names have none."""
    parts = gpu.compute_capability.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
