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
from math import log2

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Collective
from infercast.predict.physics.collective_engine import engine_kernel
from infercast.predict.physics.collective_library import library, message_latency
from infercast.predict.physics.collective_links import Priced
from infercast.predict.physics.either import Arrays, Kit, Number, Plain
from infercast.predict.physics.terms import OnePhysics, Physics

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


def _inside(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Priced:
    """A collective over the GPUs of one node."""
    if op.kind == "send_recv":  # one pair after the other, over what joins them all
        joined = gpu if gpu.is_linked(op.gpus) else replace(gpu, nvlink_bandwidth=0.0)
        return library(replace(op, gpus=2), joined, message, x)
    return engine_kernel(op, gpu, message, x)


def _between_nodes(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Priced:
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
    seconds = x.soft_max(NETWORK_SOFTNESS, latency, transfer)
    if op.kind == "send_recv" or node == 1:
        return Priced(seconds, latency, transfer, 0.0)
    inner = _inside(replace(op, gpus=node, library="nccl"), gpu, message, x)
    return Priced(inner.seconds + seconds, inner.latency + latency, inner.transfer + transfer, inner.algorithm)


def collective(op: Collective, gpu: Gpu) -> Physics:
    """Price a collective over GPUs of one node, or of several that a network joins."""
    message = np.maximum(np.atleast_1d(np.asarray(op.message_bytes, dtype=np.float64)), 1.0)
    return Physics(*_price(op, gpu, message, Arrays))


def engine_collective(op: Collective, gpu: Gpu) -> Physics:
    """The same between the other kernels of an engine: the last GPU to come is waited for."""
    physics = collective(op, gpu)
    seconds, terms = _when_all_came(op, physics.seconds, physics.terms)
    return Physics(seconds, terms, physics.features)


def collective_one(op: Collective, gpu: Gpu, message: float, *, engine: bool) -> OnePhysics:
    """One message, in a table or between the other kernels of an engine."""
    seconds, terms, features = _price(op, gpu, max(message, 1.0), Plain)
    if engine:
        seconds, terms = _when_all_came(op, seconds, terms)
    return OnePhysics(seconds, terms, features)


def _price(op: Collective, gpu: Gpu, message: Number, x: Kit) -> tuple[Number, dict[str, Number], Number]:
    """Seconds, their terms, and features."""
    spread = op.gpus > gpu.gpus_per_node and gpu.network_bandwidth > 0
    priced = _between_nodes(op, gpu, message, x) if spread else _inside(op, gpu, message, x)
    seconds, latency, transfer, algorithm = priced
    features = x.columns(
        transfer / (transfer + latency),
        x.log2(message),
        x.log2(message / op.gpus),
        op.gpus,
        x.log2(transfer / latency),
        algorithm,
        *[float(op.kind == kind) for kind in KINDS],
        x.log2(seconds * 1e6),
    )
    return seconds, {"launch": latency, "link": transfer}, features


def _when_all_came(op: Collective, seconds: Number, terms: dict[str, Number]) -> tuple[Number, dict[str, Number]]:
    """Seconds and their terms with the wait for the last GPU."""
    late = RANK_SKEW * log2(max(op.gpus, 1))
    return seconds + late, {**terms, "launch": terms["launch"] + late}
