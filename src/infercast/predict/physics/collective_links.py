"""What joins the GPUs of a node, as a collective sees it: rates of links, and how long a short message takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.hardware.kernels import by_kernels
from infercast.hardware.pcie import ring_rate
from infercast.predict.physics.either import Kit, Number, Plain

WITHOUT_SWITCH = ("pascal", "volta", "turing", "ampere", "ampere-ga10x", "ada", "blackwell-rtx")
"""Those whose switches, if they have any, neither reduce nor multicast."""
SWITCHED = {**dict.fromkeys(WITHOUT_SWITCH, False), "hopper": True, "blackwell": True}
FLAG_DELAY = {**dict.fromkeys(WITHOUT_SWITCH, 1.0), "hopper": 1.0, "blackwell": 3.0 / 2.3}
"""How much longer a flag takes to a peer and back than between GPUs of Hopper at the same clock: a chip of two dies
behind faster, error-corrected links. NCCL's smallest all-reduce over symmetric memory, tuned alike, takes 3 us among
eight B200 and 2.3 us among eight H200 or H800 (github.com/NVIDIA/nccl/issues/1940)."""
REFERENCE_CLOCK = 1.83e9
"""Latencies are of a GPU of Hopper at this clock."""


class Priced(NamedTuple):
    """One algorithm: its time, and what it is made of."""

    seconds: Number
    latency: Number
    transfer: Number
    algorithm: Number


def merge(x: Kit, first: Number, one: Callable[[], Priced], other: Callable[[], Priced]) -> Priced:
    """``one`` where ``first`` holds, else ``other``; a single message is priced by the one that it takes."""
    if x is Plain:
        return one() if first else other()
    return Priced(*[x.where(first, ours, theirs) for ours, theirs in zip(one(), other(), strict=True)])


def shorter(x: Kit, one: Priced, other: Priced) -> Priced:
    """``one`` where it takes less time, else ``other``."""
    return merge(x, one.seconds < other.seconds, lambda: one, lambda: other)


def link_rate(gpu: Gpu, gpus: int) -> float:
    """Bytes a second of each GPU's links, were all of them payload."""
    if gpu.is_linked(gpus):
        return gpu.nvlink_bandwidth
    return ring_rate(gpu, gpus)


def delay(gpu: Gpu, clock_power: float) -> float:
    """Latency against that of a GPU of Hopper, for kernels that slow down with this power of the clock."""
    return float((REFERENCE_CLOCK / gpu.boost_clock) ** clock_power * by_kernels(FLAG_DELAY, gpu))


def is_switched(gpu: Gpu, gpus: int) -> bool:
    """Whether a switch that reduces joins so many of them."""
    return by_kernels(SWITCHED, gpu) and gpu.is_linked(gpus)
