"""80 % intervals of what users would see, from what kernels and host may be off.

A run is simulated again with GPU times at the upper ends of their intervals, and once more with host times at theirs.
By how much a result moves each time (as a logarithm) and, for a percentile, what chance adds, are added in squares and
taken as half the width of its interval: a queue's amplification is in it, and so is that a GPU's error is hidden where
it waits for its host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infercast.forecast.fleet import FleetForecast, busiest, serve_pool
from infercast.forecast.intervals.luck import LENGTHS, LENGTHS_STEP_BY_STEP, luck_of
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.uncertainty import Uncertainty, gain_of, slowed, uncertainty_of
from infercast.forecast.latency import NAMES, Percentiles
from infercast.forecast.serving import Forecast
from infercast.serve import Record, Replica, Workload
from infercast.serve.fleet.pool import Pool, same_engines
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

LEVEL = 0.8
MOST_REQUESTS = 256
"""A longer run's response is that of its first requests: it is a ratio, which does not need as many."""
MOST_STEP_BY_STEP = 64
"""The same where no stretch of steps can be jumped over, which takes ten times as long."""


@dataclass(frozen=True, slots=True)
class Band:
    """The ends of the 80 % interval of a latency's mean and percentiles, in seconds."""

    low: Percentiles
    high: Percentiles


@dataclass(frozen=True, slots=True)
class Intervals:
    """What a run's results lie within, four times out of five."""

    ttft: Band
    tpot: Band | None
    inter_token: Band | None
    end_to_end: Band
    output_tokens_per_second: tuple[float, float]
    requests_per_second: tuple[float, float]


class Summary(Protocol):
    """What a forecast says of latencies and throughput."""

    @property
    def ttft(self) -> Percentiles: ...  # noqa: D102
    @property
    def tpot(self) -> Percentiles | None: ...  # noqa: D102
    @property
    def inter_token(self) -> Percentiles | None: ...  # noqa: D102
    @property
    def end_to_end(self) -> Percentiles: ...  # noqa: D102
    @property
    def output_tokens_per_second(self) -> float: ...  # noqa: D102
    @property
    def requests_per_second(self) -> float: ...  # noqa: D102


def pool_half_widths(
    pool: Pool, workload: Workload, uncertainty: Uncertainty, results: Callable[[Record | Served], Array], chance: Array
) -> Array:
    """The same for equal engines behind a router, which are all off alike; ``results`` sums up what clients saw."""
    first, most = first_of(pool), MOST_REQUESTS if _jumps(pool) else MOST_STEP_BY_STEP
    workload = replace(workload, requests=workload.requests[:most])

    def run(engine: Replica) -> Array:
        engines = same_engines(engine, len(pool.replicas))
        return results(serve_pool(replace(pool, replicas=engines), workload)[1])

    return half_widths(first, uncertainty, run, chance)


def half_widths(
    replica: Replica, uncertainty: Uncertainty, results: Callable[[Replica], Array], chance: Array
) -> Array:
    """How far results may be off, as logarithms; ``results`` runs an engine and sums up what came out."""
    by_gpu, by_host = responses(replica, uncertainty, results)
    return np.asarray(np.sqrt(by_gpu**2 + by_host**2 + chance**2))


def responses(replica: Replica, uncertainty: Uncertainty, results: Callable[[Replica], Array]) -> tuple[Array, Array]:
    """By how much results move, as logarithms, with the GPU at the upper end of its interval, and with the host."""
    base = results(slowed(replica))
    by_gpu = results(slowed(replica, prompts=exp(uncertainty.prompts), decodes=exp(uncertainty.decodes)))
    by_host = results(slowed(replica, host=exp(uncertainty.host)))
    return np.asarray(np.log(by_gpu / base)), np.asarray(np.log(by_host / base))


def forecast_intervals(forecast: Forecast | FleetForecast) -> Intervals:
    """80 % intervals of a forecast's latencies and throughput.

    Where chance made the requests, it may have made others: what that does is told by a few further draws. Of requests
    that are given only the ranks of percentiles are left to chance.
    """
    if isinstance(forecast, FleetForecast):
        pool, records = forecast.pool, forecast.records
    else:
        pool, records = Pool((forecast.replica,)), (forecast.record,)
    served = records[0] if len(records) == 1 else Served(records)
    uncertainty = uncertainty_of(forecast.deployment, busiest(records))
    lengths = LENGTHS if _jumps(pool) else LENGTHS_STEP_BY_STEP
    luck = luck_of(forecast.workload, served, first_of(pool), lambda other: serve_pool(pool, other)[1], lengths)
    chance = chance_in(served) if luck is None else luck
    widths = pool_half_widths(pool, forecast.workload, uncertainty, results_of, chance)
    return around(forecast, widths, gain_of(forecast.deployment, busiest(records)))


def first_of(pool: Pool) -> Replica:
    """Any engine of a pool: all are equal."""
    return pool.replicas[0]


def _jumps(pool: Pool) -> bool:
    """Whether stretches of steps can be jumped over."""
    first = first_of(pool)
    return first.stages is None and not first.policy.prompts_first and not pool.lockstep


def around(forecast: Summary, widths: Array, gain: float = inf) -> Intervals:
    """Intervals of these widths around a forecast's own numbers; no time is shorter by more than ``gain`` says."""
    factors, rate = np.exp(widths[:-1].reshape(4, len(NAMES))), exp(widths[-1])
    gains, faster = np.minimum(factors, exp(gain)), min(rate, exp(gain))

    def band(values: Percentiles | None, number: int) -> Band | None:
        if values is None:
            return None
        ends = np.array(values.values)
        low, high = ends / gains[number], ends * factors[number]
        return Band(Percentiles(*low.tolist()), Percentiles(*high.tolist()))

    ttft, end_to_end = band(forecast.ttft, 0), band(forecast.end_to_end, 3)
    assert ttft is not None
    assert end_to_end is not None
    tokens, requests = forecast.output_tokens_per_second, forecast.requests_per_second
    return Intervals(
        ttft=ttft,
        tpot=band(forecast.tpot, 1),
        inter_token=band(forecast.inter_token, 2),
        end_to_end=end_to_end,
        output_tokens_per_second=(tokens / rate, tokens * faster),
        requests_per_second=(requests / rate, requests * faster),
    )
