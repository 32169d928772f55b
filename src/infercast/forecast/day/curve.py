"""What one replica does under each load, learnt from a few simulations.

The state of a replica is the number of requests in it, running or waiting. From simulations at several rates, and of a
replica kept full, we know for each number how many requests a second leave it, and how long requests take that meet
it so. Beyond the number that it can run at once, each further request waits for those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.capacity import num_seats
from infercast.forecast.day.traffic import Traffic
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import QUANTITIES, Slo
from infercast.forecast.system import System
from infercast.serve import Workload
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

SHARES = (0.02, 0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94)
"""Loads that are simulated, as shares of the rate of a replica that is kept full."""
FULLNESS = (0.3, 1.0)
"""Shares of the seats of a replica that closed loops keep taken."""
LEAST, MOST = 1500, 12_000
"""Requests of a simulation: so many residence times, within these."""
RESIDENCES = 20.0
ROUNDS = 8
"""The same of closed loops: requests of each client."""
LONGER = 2
"""A run that did not settle is made so many times as long ..."""
RAMP_UP = 0.4
"""... and if that does not help, so much of it is left out: a replica near its limit fills up for long."""
SEED = 7


@dataclass(frozen=True, slots=True)
class Level:
    """A replica with a steady number of requests in it."""

    in_system: float
    rate: float
    """Requests a second that come and go."""
    forecast: Forecast
    values: tuple[Array, ...]
    """For each limit of the SLO, the latency it is about of each request, in ascending order."""
    slack: Array
    """Seconds that each request could wait longer and still keep every limit; ascending."""


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A replica under every load."""

    levels: tuple[Level, ...]
    """By the number of requests in it."""
    slo: Slo
    full_rate: float
    """Requests a second that it serves at most."""
    in_system: Array
    rates: Array

    def wait(self, in_system: float) -> float:
        """Seconds that a request waits before it is where the fullest level begins."""
        return max(0.0, in_system - float(self.in_system[-1])) / self.full_rate

    def attained(self, in_system: float) -> float:
        """Share of the requests that keep every limit."""
        wait = self.wait(in_system)
        low, high, part = self._beside(in_system)
        shares = [1.0 - np.searchsorted(level.slack, wait) / level.slack.size for level in (low, high)]
        return float(shares[0] + part * (shares[1] - shares[0]))

    def use_of_limits(self, in_system: float) -> float:
        """The largest latency over its limit: below 1 the SLO holds."""
        wait = self.wait(in_system)
        low, high, part = self._beside(in_system)
        uses = []
        for place, limit in enumerate(self.slo.limits):
            ends = [_summary(level.values[place], limit.percentile) for level in (low, high)]
            added = 0.0 if limit.quantity == "tpot" else wait
            uses.append((ends[0] + part * (ends[1] - ends[0]) + added) / limit.seconds)
        return max(uses)

    def beyond(self, in_system: float) -> list[float]:
        """For each limit, the share of requests beyond it; of a limit on a mean all or none."""
        wait = self.wait(in_system)
        low, high, part = self._beside(in_system)
        shares = []
        for place, limit in enumerate(self.slo.limits):
            room = limit.seconds - (0.0 if limit.quantity == "tpot" else wait)
            values = [level.values[place] for level in (low, high)]
            if limit.percentile is None:
                means = [_summary(each, None) for each in values]
                shares.append(float(means[0] + part * (means[1] - means[0]) >= room))
                continue
            ends = [1.0 - np.searchsorted(each, room) / max(1, each.size) for each in values]
            shares.append(float(ends[0] + part * (ends[1] - ends[0])) if values[1].size else 0.0)
        return shares

    def most_kept(self) -> float:
        """The largest number of requests in a replica with which the SLO holds; 0 where it never does."""
        low, high = 0.0, 2.0 * float(self.in_system[-1])
        if self.use_of_limits(low) >= 1.0:
            return 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.use_of_limits(middle) < 1.0 else (low, middle)
        return low

    def rate_at(self, in_system: float) -> float:
        """Requests a second that leave it."""
        return float(np.interp(in_system, self.in_system, self.rates))

    def percentile(self, quantity: str, name: str, in_system: float) -> float:
        """A latency in seconds, such as ``("ttft", "p99")``."""
        low, high, part = self._beside(in_system)
        found = [getattr(level.forecast, QUANTITIES[quantity]) for level in (low, high)]
        ends = [0.0 if each is None else float(getattr(each, name)) for each in found]
        added = 0.0 if quantity == "tpot" else self.wait(in_system)
        return ends[0] + part * (ends[1] - ends[0]) + added

    def _beside(self, in_system: float) -> tuple[Level, Level, float]:
        """The levels beside a number, and how far it is from the one to the other."""
        place = int(np.clip(np.searchsorted(self.in_system, in_system), 1, len(self.levels) - 1))
        low, high = self.levels[place - 1], self.levels[place]
        part = (in_system - low.in_system) / (high.in_system - low.in_system)
        return low, high, float(np.clip(part, 0.0, 1.0))


def _summary(values: Array, percentile: float | None) -> float:
    """A mean or a percentile; 0 where no answer has a second token."""
    if not values.size:
        return 0.0
    return float(values.mean() if percentile is None else np.percentile(values, percentile))


def learn_curve(system: System, traffic: Traffic, slo: Slo, replicas: int = 1) -> LoadCurve:
    """Simulate a replica at several loads with requests of the day; alone, or as one of so many in a system.

    Behind a load balancer each has steadier traffic than one alone. The curve is that of one of them either way.
    """
    random = np.random.default_rng(SEED)
    mix = _sample(traffic, MOST if replicas == 1 else 2 * MOST, random)
    whole = traffic.workload(mix, np.zeros(mix.size))
    full = most_requests_per_second(system, whole)
    levels: list[Level] = []
    for share in SHARES:
        rate, stay = share * full, levels[-1].in_system / levels[-1].rate if levels else 1.0
        count = min(int(max(RESIDENCES * rate * stay, LEAST)), mix.size)
        comes = partial(_at_rate, traffic, mix, random.exponential(1.0 / rate, mix.size), rate)
        levels.append(_level(_settled(system, comes, count, mix.size), slo, rate, replicas))
    pool = system.pools[-1].engines
    seats = len(pool.replicas) * num_seats(pool.replicas[0], whole.requests)
    for share in FULLNESS:
        clients = int(share * seats)
        if clients > (1.2 if share < 1.0 else 1.02) * replicas * levels[-1].in_system:
            count = int(np.clip(ROUNDS * clients, LEAST, 2 * MOST))
            closed = partial(_clients, traffic, mix, clients)
            levels.append(_level(_settled(system, closed, count, 2 * MOST), slo, None, replicas))
    ordered = sorted(levels, key=lambda level: level.in_system)
    # A replica with more in it serves no less; what chance makes of it otherwise is smoothed.
    each = full / replicas
    rates = np.maximum.accumulate([min(level.rate, each) for level in ordered[:-1]] + [each])
    return LoadCurve(tuple(ordered), slo, each, np.array([level.in_system for level in ordered]), rates)


def _sample(traffic: Traffic, count: int, random: np.random.Generator) -> Array:
    """Requests like those of the day: any of them, or what shares beginnings in the order it came."""
    size = traffic.arrivals.size
    if size <= count:
        return random.permutation(size) if not traffic.shares_prefixes else np.arange(size)
    if traffic.shares_prefixes:
        first = (size - count) // 2
        return np.arange(first, first + count)
    return random.choice(size, count, replace=False)


def _settled(system: System, load: Callable[[int], Workload], count: int, most: int) -> Forecast:
    """A run of the steady part of which all is told, if it has one; a longer one where the first is too short."""
    while True:
        workload = load(count)
        run = system.serve(workload)
        forecast = simulate_system(system, workload, run=run)
        if forecast.steady.reached:
            return simulate_system(system, workload, run=run, steady=True)
        if count >= most:
            return forecast
        count = min(LONGER * count, most)


def _at_rate(traffic: Traffic, mix: Array, gaps: Array, rate: float, count: int) -> Workload:
    """So many requests that together come at just the rate: luck makes no level busier than it says."""
    arrivals = np.cumsum(gaps[:count])
    return traffic.workload(mix[:count], arrivals * (count / rate / arrivals[-1]), rate)


def _clients(traffic: Traffic, mix: Array, clients: int, count: int) -> Workload:
    """A closed loop, which keeps so many requests in a replica."""
    chosen = np.resize(mix, count)
    load = traffic.workload(chosen, np.zeros(count))
    return Workload(load.requests, concurrency=clients, description=load.description)


def _level(forecast: Forecast, slo: Slo, rate: float | None, replicas: int) -> Level:
    """What a simulation shows, from its steady part where it has one, and else without its beginning."""
    served, start = forecast.clients, float(forecast.clients.sent_at.min())
    begin, end = forecast.window or (start + RAMP_UP * forecast.steady.end, start + forecast.steady.end)
    kept = (served.sent_at >= begin) & (served.sent_at <= end)
    done = np.count_nonzero((served.last_token > begin) & (served.last_token <= end)) / max(end - begin, 1e-9)
    through = (rate or float(done)) / replicas
    stay = float(served.end_to_end[kept].mean())
    several = served.num_output > 1
    tpot = np.zeros(served.sent_at.size)
    tpot[several] = served.tpot
    latencies = {"ttft": served.ttft[kept], "e2e": served.end_to_end[kept], "tpot": tpot[kept & several]}
    values = tuple(np.sort(latencies[limit.quantity]) for limit in slo.limits)
    return Level(through * stay, through, forecast, values, _slack(served, tpot, kept, slo))


def _slack(served: Served, tpot: Array, kept: Array, slo: Slo) -> Array:
    """How much longer each request could wait; less than nothing where it is too late already."""
    slack = np.full(served.sent_at.size, np.inf)
    for quantity, seconds in slo.of_a_request.items():
        if quantity == "tpot":
            slack[tpot >= seconds] = -np.inf
        else:
            slack = np.minimum(slack, seconds - (served.ttft if quantity == "ttft" else served.end_to_end))
    slack[slack <= 0] = -np.inf
    return np.sort(slack[kept])
