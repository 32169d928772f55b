"""What NCCL does: rings by a short or a bulk protocol, reduction in the switch, exchanges of all with all."""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops import Collective
from infercast.predict.physics.collective_links import Timed, delay, is_switched, link_rate, merge, shorter
from infercast.predict.physics.either import Kit, Number


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
# PCIe traffic that crosses between sockets adds to latency.
PCIE_DELAY = 1.63


def library(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """The algorithm and protocol that NCCL picks."""
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


def message_latency(gpu: Gpu) -> float:
    """Seconds of the kernel that sends a short message."""
    return SHORT.latency * delay(gpu, CLOCK_POWER)


def _by(protocol: _Protocol, carried: Number, passes: int, op: Collective, gpu: Gpu, algorithm: float, x: Kit) -> Timed:
    """One kernel: ``carried`` bytes cross each GPU's links."""
    slow = delay(gpu, CLOCK_POWER) * (1.0 if gpu.is_linked(op.gpus) else PCIE_DELAY)
    share = protocol.efficiency - protocol.pair_loss / op.gpus if gpu.is_linked(op.gpus) else 1.0
    latency = x.like(carried, (protocol.latency + passes * protocol.step * (op.gpus - 1)) * slow)
    transfer = carried / (link_rate(gpu, op.gpus) * share)
    return Timed(x.soft_pair(protocol.softness, latency, transfer), latency, transfer, algorithm)


def _exchange(op: Collective, gpu: Gpu, message: Number, x: Kit) -> Timed:
    """Everyone sends to everyone: peers one by one and slowly, or all links filled."""
    bulk = _by(EXCHANGE, op.link_share * message, 1, op, gpu, 5.0, x)
    latency = x.like(message, (PEER_LATENCY + PEER_STEP * (op.gpus - 1)) * delay(gpu, CLOCK_POWER))
    transfer = message / op.gpus / PEER_RATE
    return shorter(x, Timed(latency + transfer, latency, transfer, 4.0), bulk)
