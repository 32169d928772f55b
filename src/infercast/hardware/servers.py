"""What servers draw at the wall beside their GPUs, by kind of server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from infercast.bundled import read_data
from infercast.errors import UnknownNameError
from infercast.hardware.gpu import Gpu

BASEBOARD, CARDS, RACK = "baseboard", "cards", "rack"


@dataclass(frozen=True, slots=True)
class Server:
    """Watts at the wall are ``base_watts`` and ``factor`` times those of all GPU boards in it."""

    kind: str
    title: str
    gpus: int
    """GPUs that it holds."""
    base_watts: float
    """CPUs, memory, switches, network adapters and fans at rest."""
    factor: float
    """What fans that speed up, converters and power supplies make of each watt of a board."""
    spread: float
    """Standard deviation of the logarithm of the watts at the wall, for known boards."""
    fitted: bool
    """On measurements at the wall; stated otherwise."""
    sources: tuple[str, ...] = ()
    whole: bool = False
    """Whether a deployment that leaves some of its GPUs free has all of it to itself."""
    names: tuple[str, ...] = ()
    """GPUs that are found in it whatever joins them."""

    def base_of(self, gpus: int) -> float:
        """The base watts that so many GPUs answer for: their share of a server, or whole ones."""
        return self.base_watts * (ceil(gpus / self.gpus) if self.whole else gpus / self.gpus)


@cache
def servers() -> dict[str, Server]:
    """All kinds by name."""
    return {kind: Server(kind=kind, **table) for kind, table in read_data("server_power.toml").items()}


def server_of(gpu: Gpu, kind: str | None = None) -> Server:
    """The kind of server that a GPU is usually found in, or the one that is named."""
    known = servers()
    if kind is not None:
        if kind not in known:
            raise UnknownNameError("server", kind, known)
        return known[kind]
    for server in known.values():
        if gpu.name in server.names:
            return server
    linked = gpu.nvlink_gpus if gpu.nvlink_bandwidth > 0 else 0
    largest = known[BASEBOARD].gpus
    return known[RACK if linked > largest else BASEBOARD if linked >= largest else CARDS]
