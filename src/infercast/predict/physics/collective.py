"""Collectives: a latency that grows with the number of GPUs, and the bytes that each link carries.

An engine's own all-reduce is one-shot (everyone reads everything) for small messages and two-shot above. Long messages
and other kinds go through a library's rings: by a protocol of short latency that wastes bandwidth, then by one of long
latency that does not; or through reduction inside the switch (NVLS) on eight GPUs of Hopper or Blackwell. An exchange
of all with all sends to each peer at once.

Between nodes a collective is two: one inside every node, and one among the nodes in which each GPU's own share of the
message crosses its own network adapter. Cards that no bridge joins talk over PCIe.
"""

from __future__ import annotations

from dataclasses import replace
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
SWITCH_ARCHITECTURES = ("hopper", "blackwell", "blackwell-ultra")
# Engines keep their own kernels (custom or over symmetric memory) to messages below so many bytes, by the largest
# number of GPUs each limit is for: vLLM 0.24 and SGLang 0.5.14, which counts the limit in. One-shot kernels end sooner.
CUSTOM_LIMITS = {
    ("vllm", "hopper"): {2: 64 << 20, 4: 32 << 20, 8: 64 << 20},
    ("vllm", "blackwell"): {2: 8 << 20, 4: 32 << 20, 8: 128 << 20},
    ("vllm", "blackwell-ultra"): {2: 4 << 20, 4: 32 << 20, 8: 64 << 20},
    ("sglang", "hopper"): {8: (16 << 20) + 1},
    ("sglang", "blackwell"): {8: (16 << 20) + 1},
    ("sglang", "blackwell-ultra"): {8: (16 << 20) + 1},
}
OTHER_CUSTOM_LIMITS = {"vllm": {8: 8 << 20}, "sglang": {8: (8 << 20) + 1}}
ONE_SHOT_LIMITS = {2: 64 << 20, 4: 512 << 10, 8: 256 << 10}


class _Protocol(NamedTuple):
    """How a library moves a message; times are of a 1.83 GHz GPU."""

    latency: float
    """Seconds of the kernel itself."""
    step: float
    """Seconds that each further GPU adds, on every pass around the ring."""
    efficiency: float
    """Share of the links that carries payload, among many GPUs."""
    pair_loss: float
    """What two GPUs, which drive fewer channels than eight, lose of it (twice)."""
    softness: float
    """Below one, latency and transfer add up to more than their sum."""


# Fitted on NCCL 2.26 to 2.29 on A100, H100 and H200.
SHORT = _Protocol(4.95e-6, 0.73e-6, 1.0, 0.0, 0.60)
BULK = _Protocol(10.8e-6, 0.39e-6, 0.84, 0.40, 0.68)
SWITCH = _Protocol(31e-6, 0.0, 0.72, 0.0, 0.68)
EXCHANGE = _Protocol(11.0e-6, 0.04e-6, 0.73, 0.20, 0.77)
# A ring turns to the bulk protocol where a GPU's share of the message would fill its links for so long.
BULK_FROM = 1.4e-6
# A short exchange: seconds of the kernel and of each further GPU, and bytes a second to one peer.
PEER_LATENCY, PEER_STEP, PEER_RATE = 6.1e-6, 0.38e-6, 5.9e9
# A library's kernels are many small steps of few thread blocks: their latency falls faster than the clock rises.
CLOCK_POWER = 1.8
# Seconds of an engine's own kernel at 1.83 GHz, of each further GPU, and of a second shot; share of the links it fills.
SHOT_LATENCY, SHOT_STEP, SECOND_SHOT = 4.34e-6, 0.055e-6, 3.4e-6
SHOT_EFFICIENCY, SHOT_SOFTNESS = 0.72, 0.90
# Without a switch, PCIe traffic of more pairs shares the bridges and crosses between sockets; it adds to latency, too.
PCIE_EFFICIENCY, PCIE_SHARING, PCIE_DELAY = 0.64, 1.86, 1.63
# Share of a network adapter's line rate that carries payload: not measured here, NCCL's users report 0.8 to 0.95.
NETWORK_EFFICIENCY, NETWORK_SOFTNESS = 0.85, 0.70


# In an engine GPUs do not come to a collective at the same moment, and all wait for the last: seconds for two of them,
# growing with the logarithm of their number. Tables are measured with GPUs that do nothing else.
RANK_SKEW = 1.5e-6


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
    """Bytes a second of each GPU's links, were all of them payload."""
    if gpu.is_linked(gpus):
        return gpu.nvlink_bandwidth
    return float(gpu.pcie_bandwidth * PCIE_EFFICIENCY / (gpus / 2) ** PCIE_SHARING)


def _limit(limits: dict[int, int], gpus: int) -> int:
    """Bytes that a kernel for so many GPUs ends at."""
    return next((size for most, size in limits.items() if gpus <= most), 0)


def _is_switched(gpu: Gpu, gpus: int) -> bool:
    return gpu.architecture in SWITCH_ARCHITECTURES and gpu.is_linked(gpus)


def _by(protocol: _Protocol, carried: Array, passes: int, op: Collective, gpu: Gpu, algorithm: float) -> Priced:
    """A library's kernel: ``carried`` bytes cross each GPU's links."""
    slow = (1.83e9 / gpu.boost_clock) ** CLOCK_POWER * (1.0 if gpu.is_linked(op.gpus) else PCIE_DELAY)
    share = protocol.efficiency - protocol.pair_loss / op.gpus if gpu.is_linked(op.gpus) else 1.0
    latency = (protocol.latency + passes * protocol.step * (op.gpus - 1)) * slow + 0.0 * carried
    transfer = carried / (_link(gpu, op.gpus) * share)
    return Priced(soft_max(protocol.softness, latency, transfer), latency, transfer, algorithm + 0.0 * carried)


def _exchange(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """Everyone sends to everyone: peers one by one and slowly, or all links filled."""
    bulk = _by(EXCHANGE, op.link_bytes + 0.0 * message, 1, op, gpu, 5.0)
    latency = (PEER_LATENCY + PEER_STEP * (op.gpus - 1)) * (1.83e9 / gpu.boost_clock) ** CLOCK_POWER
    transfer = message / op.gpus / PEER_RATE
    short = Priced(latency + transfer, latency + 0.0 * message, transfer, 4.0 + 0.0 * message)
    return _merge(short.seconds < bulk.seconds, short, bulk)


def _library(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """What NCCL would do."""
    passes = 2 if op.kind == "all_reduce" else 1
    carried = op.link_bytes + 0.0 * message
    short = _by(SHORT, carried, passes, op, gpu, 0.0)
    if not gpu.is_linked(op.gpus):
        return short
    if op.kind == "all_to_all":
        return _exchange(op, gpu, message)
    is_short = message < BULK_FROM * gpu.nvlink_bandwidth * op.gpus
    ring = _merge(is_short, short, _by(BULK, carried, passes, op, gpu, 1.0))
    if op.kind != "all_reduce" or op.gpus < 8 or not _is_switched(gpu, op.gpus):
        return ring
    switch = _by(SWITCH, message * (op.gpus + 1) / op.gpus, 0, op, gpu, 6.0)
    return _merge(switch.seconds < ring.seconds, switch, ring)


def _shots(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """An engine's own all-reduce: read all of the others at once, or reduce a share and gather the rest."""
    one = message < _limit(ONE_SHOT_LIMITS, op.gpus)
    link = _link(gpu, op.gpus) * (SHOT_EFFICIENCY if gpu.is_linked(op.gpus) else 1.0)
    latency = (SHOT_LATENCY + SHOT_STEP * (op.gpus - 1) + np.where(one, 0.0, SECOND_SHOT)) * _slowness(gpu)
    transfer = np.where(one, (op.gpus - 1) * message, op.link_bytes) / link
    return Priced(soft_max(SHOT_SOFTNESS, latency, transfer), latency, transfer, np.where(one, 2.0, 3.0))


def _inside(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """A collective over the GPUs of one node."""
    if op.kind == "send_recv":  # one pair after the other, over what joins them all
        joined = gpu if gpu.is_linked(op.gpus) else replace(gpu, nvlink_bandwidth=0.0)
        return _library(replace(op, gpus=2), joined, message)
    priced = _library(op, gpu, message)
    # Without NVLink, engines give their own kernel up beyond two GPUs.
    is_own = op.kind == "all_reduce" and op.library in OTHER_CUSTOM_LIMITS
    if is_own and (gpu.is_linked(op.gpus) or op.gpus <= 2):
        limits = CUSTOM_LIMITS.get((op.library, gpu.architecture), OTHER_CUSTOM_LIMITS[op.library])
        priced = _merge(message < _limit(limits, op.gpus), _shots(op, gpu, message), priced)
    return priced


def _between_nodes(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """Inside every node first (and last), then each GPU's share of the message over its own adapter."""
    node = gpu.gpus_per_node
    nodes = -(-op.gpus // node)
    passes = 2 if op.kind == "all_reduce" else 1
    carried = message if op.kind == "send_recv" else passes * message * (nodes - 1) / nodes
    if op.kind in ("all_reduce", "all_gather", "reduce_scatter"):
        carried = carried / node
    started = SHORT.latency * (1.83e9 / gpu.boost_clock) ** CLOCK_POWER if op.kind == "send_recv" else 0.0
    latency = started + passes * (nodes - 1) * gpu.network_latency + 0.0 * message
    transfer = carried / (gpu.network_bandwidth * NETWORK_EFFICIENCY)
    seconds = soft_max(NETWORK_SOFTNESS, latency, transfer)
    if op.kind == "send_recv" or node == 1:
        return Priced(seconds, latency, transfer, 0.0 * message)
    inner = _inside(replace(op, gpus=node, library="nccl"), gpu, message)
    return Priced(inner.seconds + seconds, inner.latency + latency, inner.transfer + transfer, inner.algorithm)


def collective(op: Collective, gpu: Gpu) -> Physics:
    """Price a collective over GPUs of one node, or of several that a network joins."""
    message = np.maximum(np.atleast_1d(np.asarray(op.message_bytes, dtype=np.float64)), 1.0)
    spread = op.gpus > gpu.gpus_per_node and gpu.network_bandwidth > 0
    priced = _between_nodes(op, gpu, message) if spread else _inside(op, gpu, message)
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


def engine_collective(op: Collective, gpu: Gpu) -> Physics:
    """The same between the other kernels of an engine: the last GPU to come is waited for."""
    physics = collective(op, gpu)
    late = RANK_SKEW * float(np.log2(max(op.gpus, 1)))
    terms = {**physics.terms, "launch": physics.terms["launch"] + late}
    return Physics(physics.seconds + late, terms, physics.features)
