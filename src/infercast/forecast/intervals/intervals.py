"""80 % intervals of what users would see, from what kernels and host may be off.

A run is simulated again with GPU times at the upper ends of their intervals, and once more with host times at theirs.
By how much a result moves each time (as a logarithm) and, for a percentile, what chance adds, are added in squares and
taken as half the width of its interval: a queue's amplification is in it, and so is that a GPU's error is hidden where
it waits for its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals.luck import LENGTHS, LENGTHS_STEP_BY_STEP, luck_of, steady_luck
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.slowed import slowed
from infercast.forecast.intervals.uncertainty import (
    EIGHTY,
    ELSEWHERE,
    LINK_SPREAD,
    Uncertainty,
    gain_of,
    uncertainty_of,
)
from infercast.forecast.latency import NAMES, Percentiles
from infercast.forecast.outcome import Outcome
from infercast.forecast.result import Forecast
from infercast.forecast.system import System, busiest
from infercast.serve import Replica, Workload
from infercast.serve.fleet.served import Served
from infercast.shown import Answer
from infercast.units import format_seconds

Array = npt.NDArray[Any]

LEVEL = 0.8
MOST_REQUESTS = 256
"""A longer run's response is that of its first requests: it is a ratio, which does not need as many."""
MOST_STEP_BY_STEP = 64
"""The same where no stretch of steps can be jumped over, which takes ten times as long."""


class Band(NamedTuple):
    """The ends of the 80 % interval of a latency's mean and percentiles, in seconds."""

    low: Percentiles
    high: Percentiles


@dataclass(frozen=True, slots=True, repr=False)
class Intervals(Answer):
    """What a run's results lie within, four times out of five."""

    ttft: Band
    tpot: Band | None
    inter_token: Band | None
    end_to_end: Band
    output_tokens_per_second: tuple[float, float]
    """Lower and upper end, in output tokens per second."""
    requests_per_second: tuple[float, float]
    """Lower and upper end, in requests per second."""

    def _words(self) -> str:
        low, high = self.ttft.low.p50, self.ttft.high.p50
        rates = "{:,.0f} to {:,.0f}".format(*self.output_tokens_per_second)
        return f"TTFT p50 {format_seconds(low)} to {format_seconds(high)}, {rates} output tokens/s (80 %)"


def system_half_widths(
    system: System,
    workload: Workload,
    uncertainties: Sequence[Uncertainty],
    results: Callable[[Served], Array],
    chance: Array,
) -> Array:
    """How far results may be off, as logarithms; ``results`` sums up what clients saw.

    All replicas of all pools are off alike, and the link between pools by itself.
    """
    most = MOST_REQUESTS if jumps_over(system) else MOST_STEP_BY_STEP
    workload = replace(workload, requests=workload.requests[:most])

    def run(link: float = 1.0, **end: bool) -> Array:
        both = zip(system.pools, uncertainties, strict=True)
        pools = tuple(pool.of(longer(pool.replica, about, **end)) for pool, about in both)
        wire = system.wire
        if wire is not None:
            wire = replace(wire, sending=wire.sending / link, receiving=wire.receiving / link)
        return results(system._replace(pools=pools, wire=wire).serve(workload).clients)

    base, moved = run(), [run(gpu=True), run(host=True)]
    if system.wire is not None:
        moved.append(run(link=exp(EIGHTY * LINK_SPREAD)))
    return added_in_squares([np.log(each / base) for each in moved], chance)


def half_widths(
    replica: Replica, uncertainty: Uncertainty, results: Callable[[Replica], Array], chance: Array
) -> Array:
    """The same of one replica; ``results`` runs it and sums up what came out."""
    return added_in_squares(responses(replica, uncertainty, results), chance)


def added_in_squares(moved: Sequence[Array], chance: Array) -> Array:
    """What independent causes do together."""
    return np.asarray(np.sqrt(np.square([*moved, chance]).sum(axis=0)))


def responses(replica: Replica, uncertainty: Uncertainty, results: Callable[[Replica], Array]) -> tuple[Array, Array]:
    """By how much results move, as logarithms, with the GPU at the upper end of its interval, and with the host."""
    base = results(longer(replica, uncertainty))
    by_gpu, by_host = (results(longer(replica, uncertainty, **{end: True})) for end in ("gpu", "host"))
    return np.asarray(np.log(by_gpu / base)), np.asarray(np.log(by_host / base))


def longer(replica: Replica, about: Uncertainty, *, gpu: bool = False, host: bool = False) -> Replica:
    """A replica at the upper end of its GPU's interval, or of its host's."""
    return slowed(
        replica,
        prompts=exp(about.prompts) if gpu else 1.0,
        decodes=exp(about.decodes) if gpu else 1.0,
        host=exp(about.host) if host else 1.0,
        path=about.path if host else 0.0,
    )


def forecast_intervals(forecast: Forecast) -> Intervals:
    """80 % intervals of a forecast's latencies and throughput.

    Where chance made the requests, it may have made others: what that does is told by a few further draws. Of requests
    that are given only the ranks of percentiles are left to chance.
    """
    system, served = forecast.system, forecast.clients
    # No two pools were measured, on whatever machine.
    spread = None if system.wire is None else ELSEWHERE
    uncertainties = [uncertainty_of(pool.deployment, busiest(pool.records), spread) for pool in forecast.pools]
    lengths = LENGTHS if jumps_over(system) else LENGTHS_STEP_BY_STEP
    replica = system.pools[-1].replica
    luck: Array | None
    if (window := forecast.window) is not None:
        luck = steady_luck(served, forecast.workload, *window)
    else:
        luck = luck_of(forecast.workload, served, replica, lambda other: system.serve(other).clients, lengths)
    chance = chance_in(served) if luck is None else luck
    widths = system_half_widths(system, forecast.workload, uncertainties, results_of, chance)
    gains = [gain_of(pool.deployment, busiest(pool.records)) for pool in forecast.pools]
    return around(forecast, widths, max(gains))


def jumps_over(system: System) -> bool:
    """Whether stretches of steps can be jumped over."""
    pool = system.pools[0]
    plain = pool.replica.stages is None and pool.replica.policy.repeats and not pool.engines.lockstep
    return plain or system.wire is not None


def around(forecast: Outcome, widths: Array, gain: float = inf) -> Intervals:
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
