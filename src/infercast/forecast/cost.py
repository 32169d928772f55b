"""What a run costs: dollars an hour, a request and a million tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from infercast.forecast.money import GpuPrice, Tariff, around
from infercast.forecast.wall import Facility

if TYPE_CHECKING:
    from infercast.forecast.result import Forecast

SECONDS_AN_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars. Each is the whole cost, divided by one thing: input and output tokens do not share it."""

    per_hour: float
    """Dollars per hour of all GPUs."""
    per_request: float
    """Dollars per request."""
    per_million_input_tokens: float
    """Dollars, if input tokens pay for all."""
    per_million_output_tokens: float
    """Dollars, if output tokens pay for all."""
    per_million_tokens: float
    """Dollars, input and output tokens alike."""


def hourly(gpus: Sequence[tuple[int, GpuPrice | None]]) -> float | None:
    """Dollars an hour of so many GPUs of each price; None where one price is not known."""
    parts = [count * price.per_hour for count, price in gpus if price is not None]
    return sum(parts) if len(parts) == len(gpus) else None


def cost_at(per_hour: float, requests_per_second: float, input_tokens: float, output_tokens: float) -> Cost:
    """What is paid for each request and token; ``input_tokens`` and ``output_tokens`` are those a second."""
    second = per_hour / SECONDS_AN_HOUR
    return Cost(
        per_hour=per_hour,
        per_request=second / requests_per_second,
        per_million_input_tokens=MILLION * second / input_tokens,
        per_million_output_tokens=MILLION * second / output_tokens,
        per_million_tokens=MILLION * second / (input_tokens + output_tokens),
    )


def prices_of(forecast: Forecast, tariff: Tariff) -> list[tuple[int, str, GpuPrice | None]]:
    """GPUs of each pool, how many, and what an hour of one costs."""
    pools = [(pool.pool.gpus, pool.deployment.gpu.name) for pool in forecast.pools]
    return [(count, gpu, tariff.price(gpu, forecast.facility)) for count, gpu in pools]


def metered_electricity(forecast: Forecast, prices: Sequence[tuple[int, str, GpuPrice | None]]) -> float:
    """Dollars an hour that owned GPUs cost on top, by what they draw at the wall; rents have it in their price."""
    metered = sum(count for count, _, price in prices if price is not None and price.metered)
    wall = forecast.wall if metered else None
    return 0.0 if wall is None or wall.usd_per_hour is None else wall.usd_per_hour * metered / forecast.gpus


def facility_of(forecast: Forecast) -> Facility:
    """What stands around the GPUs: as it was given, and else as the list of owned hardware has it."""
    return around((price for _, _, price in prices_of(forecast, forecast.tariff)), forecast.facility)


def per_hour_of(forecast: Forecast, tariff: Tariff | None = None) -> float | None:
    """Dollars per hour of all GPUs, whatever they serve; None where a price is not known."""
    prices = prices_of(forecast, forecast.tariff if tariff is None else tariff)
    rent = hourly([(count, price) for count, _, price in prices])
    return None if rent is None else rent + metered_electricity(forecast, prices)


def cost_of(forecast: Forecast, tariff: Tariff | None = None) -> Cost | None:
    """What a run costs at the rates that it reached; None where a price is not known, or no rate is a steady one."""
    per_hour = per_hour_of(forecast, tariff) if forecast.state.is_steady else None
    if per_hour is None:
        return None
    rate = forecast.requests_per_second
    inputs = float(np.mean([request.num_input for request in forecast.workload.requests]))
    return cost_at(per_hour, rate, rate * inputs, forecast.output_tokens_per_second)
