"""Options that say what stands around the GPUs: servers, the building, the grid and the electricity bill."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from infercast.forecast.wall import Facility

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
