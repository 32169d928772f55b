"""Collectives between the GPUs of a replica: links, NCCL, the all-reduce kernels of engines, and the family record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log2
from operator import attrgetter
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.gpu import MEASURED, THROUGH_HOST, is_left_open, ring_rate, servers
from infercast.hardware.load import facts_of
from infercast.ops import Collective
from infercast.predict.array_api import Kit, Number, Physics, Plain, kit_of
from infercast.predict.families.family import Ceiling, Constants, Family, Shape, constants, feature_names, floats, lone
from infercast.predict.identity import KernelProfile

REFERENCE_CLOCK = 1.83e9  # Latencies are of an H200, at this clock


class Timed(NamedTuple):
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
    """Whether a switch that reduces joins these GPUs."""
    return facts_of(gpu).switch_share > 0.0 and gpu.is_linked(gpus)


SHORT, BULK, SWITCH, EXCHANGE = constants("collective").values()
# A ring turns to the bulk protocol where a GPU's share of the message would fill its links for this long.
BULK_FROM = 1.4e-6
# A short exchange: seconds of the kernel and of each further GPU, and bytes a second to one peer.
PEER_LATENCY, PEER_STEP, PEER_RATE = 6.1e-6, 0.38e-6, 5.9e9
# A library's kernels are many small steps of few thread blocks: their latency falls faster than the clock rises.
LIBRARY_CLOCK_POWER = 1.8
# PCIe traffic that crosses between sockets adds to latency.
PCIE_DELAY = 1.63


def library(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    passes = 2 if op.kind == "all_reduce" else 1
    carried = op.link_share * message

    def short() -> Timed:
        return _by(SHORT, carried, passes, op, gpu, 0.0, x)

    if not gpu.is_linked(op.gpus):
        return short()
    if op.kind == "all_to_all":
        return _exchange(op, gpu, message, x)
    is_short = message < BULK_FROM * gpu.nvlink_bandwidth * op.gpus
    ring = merge(x, is_short, short, lambda: _by(BULK, carried, passes, op, gpu, 1.0, x))
    if op.kind != "all_reduce" or op.gpus < 8 or not is_switched(gpu, op.gpus):
        return ring
    by_switch = message * (op.gpus + 1) / op.gpus / facts_of(gpu).switch_share
    return shorter(x, _by(SWITCH, by_switch, 0, op, gpu, 6.0, x), ring)


def _by(protocol: Constants, carried: Number, passes: int, op: Collective, gpu: Gpu, algorithm: float, x: Kit) -> Timed:
    """One kernel: ``carried`` bytes cross each GPU's links."""
    slow = delay(gpu, LIBRARY_CLOCK_POWER) * (1.0 if gpu.is_linked(op.gpus) else PCIE_DELAY)
    share = protocol.efficiency - protocol.pair_loss / op.gpus if gpu.is_linked(op.gpus) else 1.0
    latency = x.like(carried, (protocol.latency + passes * protocol.step * (op.gpus - 1)) * slow)
    transfer = carried / (link_rate(gpu, op.gpus) * share)
    return Timed(x.soft_pair(protocol.softness, latency, transfer), latency, transfer, algorithm)


def _exchange(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Everyone sends to everyone: peers one by one and slowly, or all links filled."""
    bulk = _by(EXCHANGE, op.link_share * message, 1, op, gpu, 5.0, x)
    latency = x.like(message, (PEER_LATENCY + PEER_STEP * (op.gpus - 1)) * delay(gpu, LIBRARY_CLOCK_POWER))
    transfer = message / op.gpus / PEER_RATE
    return shorter(x, Timed(latency + transfer, latency, transfer, 4.0), bulk)


# All-reduces of the engines' own: one-shot kernels read everything of everyone, two-shot kernels reduce a share and
# gather the others'. Above the size that these are kept to, vLLM copies the message into memory that all GPUs map,
# reduces it there (two-shot, or by the switch) and copies it out again.

MIB = 1 << 20
ONE_SHOT_LIMITS = {2: 64 * MIB, 4: MIB // 2, 8: MIB // 4}
# Seconds of a kernel at 1.83 GHz, of each further GPU, and of a second shot; share of the links it fills. Fitted on
# vLLM's kernels on A100, H100 and H200.
SHOT_LATENCY, SHOT_STEP, SECOND_SHOT = 4.34e-6, 0.055e-6, 3.4e-6
SHOT_EFFICIENCY, SHOT_SOFTNESS = 0.72, 0.90
# Symmetric memory, fitted on H100 and H200: seconds of two copies and the kernel between them, and the shares of the
# links that it fills by two shots and through the switch.
SYMMETRIC_LATENCY, SYMMETRIC_EFFICIENCY, MULTICAST_EFFICIENCY = 8.6e-6, 0.74, 0.69
# Only part of the latency of so short a kernel is cycles of the GPU: as a power of the clock.
ENGINE_CLOCK_POWER = 0.55


def engine_kernel(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """What an engine does itself, and the library's where it leaves a collective to that."""
    limits = _limits(op, gpu, "own")
    if op.kind != "all_reduce" or not limits or not _has_own(op, gpu):
        return library(op, gpu, message, x)

    def longer() -> Timed:
        symmetric_limits = _limits(op, gpu, "symmetric")
        if not symmetric_limits or not is_switched(gpu, op.gpus):
            return library(op, gpu, message, x)
        most = _limit(symmetric_limits, op.gpus)
        by_library, symmetric = (lambda: library(op, gpu, message, x)), (lambda: _symmetric(op, gpu, message, x))
        return merge(x, message <= most, symmetric, by_library)

    return merge(x, message < _limit(limits, op.gpus), lambda: _shots(op, gpu, message, x), longer)


def _has_own(op: Collective, gpu: Gpu) -> bool:
    """Without direct links, engines give their own kernel up beyond two GPUs, or if these cannot read each other."""
    return gpu.is_linked(op.gpus) or (op.gpus <= 2 and gpu.pcie_topology != THROUGH_HOST)


def _engines() -> dict[str, dict[str, Any]]:
    return read_data("all_reduce.toml")


def _limits(op: Collective, gpu: Gpu, kernels: str) -> Mapping[Any, int]:
    """Bytes that an engine's kernels end at, by the largest number of GPUs each limit is for; empty: it has none."""
    table = _engines().get(op.library, {}).get(kernels, {})
    limits: Mapping[Any, int] = table.get(gpu.compute_capability, table.get("other", {}))
    return limits


def _limit(limits: Mapping[Any, int], gpus: int) -> int:
    return next((size for most, size in limits.items() if gpus <= int(most)), 0)


def _shots(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Read all of the others at once, or reduce a share and gather the rest."""
    one = message < _limit(ONE_SHOT_LIMITS, op.gpus)
    link = link_rate(gpu, op.gpus) * (SHOT_EFFICIENCY if gpu.is_linked(op.gpus) else 1.0)
    saved = 1e-6 * _engines()[op.library].get("switched_saves_us", 0.0) if is_switched(gpu, op.gpus) else 0.0
    seconds = SHOT_LATENCY - saved + SHOT_STEP * (op.gpus - 1) + x.where(one, 0.0, SECOND_SHOT)
    latency = seconds * delay(gpu, ENGINE_CLOCK_POWER)
    transfer = x.where(one, (op.gpus - 1) * message, op.link_share * message) / link
    return Timed(x.soft_pair(SHOT_SOFTNESS, latency, transfer), latency, transfer, x.where(one, 2.0, 3.0))


def _symmetric(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Copied in, reduced by two shots or by the switch, and copied out."""
    by_switch = op.gpus >= _engines()[op.library]["multicast_from"][gpu.compute_capability]
    carried, share = op.link_share * message, SYMMETRIC_EFFICIENCY
    if by_switch:
        carried = message * (op.gpus + 1) / op.gpus
        share = MULTICAST_EFFICIENCY * facts_of(gpu).switch_share
    latency = x.like(message, SYMMETRIC_LATENCY * delay(gpu, ENGINE_CLOCK_POWER))
    # Two copies read and write it once each.
    transfer = carried / (link_rate(gpu, op.gpus) * share) + 4.0 * message / gpu.dram_bandwidth
    return Timed(x.soft_pair(SHOT_SOFTNESS, latency, transfer), latency, transfer, 8.0 if by_switch else 7.0)


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Share of a network adapter's line rate that carries payload: not measured here, NCCL's users report 0.8 to 0.95.
NETWORK_EFFICIENCY, NETWORK_SOFTNESS = 0.85, 0.70
# In an engine GPUs do not come to a collective at the same moment, and all wait for the last: seconds for two of them,
# growing with the logarithm of their number. Tables are measured with GPUs that do nothing else.
RANK_SKEW = 1.2e-6


def _inside(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
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
    # The kernel that sends a short message comes first.
    started = SHORT.latency * delay(gpu, LIBRARY_CLOCK_POWER) if op.kind == "send_recv" else 0.0
    latency = x.like(message, started + passes * (nodes - 1) * gpu.network_latency)
    transfer = carried / (gpu.network_rate(op.gpus) * NETWORK_EFFICIENCY)
    seconds = x.soft_pair(NETWORK_SOFTNESS, latency, transfer)
    if op.kind == "send_recv" or node == 1:
        return Timed(seconds, latency, transfer, 0.0)
    inner = _inside(replace(op, gpus=node, library="nccl"), gpu, message, x)
    return Timed(inner.seconds + seconds, inner.latency + latency, inner.transfer + transfer, inner.algorithm)


class CollectivePhysics:
    """Collectives: a latency that grows with the number of GPUs, and the bytes that each link carries. What is too long
    for an engine's own all-reduce goes through a library: rings by a protocol of short latency that wastes bandwidth,
    then by one that does not; reduction inside the switch (NVLS) on eight GPUs; exchanges with all peers at once.
    Between nodes a collective is two: inside every node, and among them, each GPU's share over its own adapter.
    """

    def __init__(self, op: Collective, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu
        self.is_spread = op.gpus > gpu.gpus_per_node and gpu.network_bandwidth > 0
        self.kinds = [float(op.kind == kind) for kind in KINDS]
        self.late = RANK_SKEW * log2(max(op.gpus, 1))

    def physics(self, message: Number, *, engine: bool = False) -> Physics:
        """Messages by their bytes. In an ``engine`` all GPUs wait for the last one to arrive."""
        op, gpu, x = self.op, self.gpu, kit_of(message)
        message = x.larger(message, 1.0)
        inside = _between_nodes if self.is_spread else _inside
        seconds, latency, transfer, algorithm = inside(op, gpu, message, x)
        features = x.columns(
            transfer / (transfer + latency), *x.logs(message, message / op.gpus), op.gpus, x.log2(transfer / latency),
            algorithm, *self.kinds, x.log2(seconds * 1e6),
        )  # fmt: skip
        if engine:
            seconds, latency = seconds + self.late, latency + self.late
        return Physics(seconds, {"launch": latency, "link": transfer}, features)


def _variants(op: Collective, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    return (profile.all_reduce, "NCCL") if op.kind == "all_reduce" and _has_own(op, gpu) else ("NCCL",)


def _is_measured(op: Collective, gpu: Gpu) -> bool:
    """None was measured between nodes, and without direct links in servers of one kind alone."""
    inside = op.gpus <= gpu.gpus_per_node
    return inside and (gpu.is_linked(op.gpus) or gpu.pcie_topology in ("", MEASURED))


def _shape(kind: str) -> Shape:
    return Shape(("bytes", "gpus"), {}, lambda values: Collective(kind, values["bytes"], int(values["gpus"])))


COLLECTIVE = Family(
    name="collective",
    op=Collective,
    shapes={kind: _shape(kind) for kind in ("all_reduce", "all_gather")},
    step_sizes=("message_bytes",),
    sizes=lambda op: floats(op.message_bytes),
    size_of_one=lambda op: lone(op.message_bytes),
    kind=attrgetter("kind", "gpus"),
    core=CollectivePhysics,
    core_key=attrgetter("kind", "gpus", "library"),
    features={"collective": feature_names("collective")},
    pipes=lambda op, gpu: {"link": op.link_bytes / gpu.link_bandwidth(op.gpus)},
    moved=lambda op: op.link_bytes,
    bandwidth=lambda op, gpu: gpu.link_bandwidth(op.gpus),
    variants=_variants,
    is_measured=_is_measured,
    waits_in_engine=True,
    is_chip_bound=False,  # but by links, of which a board with a bridge has two kinds
    servers=lambda op, gpu: servers(gpu) if is_left_open(gpu, op.gpus) else [],
    spread={"collective": 9.4},
    ceiling=Ceiling(
        features=("kind", "gpus", "linked"),
        shape=lambda op, gpu: [(*KINDS, "send_recv").index(op.kind), op.gpus, gpu.is_linked(op.gpus)],
    ),
)
