"""Collectives: a latency that grows with the number of GPUs, and the bytes that each link carries.

An engine's own all-reduce (collective_engine.py) is for messages within its limits. Longer ones and other kinds go
through a library (collective_library.py): rings by a protocol of short latency that wastes bandwidth, then by one of
long latency that does not; reduction inside the switch (NVLS) on eight GPUs that one joins; exchanges with all
peers at once.

Between nodes a collective is two: one inside every node, and one among the nodes in which each GPU's own share of the
message crosses its own network adapter. Cards that no bridge joins talk over PCIe.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from infercast.hardware import Gpu
from infercast.ops import Collective
from infercast.predict.physics.collective_engine import engine_kernel
from infercast.predict.physics.collective_library import library, message_latency
from infercast.predict.physics.collective_links import Timed
from infercast.predict.physics.either import Kit, Number, kit_of
from infercast.predict.physics.terms import Physics

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
# Share of a network adapter's line rate that carries payload: not measured here, NCCL's users report 0.8 to 0.95.
NETWORK_EFFICIENCY, NETWORK_SOFTNESS = 0.85, 0.70
# In an engine GPUs do not come to a collective at the same moment, and all wait for the last: seconds for two of them,
# growing with the logarithm of their number. Tables are measured with GPUs that do nothing else.
RANK_SKEW = 1.2e-6


def _inside(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """A collective over the GPUs of one node."""
    if op.kind == "send_recv":  # one pair after the other, over what joins them all
        joined = gpu if gpu.is_linked(op.gpus) else replace(gpu, nvlink_bandwidth=0.0)
        return library(replace(op, gpus=2), joined, message, x)
    return engine_kernel(op, gpu, message, x)


def _between_nodes(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Inside every node first (and last), then each GPU's share of the message over its own adapter."""
    node = gpu.gpus_per_node
    nodes = -(-op.gpus // node)
    passes = 2 if op.kind == "all_reduce" else 1
    carried = message if op.kind == "send_recv" else passes * message * (nodes - 1) / nodes
    if op.kind in ("all_reduce", "all_gather", "reduce_scatter"):
        carried = carried / node
    started = message_latency(gpu) if op.kind == "send_recv" else 0.0
    latency = x.like(message, started + passes * (nodes - 1) * gpu.network_latency)
    transfer = carried / (gpu.network_bandwidth * NETWORK_EFFICIENCY)
    seconds = x.soft_pair(NETWORK_SOFTNESS, latency, transfer)
    if op.kind == "send_recv" or node == 1:
        return Timed(seconds, latency, transfer, 0.0)
    inner = _inside(replace(op, gpus=node, library="nccl"), gpu, message, x)
    return Timed(inner.seconds + seconds, inner.latency + latency, inner.transfer + transfer, inner.algorithm)


class Exchange:
    """Collectives of one kind over so many GPUs: of one node, or of several that a network joins."""

    def __init__(self, op: Collective, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu
        self.is_spread = op.gpus > gpu.gpus_per_node and gpu.network_bandwidth > 0
        self.kinds = [float(op.kind == kind) for kind in KINDS]
        self.late = RANK_SKEW * log2(max(op.gpus, 1))

    def physics(self, message: Number, *, engine: bool = False) -> Physics:
        """Messages of so many bytes. Between the other kernels of an ``engine`` the last GPU to come is waited for."""
        op, gpu, x = self.op, self.gpu, kit_of(message)
        message = x.larger(message, 1.0)
        inside = _between_nodes if self.is_spread else _inside
        seconds, latency, transfer, algorithm = inside(op, gpu, message, x)
        features = x.columns(
            transfer / (transfer + latency),
            *x.logs(message, message / op.gpus),
            op.gpus,
            x.log2(transfer / latency),
            algorithm,
            *self.kinds,
            x.log2(seconds * 1e6),
        )
        if engine:
            seconds, latency = seconds + self.late, latency + self.late
        return Physics(seconds, {"launch": latency, "link": transfer}, features)
