"""What the CPU beside the GPU costs a step and a request, from a data file of fitted seconds."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from infercast.bundled import DATA
from infercast.engines.vllm.graphs import Launch
from infercast.engines.vllm.launches import LaunchWork
from infercast.errors import FileFormatError
from infercast.serve.step import HostCost
from infercast.units import MICRO, MILLI

LONGEST, FASTEST = 1e6, 1e3
"""No time of a host is longer than that, in ms or us, and no thread so many times as fast as the one measured."""
UNITS = {"_ms": MILLI, "_us": MICRO}
WANTED = "title, source, and times with _ms or _us behind them, all as in the bundled default.toml"


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of host time; what each is for is said in the data file."""

    title: str
    source: str
    request_path: float
    request_token: float
    wake_up: float
    token_path: float
    token_turn: float
    plan: float
    plan_sequence: float
    plan_token: float
    prepare: float
    kv_group: float
    sample: float
    graph_launch: float
    prompt_step: float
    piece_layer: float
    eager_step: float
    eager_kernel: float
    latent_layer: float
    expert_layer: float
    shared_expert_layer: float
    packed_expert_layer: float
    process: float
    process_sequence: float
    wake: float
    server_path: float = 0.0
    server_token: float = 0.0

    def behind_server(self) -> Host:
        """The same host where requests come as text over HTTP, and not as tokens from the same program."""
        return replace(
            self,
            request_path=self.request_path + self.server_path,
            request_token=self.request_token + self.server_token,
        )

    def launching(self, launch: Launch, work: LaunchWork) -> float:
        """From a step's first kernel to its last one before sampling; what every step costs, each stage pays."""
        if launch is Launch.FULL_GRAPH:
            return self.graph_launch * work.stages
        by_hand = self.prompt_step * work.stages + self.latent_layer * work.latent_layers
        if launch is Launch.PIECEWISE_GRAPHS:
            return by_hand + self.piece_layer * work.layers
        return (
            by_hand
            + self.eager_step * work.stages
            + self.eager_kernel * work.kernels
            + self.expert_layer * work.expert_layers
            + self.shared_expert_layer * work.shared_expert_layers
            + self.packed_expert_layer * work.packed_expert_layers
        )


class HostModel:
    """A host that runs one model."""

    def __init__(self, host: Host, work: LaunchWork) -> None:
        self._host = host
        self._prepare = host.prepare + host.kv_group * (work.kv_groups - 1)
        self._launching = {launch: host.launching(launch, work) + host.sample for launch in Launch}

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int) -> HostCost:
        """The host's part of a step."""
        host = self._host
        plan = host.plan + host.plan_sequence * num_sequences + host.plan_token * (num_tokens - num_sequences)
        process = host.process + host.process_sequence * num_sequences
        return HostCost(plan, self._prepare, self._launching[launch], process, host.wake)


@cache
def default_host() -> Host:
    """The host that was measured."""
    text = DATA.joinpath("hosts/default.toml").read_text(encoding="utf-8")
    return _host_of(tomllib.loads(text))


def read_host(path: Path) -> Host:
    """A host from a data file like the bundled one."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not a TOML file") from None
    except ValueError as problem:
        raise FileFormatError(path, f"is not TOML: {problem}") from None
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in ("title", "source"):
            if not isinstance(value, str):
                raise FileFormatError(path, f"{name} must be text, not {value!r}")
        elif not (number and 0 <= value <= LONGEST):
            raise FileFormatError(path, f"{name} must be a number from 0 to {LONGEST:,.0f}, not {value!r}")
    if not 1 / FASTEST <= (speed := values.get("single_thread_speed", 1.0)) <= FASTEST:
        raise FileFormatError(path, f"single_thread_speed must lie in {1 / FASTEST:g} to {FASTEST:g}, not {speed}")
    try:
        return _host_of(values)
    except (KeyError, TypeError):
        raise FileFormatError(path, f"must hold exactly these: {WANTED}; {_amiss(values)}") from None


def _amiss(values: dict[str, Any]) -> str:
    """Which names are missing, and which are too many."""
    given = {name.removesuffix("_ms").removesuffix("_us") for name in values} - {"single_thread_speed"}
    needed = {field.name for field in fields(Host)}
    optional = {"server_path", "server_token"}
    missing, unknown = sorted(needed - given - optional), sorted(given - needed)
    parts = [f"{', '.join(missing)} missing"] if missing else []
    parts += [f"{', '.join(unknown)} not known"] if unknown else []
    return " and ".join(parts) or "a time needs _ms or _us"


def _host_of(values: dict[str, Any]) -> Host:
    """``single_thread_speed`` scales everything that runs on the CPU."""
    speed = values.get("single_thread_speed", 1.0)
    seconds = {
        name.removesuffix(unit): value * scale / speed
        for name, value in values.items()
        for unit, scale in UNITS.items()
        if name.endswith(unit)
    }
    return Host(title=values["title"], source=values["source"], **seconds)
