"""What a run costs: dollars an hour, a request and a million tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from infercast.forecast.money import GpuPrice, Tariff

if TYPE_CHECKING:
    from infercast.forecast.result import Forecast

SECONDS_AN_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars. Each is the whole cost, divided by one thing: input and output tokens do not share it."""

    per_hour: float
    per_request: float
    per_million_input_tokens: float
    per_million_output_tokens: float
    per_million_tokens: float
    """Of input and output together."""


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
    return [(count, gpu, tariff.price(gpu)) for count, gpu in pools]


def cost_of(forecast: Forecast, tariff: Tariff | None = None) -> Cost | None:
    """What a run costs at the rates that it reached; None where a price is not known."""
    tariff = forecast.tariff if tariff is None else tariff
    per_hour = hourly([(count, price) for count, _, price in prices_of(forecast, tariff)])
    if per_hour is None:
        return None
    rate = forecast.requests_per_second
    inputs = float(np.mean([request.num_input for request in forecast.workload.requests]))
    return cost_at(per_hour, rate, rate * inputs, forecast.output_tokens_per_second)
