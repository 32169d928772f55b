"""The host of a GPU: CPUs by name, and probes of a machine's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, inf, log, prod
from pathlib import Path
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import FileFormatError, UnknownNameError, read_json

MEASURED = "measured"  # The machines that engines were measured on, and the default CPU


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


# What `infercast measure --host` says of a machine.

PROBE = "hosts/probe.toml"
PYTHON, LAUNCH = "python", "launch"
PARTS = {PYTHON: "python", LAUNCH: "gpu"}  # Where a probe's file has the figures of a kind
OTHER = "is not what `infercast measure --host` writes"


class HostProbe(NamedTuple):
    """How many times as long as on the reference host things take."""

    python: float
    launch: float | None  # None: measured without a GPU
    title: str

    def factors(self, python_at: float, launch_at: float) -> dict[str, float]:
        """On host times by group, where those were measured on a host of such a probe."""
        seen = {PYTHON: self.python / python_at, LAUNCH: (self.launch or launch_at) / launch_at}
        rows = read_data(PROBE)["powers"].items()
        return {group: prod(seen[kind] ** power for kind, power in row.items()) for group, row in rows}


def read_probe(path: Path) -> HostProbe:
    return probe_of(read_json(path), path)


def probe_of(document: Any, path: Path) -> HostProbe:
    """A probe from what its file, or a part of the file, holds."""
    if isinstance(document, dict) and "models" in document:
        raise FileFormatError(path, "is of an older release (an idle engine): take `infercast measure --host` again")
    python = _relative(document, PYTHON, path)
    if python is None:
        raise FileFormatError(path, f"{OTHER}: python is missing")
    return HostProbe(python, _relative(document, LAUNCH, path), f"your host (from {path.name})")


def _relative(document: Any, kind: str, path: Path) -> float | None:
    """How many times as long as on the reference host; None where the probe has nothing of the kind."""
    part = document.get(PARTS[kind]) if isinstance(document, dict) else None
    ratios = []
    for name, reference in read_data(PROBE)["reference"][kind].items():
        if not isinstance(part, dict) or name not in part:
            continue
        value: Any = part[name].get("p50") if isinstance(part[name], dict) else None
        if type(value) not in (int, float) or not 0 < value < inf:
            raise FileFormatError(path, f"{OTHER}: {PARTS[kind]}.{name} has no p50 above 0")
        ratios.append(value / reference)
    return mean_factor(ratios) if ratios else None


def mean_factor(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def mean_probe(probes: Sequence[HostProbe], title: str) -> HostProbe:
    """Of a machine that was probed several times, before and after its runs."""
    launches = [each.launch for each in probes if each.launch is not None]
    return HostProbe(mean_factor([each.python for each in probes]), mean_factor(launches) if launches else None, title)
