"""Collectives: a latency that grows with the number of GPUs, and the bytes that each link carries.

An engine's own all-reduce (collective_engine.py) is for messages within its limits. Longer ones and other kinds go
through a library (collective_library.py): rings by a protocol of short latency that wastes bandwidth, then by one of
long latency that does not; reduction inside the switch (NVLS) on eight GPUs of Hopper or Blackwell; exchanges with all
peers at once.

Between nodes a collective is two: one inside every node, and one among the nodes in which each GPU's own share of the
message crosses its own network adapter. Cards that no bridge joins talk over PCIe.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Collective
from infercast.predict.physics.collective_engine import engine_kernel
from infercast.predict.physics.collective_library import library, message_latency
from infercast.predict.physics.collective_links import Priced
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
# Share of a network adapter's line rate that carries payload: not measured here, NCCL's users report 0.8 to 0.95.
NETWORK_EFFICIENCY, NETWORK_SOFTNESS = 0.85, 0.70
# In an engine GPUs do not come to a collective at the same moment, and all wait for the last: seconds for two of them,
# growing with the logarithm of their number. Tables are measured with GPUs that do nothing else.
RANK_SKEW = 1.2e-6


def _inside(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """A collective over the GPUs of one node."""
    if op.kind == "send_recv":  # one pair after the other, over what joins them all
        joined = gpu if gpu.is_linked(op.gpus) else replace(gpu, nvlink_bandwidth=0.0)
        return library(replace(op, gpus=2), joined, message)
    return engine_kernel(op, gpu, message, library(op, gpu, message))


def _between_nodes(op: Collective, gpu: Gpu, message: Array) -> Priced:
    """Inside every node first (and last), then each GPU's share of the message over its own adapter."""
    node = gpu.gpus_per_node
    nodes = -(-op.gpus // node)
    passes = 2 if op.kind == "all_reduce" else 1
    carried = message if op.kind == "send_recv" else passes * message * (nodes - 1) / nodes
    if op.kind in ("all_reduce", "all_gather", "reduce_scatter"):
        carried = carried / node
    started = message_latency(gpu) if op.kind == "send_recv" else 0.0
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
