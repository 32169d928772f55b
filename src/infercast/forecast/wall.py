"""From GPU boards to the wall: the rest of the server, the rest of the building, carbon and the electricity bill.

A forecast says what GPU boards draw. Around them are CPUs, fans and power supplies (`hardware.servers`, fitted on
servers at the wall), and around servers is the cooling of a building, whose factor (PUE) nobody can know but its owner:
it is 1 unless it is given. Carbon and money appear only if the grid's factor and the price of a kWh are given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import TYPE_CHECKING

from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.hardware.servers import Server, server_of, servers
from infercast.shown import Shown

if TYPE_CHECKING:
    from infercast.forecast.energy import Energy
    from infercast.forecast.system import System

KILO = 1000.0
TENTH = 1.2815515655446004
"""Standard deviations from the middle of a normal distribution beyond which a tenth of it lies."""


@dataclass(frozen=True, slots=True)
class Facility:
    """What stands around the GPUs; every factor may be given, and none is hidden."""

    pue: float | None = None
    """Watts of the building for each watt of its servers; None: as the price list of owned hardware says, or 1."""
    server_watts: float | None = None
    """What a server draws beside its GPUs, at rest; None: as its kind does."""
    server_factor: float | None = None
    """What each watt of a board becomes at the wall of the server; None: as in its kind."""
    server: str | None = None
    """The kind of server; None: the one that the GPU is usually found in."""
    grid_carbon: float | None = None
    """Grams of CO2 for each kWh; None: carbon is not told."""
    electricity_price: float | None = None
    """Dollars for each kWh; None: as the price list of owned hardware has it, if it does."""

    def __post_init__(self) -> None:
        if self.server is not None and self.server not in servers():
            raise UnknownNameError("server", self.server, servers())
        _check("pue", self.pue, 1.0, 10.0)
        _check("server_watts", self.server_watts, 0.0, 1e6)
        _check("server_factor", self.server_factor, 1.0, 10.0)
        _check("grid_carbon", self.grid_carbon, 0.0, 1e5)
        _check("electricity_price", self.electricity_price, 0.0, 1e3)

    def or_else(self, pue: float | None, electricity_price: float | None) -> Facility:
        """The same with these where none were given."""
        return replace(
            self,
            pue=self.pue if self.pue is not None else pue,
            electricity_price=self.electricity_price if self.electricity_price is not None else electricity_price,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Wall(Shown):
    """What a run draws at the wall of its building; watts are means over the run, of all GPUs together."""

    gpu_watts: float
    """Watts of the boards alone."""
    server_watts: float
    """Watts of the servers, or of the share of them that the GPUs are."""
    watts: float
    """Watts of the building for these servers: times PUE."""
    peak_watts: float
    """Watts of the building while the boards draw most."""
    joules: float
    """Joules of the run at the wall."""
    low: float
    """80 % interval of the joules ..."""
    high: float
    """... and its upper end, in joules."""
    joules_per_output_token: float
    """Joules at the wall."""
    joules_per_request: float
    """Joules at the wall."""
    watt_hours_per_million_output_tokens: float
    """Watt-hours at the wall."""
    grams_co2_per_hour: float | None
    """Grams of CO2 per hour; None without a grid factor."""
    grams_co2_per_million_output_tokens: float | None
    """Grams of CO2; None without a grid factor."""
    usd_per_hour: float | None
    """Dollars of electricity alone, per hour; None without a price."""
    usd_per_million_output_tokens: float | None
    """Dollars of electricity alone; None without a price."""
    pue: float
    """Watts of the building for each watt of its servers, a factor."""
    servers: tuple[Server, ...]
    """The kind of each pool, with the factors that were used."""

    def _words(self) -> str:
        token = f"{self.joules_per_output_token:.3g} J per output token"
        return f"{self.watts:,.0f} W on average, {token}, PUE {self.pue:g}"

    @property
    def kilowatt_hours_per_day(self) -> float:
        """If it went on like this."""
        return self.watts * 24 / KILO

    @property
    def overhead(self) -> float:
        """Watts at the wall for each watt of a board."""
        return self.watts / self.gpu_watts


def servers_of(system: System, facility: Facility) -> list[tuple[int, Server]]:
    """GPUs of each pool and the server that they are in."""
    return [(pool.gpus, server_around(pool.deployment.gpu, facility)) for pool in system.pools]


def server_around(gpu: Gpu, facility: Facility) -> Server:
    """The server that a GPU is in, with what was given instead of its own factors."""
    server = server_of(gpu, facility.server)
    if facility.server_watts is not None:
        server = replace(server, base_watts=facility.server_watts)
    return server if facility.server_factor is None else replace(server, factor=facility.server_factor)


def wall_watts(boards: list[tuple[int, Server, float]], pue: float) -> float:
    """Watts at the wall of so many GPUs in a kind of server, each with a mean of so many watts."""
    return pue * sum(server.base_of(count) + server.factor * count * watts for count, server, watts in boards)


def at_the_wall(energy: Energy, system: System, facility: Facility) -> Wall:
    """What a run draws at the wall, by the energy of its GPU boards."""
    placed, pue = servers_of(system, facility), facility.pue or 1.0
    pools = list(zip(placed, energy.pools, strict=True))
    server = wall_watts([(count, kind, pool.mean_watts) for (count, kind), pool in pools], 1.0)
    peak = wall_watts([(count, kind, pool.peak_watts) for (count, kind), pool in pools], pue)
    boards = energy.mean_watts * system.gpus
    watts = pue * server
    times = watts / boards
    off = TENTH * max(kind.spread for _, kind in placed)
    low, high = (exp(hypot(log(energy.joules / end), off)) for end in (energy.low, energy.high))
    hours = watts / KILO
    per_million = energy.watt_hours_per_million_output_tokens * times
    carbon, price = facility.grid_carbon, facility.electricity_price
    return Wall(
        gpu_watts=boards,
        server_watts=server,
        watts=watts,
        peak_watts=peak,
        joules=energy.joules * times,
        low=energy.joules * times / low,
        high=energy.joules * times * high,
        joules_per_output_token=energy.joules_per_output_token * times,
        joules_per_request=energy.joules_per_request * times,
        watt_hours_per_million_output_tokens=per_million,
        grams_co2_per_hour=None if carbon is None else hours * carbon,
        grams_co2_per_million_output_tokens=None if carbon is None else per_million / KILO * carbon,
        usd_per_hour=None if price is None else hours * price,
        usd_per_million_output_tokens=None if price is None else per_million / KILO * price,
        pue=pue,
        servers=tuple(kind for _, kind in placed),
    )


def _check(name: str, value: float | None, least: float, most: float) -> None:
    """Raise InputError unless a number that was given is between two others."""
    if value is not None and not least <= value <= most:
        raise InputError(f"{name} must be a number from {least:g} to {most:g}, not {value:g}")
