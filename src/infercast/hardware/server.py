"""What surrounds the GPUs: host CPUs, networks between nodes, and the power that servers draw."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError
from infercast.hardware.gpu import Gpu
from infercast.lazy_classes import dataclass, replace
from infercast.units import GIGA, MICRO

MEASURED = "measured"  # The machines that engines were measured on, and the default
BASEBOARD, CARDS, RACK = "baseboard", "cards", "rack"


class HostCpu(NamedTuple):
    name: str
    title: str
    single_thread_speed: float  # How many times as fast as that of the measured machines
    source: str


@cache
def host_cpus() -> dict[str, HostCpu]:
    values = read_data("hosts/cpus.toml")
    base = values[MEASURED]["rating"]
    known = [HostCpu(name, each["title"], each["rating"] / base, each["source"]) for name, each in values.items()]
    return {each.name: each for each in sorted(known, key=lambda each: each.single_thread_speed)}


def host_cpu(name: str) -> HostCpu:
    known = host_cpus()
    if name not in known:
        hint = " (or give the path of a host.json of `infercast measure --host`, or of a TOML file)"
        raise UnknownNameError("host", name, known, hint)
    return known[name]


class Network(NamedTuple):
    """What one GPU gets of its node's network, in one direction."""

    bandwidth: float
    latency: float  # Seconds of one message


@cache
def networks() -> dict[str, Network]:
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


@dataclass(frozen=True, slots=True)
class Server:
    """Watts at the wall are ``base_watts`` and ``factor`` times those of all GPU boards in it."""

    kind: str
    title: str
    gpus: int  # GPUs that it holds
    base_watts: float  # CPUs, memory, switches, network adapters and fans at rest
    factor: float  # What fans that speed up, converters and power supplies make of each watt of a board
    spread: float  # Standard deviation of the logarithm of the watts at the wall, for known boards
    fitted: bool  # On measurements at the wall; stated otherwise
    sources: tuple[str, ...] = ()
    whole: bool = False  # Whether a deployment that leaves some of its GPUs free has all of it to itself
    names: tuple[str, ...] = ()  # GPUs that are found in it whatever joins them

    def base_of(self, gpus: int) -> float:
        """The base watts of these GPUs: their share of a server, or whole ones."""
        return self.base_watts * (ceil(gpus / self.gpus) if self.whole else gpus / self.gpus)


@cache
def servers() -> dict[str, Server]:
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
