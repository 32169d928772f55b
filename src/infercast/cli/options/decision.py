"""Options that say what is promised to users, and what GPUs cost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli.options.facility import Powered
from infercast.forecast.money import Tariff
from infercast.forecast.slo import EXAMPLE, Slo, parse_slo

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
