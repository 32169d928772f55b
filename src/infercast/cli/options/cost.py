"""Options of SLO, GPU prices, facility power, grid carbon and electricity."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.forecast.cost import Tariff
from infercast.forecast.energy import Facility
from infercast.forecast.slo import EXAMPLE, Slo, parse_slo

of_facility = partial(typer.Option, rich_help_panel="Energy")

Pue = Annotated[
    float | None,
    of_facility("--pue", metavar="X", help="Watts of the building for each watt of its servers; 1 if not given."),
]
ServerKind = Annotated[
    str | None,
    of_facility("--server", metavar="KIND", help="baseboard, cards, desktop, superchip or rack; default: by the GPU."),
]
ServerWatts = Annotated[
    float | None,
    of_facility("--server-watts", metavar="W", help="What a server draws beside its GPUs, at rest."),
]
ServerFactor = Annotated[
    float | None,
    of_facility("--server-factor", metavar="X", help="What fans and power supplies make of each watt of a GPU board."),
]
GridCarbon = Annotated[
    float | None, of_facility("--grid-carbon", metavar="G", help="Grams of CO2 for each kWh of your grid.")
]
ElectricityPrice = Annotated[
    float | None, of_facility("--electricity-price", metavar="X", help="Dollars for each kWh.")
]


class Powered:
    """What stands around the GPUs."""

    pue: Pue = None
    server: ServerKind = None
    server_watts: ServerWatts = None
    server_factor: ServerFactor = None
    grid_carbon: GridCarbon = None
    electricity_price: ElectricityPrice = None


def facility_of(given: dict[str, Any]) -> Facility:
    """What the options of a command say of it."""
    return Facility(
        pue=given["pue"],
        server=given["server"],
        server_watts=given["server_watts"],
        server_factor=given["server_factor"],
        grid_carbon=given["grid_carbon"],
        electricity_price=given["electricity_price"],
    )


of_decision = partial(typer.Option, rich_help_panel="Promise and money")

SloText = Annotated[
    str | None,
    of_decision("--slo", metavar="LIMITS", help=f"What users are promised: {EXAMPLE}."),
]
PricePerGpuHour = Annotated[
    float | None, of_decision("--price-per-gpu-hour", metavar="X", help="Dollars per hour of each GPU.")
]
Prices = Annotated[
    Path | None,
    of_decision("--prices", metavar="FILE", help="Your own prices (TOML): rented GPUs, or what bought ones cost."),
]
Provider = Annotated[
    str | None,
    of_decision("--provider", metavar="NAME", help="Whose prices: aws, gcp, lambda, ...; default: the middle of all."),
]
Spot = Annotated[bool, of_decision("--spot", metavar="", help="Spot prices instead of those on demand.")]


class Decided(Powered):
    """What is promised, whose prices count, and what stands around the GPUs."""

    slo: SloText = None
    price_per_gpu_hour: PricePerGpuHour = None
    prices: Prices = None
    provider: Provider = None
    spot: Spot = False


def slo_of(given: dict[str, Any]) -> Slo | None:
    """The SLO that the options of a command ask for, if any."""
    return None if given["slo"] is None else parse_slo(given["slo"])


def tariff_of(given: dict[str, Any]) -> Tariff:
    """Whose prices they ask for; a file or a provider that cannot be read is told before anything is simulated."""
    tariff = Tariff(given["provider"], given["spot"], given["prices"], given["price_per_gpu_hour"])
    if tariff.provider is not None or tariff.file is not None:
        tariff.price("")
    return tariff
