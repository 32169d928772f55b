"""Collectives inside one node: a latency that grows with the number of GPUs, and the bytes that each link carries.

An engine's own all-reduce is one-shot (everyone reads everything) for small messages and two-shot above; long messages
and other kinds go through a library's rings (the fewest bytes a link), or through reduction inside the switch (NVLS) on
eight GPUs of Hopper or Blackwell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Collective
from infercast.predict.physics.terms import Array, Physics, columns, log2, soft_max

FEATURES = (
    "transfer_share",
    "log_message",
    "log_chunk",
    "gpus",
    "log_message_over_latency",
    "algorithm",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "log_microseconds",
)

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Share of the links that carries payload; two GPUs drive fewer channels than eight.
RING_EFFICIENCY, PAIR_LOSS = 0.895, 0.577
SHOT_EFFICIENCY = 0.72
SWITCH_EFFICIENCY = 0.66
PCIE_EFFICIENCY = 0.65
# Without a switch, PCIe traffic of more pairs shares the bridges and crosses between sockets.
PCIE_SHARING = 1.95
# Seconds at 1.83 GHz: of a kernel, and of each further GPU.
SHOT_LATENCY, SHOT_STEP, SECOND_SHOT = 4.34e-6, 0.055e-6, 3.4e-6
RING_LATENCY, RING_STEP = 5.4e-6, 0.68e-6
SWITCH_LATENCY = 7.6e-6
# A ring is many small steps of one thread block: its latency falls faster than the clock rises, and PCIe adds to it.
RING_CLOCK_POWER, PCIE_DELAY = 1.7, 1.65
# Below one, latency and transfer add up to more than their sum: a ring changes protocol in between.
RING_SOFTNESS, SHOT_SOFTNESS = 0.6, 0.90
SWITCH_ARCHITECTURES = ("hopper", "blackwell")
# Engines keep their own kernels to messages below this size, and one-shot kernels to those below the sizes here, by
# the largest number of GPUs each is for (vLLM, SGLang and TensorRT-LLM agree).
CUSTOM_LIMIT = 8 << 20
ONE_SHOT_LIMITS = {2: CUSTOM_LIMIT, 4: 512 << 10, 8: 256 << 10}


class Priced(NamedTuple):
    """One algorithm: its time, and what it is made of."""

    seconds: Array
    latency: Array
    transfer: Array
    algorithm: Array


def _merge(first: Array, one: Priced, other: Priced) -> Priced:
    """``one`` where ``first`` holds, else ``other``."""
    return Priced(*(np.where(first, ours, theirs) for ours, theirs in zip(one, other, strict=True)))


def _slowness(gpu: Gpu) -> float:
    """Latency against that of a 1.83 GHz GPU; only part of it is cycles of the GPU."""
    return 0.45 + 0.55 * 1.83e9 / gpu.boost_clock


def _link(gpu: Gpu, gpus: int) -> float:
    """Bytes a second that a ring keeps up on each GPU's links."""
    if gpu.nvlink_bandwidth > 0:
        return gpu.nvlink_bandwidth * (RING_EFFICIENCY - PAIR_LOSS / gpus)
    sharing: float = (gpus / 2) ** PCIE_SHARING
    return gpu.pcie_bandwidth * PCIE_EFFICIENCY / sharing


def _ring(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """The library's rings, or the switch's own reduction where that is faster."""
    slow = (1.83e9 / gpu.boost_clock) ** RING_CLOCK_POWER * (1.0 if gpu.nvlink_bandwidth > 0 else PCIE_DELAY)
    passes = 2 if op.kind == "all_reduce" else 1
    latency = (RING_LATENCY + passes * RING_STEP * (op.gpus - 1)) * slow + 0.0 * message
    transfer = op.link_bytes / _link(gpu, op.gpus) + 0.0 * message
    seconds = soft_max(RING_SOFTNESS, latency, transfer)
    switched = gpu.architecture in SWITCH_ARCHITECTURES and gpu.nvlink_bandwidth > 0
    if op.kind != "all_reduce" or op.gpus < 8 or not switched:
        return Priced(seconds, latency, transfer, 0.0 * message)
    inside = message * (op.gpus + 1) / op.gpus / (gpu.nvlink_bandwidth * SWITCH_EFFICIENCY)
    start = SWITCH_LATENCY * slow + 0.0 * message
    switch = Priced(soft_max(RING_SOFTNESS, start, inside), start, inside, 3.0 + 0.0 * message)
    return _merge(switch.seconds < seconds, switch, Priced(seconds, latency, transfer, 0.0 * message))


def _shots(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """An engine's own all-reduce: read all of the others at once, or reduce a share and gather the rest."""
    limit = next((size for most, size in ONE_SHOT_LIMITS.items() if op.gpus <= most), 0)
    one = message < limit
    link = gpu.nvlink_bandwidth * SHOT_EFFICIENCY if gpu.nvlink_bandwidth > 0 else _link(gpu, op.gpus)
    latency = (SHOT_LATENCY + SHOT_STEP * (op.gpus - 1) + np.where(one, 0.0, SECOND_SHOT)) * _slowness(gpu)
    transfer = np.where(one, (op.gpus - 1) * message, op.link_bytes) / link
    return Priced(soft_max(SHOT_SOFTNESS, latency, transfer), latency, transfer, np.where(one, 1.0, 2.0))


def collective(op: Collective, gpu: Gpu) -> Physics:
    """Price a collective over the GPUs of one node."""
    message = np.maximum(np.atleast_1d(np.asarray(op.message_bytes, dtype=np.float64)), 1.0)
    priced = _ring(op, gpu, message)
    # Without NVLink, engines give their own kernel up beyond two GPUs.
    if op.kind == "all_reduce" and (gpu.nvlink_bandwidth > 0 or op.gpus <= 2):
        priced = _merge(message < CUSTOM_LIMIT, _shots(op, gpu, message), priced)
    seconds, latency, transfer, algorithm = priced
    terms = {"launch": latency, "link": transfer}
    features = columns(
        transfer / (transfer + latency),
        log2(message),
        log2(message / op.gpus),
        op.gpus,
        log2(transfer / latency),
        algorithm,
        *(float(op.kind == kind) for kind in KINDS),
        log2(seconds * 1e6),
    )
    return Physics(seconds, terms, features)
