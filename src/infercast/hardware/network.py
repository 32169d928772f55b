"""Networks between nodes by name, and a GPU that is plugged into one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError
from infercast.hardware.gpu import Gpu
from infercast.units import GIGA, MICRO


class Network(NamedTuple):
    """What one GPU gets of its node's network, in one direction."""

    bandwidth: float
    latency: float
    """Seconds of one message."""


@cache
def networks() -> dict[str, Network]:
    """All bundled networks by name."""
    tables = read_data("networks.toml")
    return {name: Network(table["gb_per_s"] * GIGA, table["latency_us"] * MICRO) for name, table in tables.items()}


def with_network(gpu: Gpu, name: str | None) -> Gpu:
    """The same GPU in nodes that a network joins; None leaves it alone."""
    if name is None:
        return gpu
    known = networks()
    if name not in known:
        raise UnknownNameError("network", name, known)
    return replace(gpu, network_bandwidth=known[name].bandwidth, network_latency=known[name].latency)
