"""How GPUs without direct links are joined: through a PCIe switch, between the CPU's sockets, or through its memory.

Datasheets do not say, and collectives differ by a factor of eight. The rates are shares of a slot's own: four A100 and
four H100 PCIe cards behind switches reach 0.75 of theirs, whatever their number (Vidur's profiles); two L40S of one
server reach 0.64, four 0.17 and eight 0.05 (published tables); V100 cards whose driver copies through the host's memory
0.24 to 0.28 (APEX's profiles).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from infercast.errors import UnknownNameError
from infercast.hardware.gpu import Gpu


class Topology(NamedTuple):
    """What a ring over GPUs of one server carries."""

    title: str
    share: float
    """Of a slot's rate, among two GPUs."""
    sharing: float
    """Power of half their number by which it falls."""


TOPOLOGIES = {
    "switch": Topology("all GPUs behind PCIe switches that pass data between them", 0.75, 0.0),
    "sockets": Topology("slots of two sockets, half of the traffic between them", 0.64, 1.86),
    "host": Topology("no direct copies: through the memory of the host", 0.26, 0.0),
}
MEASURED = "sockets"
"""The server whose collectives were measured; taken, with a wide interval, where nobody says."""


def with_topology(gpu: Gpu, name: str | None) -> Gpu:
    """The same GPU in a server of this kind; None leaves it open."""
    if name is None:
        return gpu
    if name not in TOPOLOGIES:
        raise UnknownNameError("PCIe topology", name, TOPOLOGIES)
    return replace(gpu, pcie_topology=name)


def ring_rate(gpu: Gpu, gpus: int) -> float:
    """Bytes a second that a ring over so many GPUs without direct links carries."""
    topology = TOPOLOGIES[gpu.pcie_topology or MEASURED]
    return float(gpu.pcie_bandwidth * topology.share / (gpus / 2) ** topology.sharing)


def is_left_open(gpu: Gpu, gpus: int) -> bool:
    """Whether so many of them talk over PCIe of a server that nobody has described."""
    return not gpu.pcie_topology and gpus <= gpu.gpus_per_node and not gpu.is_linked(gpus)


def servers(gpu: Gpu) -> list[Gpu]:
    """The same GPU in a server of each kind."""
    return [with_topology(gpu, name) for name in TOPOLOGIES]
