"""Host times of an engine on a machine that `infercast measure --host` probed: each group of them by a factor."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import exp, inf, log, prod
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.engines.host import FACTS, Costs, HostCosts
from infercast.errors import FileFormatError
from infercast.lazy_classes import NamedTuple, fields, replace

KNOWN = read_data("hosts/probe.toml")
PARTS = {"python": "python", "launch": "gpu"}  # Where a probe's file has the figures of a kind
OTHER = "is not what `infercast measure --host` writes"
PYTHON, LAUNCH, WAKE = "python", "launch", "wake"
LAUNCHED = re.compile(r"graph|layer|kernel|product|piece|eager|draft|verify|mamba|prompt_step")


def group_of(name: str) -> str:
    """The group of a host time by its field: what launches, what wakes up, and Python for all others."""
    if name.startswith("wake"):
        return WAKE
    return LAUNCH if LAUNCHED.search(name) else PYTHON


class HostProbe(NamedTuple):
    """How many times as long as on the reference host things take."""

    python: float
    launch: float | None  # None: measured without a GPU
    title: str

    def factors_on(self, host: HostCosts) -> dict[str, float]:
        """On an engine's host times, by group."""
        seen = {PYTHON: self.python / host.python_at, LAUNCH: (self.launch or host.launch_at) / host.launch_at}
        rows = KNOWN["powers"].items()
        return {group: prod(seen[kind] ** power for kind, power in row.items()) for group, row in rows}

    def on(self, host: Costs) -> Costs:
        """An engine's host times on this machine, from those on the reference."""
        factors = self.factors_on(host)
        names = (field.name for field in fields(host) if field.name not in FACTS)
        seconds: dict[str, Any] = {name: getattr(host, name) * factors[group_of(name)] for name in names}
        told = f"{self.title}: Python x {factors[PYTHON]:.2f}, launches x {factors[LAUNCH]:.2f} the measured times"
        return replace(host, title=told, source="a probe of this machine", is_measured=True, **seconds)


def read_probe(path: Path) -> HostProbe:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not JSON") from None
    except (ValueError, RecursionError) as problem:
        raise FileFormatError(path, f"is not JSON: {problem}") from None
    return probe_of(document, path)


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
    for name, reference in KNOWN["reference"][kind].items():
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
