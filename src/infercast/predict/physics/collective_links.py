"""What joins the GPUs of a node, as a collective sees it: rates of links, and how long a short message takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.hardware.pcie import ring_rate
from infercast.predict.physics.either import Kit, Number, Plain

REFERENCE_CLOCK = 1.83e9
"""Latencies are of an H200, at this clock."""


class Timed(NamedTuple):
    """One algorithm: its time, and what it is made of."""

    seconds: Number
    latency: Number
    transfer: Number
    algorithm: Number


def merge(x: Kit, first: Number, one: Callable[[], Timed], other: Callable[[], Timed]) -> Timed:
    """``one`` where ``first`` holds, else ``other``; a single message is timed by the one that it takes."""
    if x is Plain:
        return one() if first else other()
    return Timed(*[x.where(first, ours, theirs) for ours, theirs in zip(one(), other(), strict=True)])


def shorter(x: Kit, one: Timed, other: Timed) -> Timed:
    """``one`` where it takes less time, else ``other``."""
    return merge(x, one.seconds < other.seconds, lambda: one, lambda: other)


def link_rate(gpu: Gpu, gpus: int) -> float:
    """Bytes a second of each GPU's links, were all of them payload."""
    if gpu.is_linked(gpus):
        return gpu.nvlink_bandwidth
    return ring_rate(gpu, gpus)


def delay(gpu: Gpu, clock_power: float) -> float:
    """Latency against that of an H200, for kernels that slow down with this power of the clock."""
    return float((REFERENCE_CLOCK / gpu.boost_clock) ** clock_power * facts_of(gpu).flag_delay)


def is_switched(gpu: Gpu, gpus: int) -> bool:
    """Whether a switch that reduces joins so many of them."""
    return facts_of(gpu).switch_share > 0.0 and gpu.is_linked(gpus)
