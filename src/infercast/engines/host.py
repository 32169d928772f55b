"""CPU time of an engine (``data/engines/<engine>/host.toml``, or a user's file like it), scaled to other CPUs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from infercast.bundled import DATA, read_data
from infercast.engines.settings import numbers
from infercast.errors import FileFormatError
from infercast.hardware.host import LAUNCH, MEASURED, PYTHON, HostProbe, host_cpu
from infercast.hardware.load import read_table
from infercast.lazy_classes import MISSING, dataclass, fields, replace
from infercast.serve.step import HostCost
from infercast.serve.workload.api_server import ServerCosts
from infercast.units import MICRO, MILLI

LONGEST, FASTEST = 1e6, 1e3
"""Upper limits: of a host time, in ms or us, and of a thread's speed relative to the measured one."""
UNITS = {"_ms": MILLI, "_us": MICRO}
PLACED = ("python_at", "launch_at")
"""How many times as long as on the reference of hosts/probe.toml Python and launches took where these were measured."""
FACTS = ("title", "source", "is_measured", "python_at", "launch_at", "kernel_gap")
WANTED = "title, source, and times with _ms or _us behind them, all as in the bundled host.toml of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Host seconds of the request and token paths, common to all engines. Each engine adds its step costs."""

    title: str
    source: str
    request_path: float
    request_token: float
    wake_up: float
    token_path: float
    token_turn: float
    server_path: float = 0.0
    server_token: float = 0.0
    server_turn: float = 0.0
    server_work: float = 0.0
    request_turn: float = 0.0
    hand_over: float = 0.0
    stream_part: float = 0.0
    kernel_gap: float = 0.15e-6
    eager_kernel: float = 0.0
    python_at: float = 1.0
    launch_at: float = 1.0
    is_measured: bool = False  # True if measured on this very machine, not on a similar one

    def behind_server(self) -> Self:
        """The same host when requests arrive as text over HTTP, not as tokens from the same process."""
        return replace(
            self,
            request_path=self.request_path + self.server_path,
            request_token=self.request_token + self.server_token,
        )

    def server(self, interval: int = 1, *, over_http: bool) -> ServerCosts:
        """Of the thread that takes requests in and hands tokens out; a part of an answer has ``interval`` tokens."""
        if not over_http:
            return ServerCosts(self.request_turn, hand_over=self.hand_over)
        part = self.stream_part / interval
        return ServerCosts(self.server_turn, self.token_turn if part else 0.0, part, self.hand_over, self.server_work)

    def sped_up(self, speed: float, title: str, source: str | None = None) -> Self:
        seconds: dict[str, Any] = {name: each / speed for name, each in self.seconds.items()}
        return replace(self, title=title, source=source or self.source, **seconds)

    @property
    def seconds(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in FACTS}

    def on_cpu(self, name: str) -> Self:
        if name == MEASURED:
            return self
        cpu = host_cpu(name)
        title = f"{cpu.title}, {cpu.single_thread_speed:.2f} times as fast as the measured one"
        return self.sped_up(cpu.single_thread_speed, title, cpu.source)

    def on_machine(self, probe: HostProbe) -> Self:
        """These times, from those on the reference host."""
        factors = probe.factors(self.python_at, self.launch_at)
        seconds: dict[str, Any] = {name: each * factors[group_of(name)] for name, each in self.seconds.items()}
        told = f"{probe.title}: Python x {factors[PYTHON]:.2f}, launches x {factors[LAUNCH]:.2f} the measured times"
        return replace(self, title=told, source="a probe of this machine", is_measured=True, **seconds)


Costs = TypeVar("Costs", bound=HostCosts)


def bundled_host(kind: type[Costs], engine: str, version: tuple[int, ...] = ()) -> Costs:
    """The measured times, with those that were measured again since a release; the newest of an unknown one."""
    return _costs_of(kind, _of_release(read_data(DATA / f"engines/{engine}/host.toml"), version))


def _of_release(values: dict[str, Any], version: tuple[int, ...]) -> dict[str, Any]:
    found = dict(values)
    for since, later in found.pop("since", {}).items():
        if not version or numbers(since) <= version:
            found |= later
    return found


def read_host(path: Path, kind: type[Costs], version: tuple[int, ...] = ()) -> Costs:
    table = read_table(path, path)
    try:
        values = _of_release(table, version)
    except (AttributeError, TypeError, ValueError):
        raise FileFormatError(path, "has no tables of releases under since") from None
    words = ("title", "source", "cpu")
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in words:
            if not isinstance(value, str):
                raise FileFormatError(path, f"{name} must be text, not {value!r}")
        elif not (number and 0 <= value <= LONGEST):
            raise FileFormatError(path, f"{name} must be a number from 0 to {LONGEST:,.0f}, not {value!r}")
    if not 1 / FASTEST <= (speed := values.get("single_thread_speed", 1.0)) <= FASTEST:
        raise FileFormatError(path, f"single_thread_speed must lie in {1 / FASTEST:g} to {FASTEST:g}, not {speed}")
    try:
        return replace(_costs_of(kind, values), is_measured=True)
    except (KeyError, TypeError):
        raise FileFormatError(path, f"must hold exactly these: {WANTED}; {_amiss(kind, values)}") from None


def _amiss(kind: type[HostCosts], values: dict[str, Any]) -> str:
    given = {name.removesuffix("_ms").removesuffix("_us") for name in values} - {"single_thread_speed", "cpu", *PLACED}
    given |= {"title"} if "cpu" in values else set()
    needed = {field.name for field in fields(kind)}
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    missing, unknown = sorted(needed - given - optional), sorted(given - needed)
    parts = [f"{', '.join(missing)} missing"] if missing else []
    parts += [f"{', '.join(unknown)} not known"] if unknown else []
    return " and ".join(parts) or "a time needs _ms or _us"


def _costs_of(kind: type[Costs], values: dict[str, Any]) -> Costs:
    """``single_thread_speed`` scales all CPU times."""
    speed = values.get("single_thread_speed", 1.0)
    seconds = {
        name.removesuffix(unit): value * scale / speed
        for name, value in values.items()
        for unit, scale in UNITS.items()
        if name.endswith(unit)
    }
    title = host_cpu(values["cpu"]).title if "cpu" in values else values["title"]
    placed = {name: values[name] for name in PLACED if name in values}
    return kind(title=title, source=values["source"], **placed, **seconds)


# Host times on a machine that `infercast measure --host` probed: each group of them by a factor.

LAUNCHED = r"graph|layer|kernel|product|piece|eager|draft|verify|mamba|prompt_step"


def group_of(name: str) -> str:
    """The group of a host time by its field: what launches, what wakes up, and Python for all others."""
    if name.startswith("wake"):
        return "wake"
    return LAUNCH if re.search(LAUNCHED, name) else PYTHON


# What an engine's host costs are asked.


class Launch(Enum):
    FULL_GRAPH = "full graph"  # The whole step is one CUDA graph: steps in which every sequence computes one token
    PIECEWISE_GRAPHS = "piecewise graphs"  # Attention is launched eagerly between graphs of the rest
    EAGER = "eager"  # Every kernel is launched individually
    __hash__ = object.__hash__  # Every step looks one up, and hashing its name takes longer


def next_size(sizes: Sequence[int], number: int) -> int | None:
    place = bisect_left(sizes, number)
    return sizes[place] if place < len(sizes) else None


class Graphs(Protocol):
    @property
    def sizes(self) -> tuple[int, ...]: ...  # Token counts they were captured for; empty: no graphs
    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of this many tokens is launched, and its padded size."""


class HostModel(Protocol):
    @property
    def gap_seconds(self) -> float: ...  # GPU idle time between the kernels of one step
    @property
    def waited_share(self) -> float: ...  # Share of a prefill step's GPU time that the host blocks on while launching
    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        """Host cost of a step, without such waits."""

    def borrowed_share(self, model: str) -> float:
        """Share of a prompt's launch cost that was measured in only one other model."""

    def rests_on(self) -> list[str]:
        """Sentences: which of its times were measured in few models or under special conditions."""


class DraftPasses(Protocol):
    @property
    def gap_seconds(self) -> float: ...  # GPU idle time between the kernels of one pass
    def padded(self, num_sequences: int) -> int: ...  # Padded size of a later pass over this many sequences
    def cost(self, launch: Launch, passes: int, num_sequences: int, *, has_prompts: bool) -> HostCost:
        """Added host cost of a step that verifies and then drafts in ``passes`` passes."""
