"""CPUs beside GPUs, by name: how fast one thread of each is, by what others publish."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError

MEASURED = "measured"
"""The machines that engines were measured on, and the default."""


class HostCpu(NamedTuple):
    """A CPU, and how fast one of its threads is."""

    name: str
    title: str
    single_thread_speed: float
    """How many times as fast as that of the measured machines."""
    source: str


@cache
def host_cpus() -> dict[str, HostCpu]:
    """All that are known, slowest first."""
    values = read_data("hosts/cpus.toml")
    base = values[MEASURED]["rating"]
    known = [HostCpu(name, each["title"], each["rating"] / base, each["source"]) for name, each in values.items()]
    return {each.name: each for each in sorted(known, key=lambda each: each.single_thread_speed)}


def host_cpu(name: str) -> HostCpu:
    """One of them."""
    known = host_cpus()
    if name not in known:
        hint = " (or give the path of a host.json of `infercast measure --host`, or of a TOML file)"
        raise UnknownNameError("host", name, known, hint)
    return known[name]
