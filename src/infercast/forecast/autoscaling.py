"""A fleet under changing load: traffic of a day, load curve of one replica, start-up times, and scaling policies.

A replica's state is the number of requests in it. Steps are implicit (requests leave at the rate of a step's end), so
that long ones do not overshoot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import ceil, cos, pi
from typing import Any, NamedTuple

import numpy as np

from infercast.errors import InputError, require
from infercast.forecast.cost import GpuPrice
from infercast.forecast.progress import Pace, note_cut, share_of_time
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import QUANTITIES, Array, Limit, Slo, latency_of
from infercast.forecast.steady import num_seats
from infercast.forecast.system import System
from infercast.serve import Request, Workload
from infercast.serve.fleet.pool import Outages
from infercast.serve.workload.distributions import LengthDistribution

DAY = 86_400.0
WINDOW = 60.0  # seconds of a window: a minute in or out of the SLO
STEP = 10.0
MOST_WINDOWS = 20_160
PEAK_HOUR = 14.0


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival, and the windows they fall in."""

    arrivals: Array
    inputs: Array
    outputs: Array
    window: float
    description: str
    requests: tuple[Request, ...] | None = None  # As a trace had them, with what they share

    @cached_property
    def num_windows(self) -> int:
        return max(1, int(self.arrivals[-1] // self.window) + 1)

    @cached_property
    def places(self) -> Array:
        return np.asarray((self.arrivals // self.window).astype(np.int64))

    @cached_property
    def counts(self) -> Array:
        return np.bincount(self.places, minlength=self.num_windows)

    @property
    def shares_prefixes(self) -> bool:
        return self.requests is not None and any(request.prefix for request in self.requests)

    def load(self, weights: Array) -> Array:
        """Typical requests a second in each window, where each request counts as its weight."""
        return np.bincount(self.places, weights, self.num_windows) / self.window

    def _stretches(self, most: int) -> Array:
        return np.linspace(0, self.num_windows, min(most, self.num_windows) + 1).astype(np.int64)

    def middles(self, most: int) -> list[float]:
        """The middles, in seconds, of at most this many stretches of windows."""
        edges = self._stretches(most)
        middles: list[float] = ((edges[:-1] + edges[1:]) / 2 * self.window).tolist()
        return middles

    def means(self, values: Array, most: int) -> list[float]:
        """What is known of each window, on average over the same stretches."""
        edges = self._stretches(most).tolist()
        return [float(values[first:last].mean()) for first, last in pairwise(edges)]

    def between(self, begin: float, end: float) -> Workload:
        first, last = np.searchsorted(self.arrivals, (begin, end))
        return self.workload(np.arange(first, last), self.arrivals[first:last] - begin)

    def workload(self, chosen: Array, arrivals: Array, rate: float | None = None) -> Workload:
        rows = zip(arrivals.tolist(), self.inputs[chosen].tolist(), self.outputs[chosen].tolist(), strict=True)
        if self.requests is None:
            made = tuple(Request(*row) for row in rows)
        else:
            known = zip(rows, [self.requests[place] for place in chosen.tolist()], strict=True)
            made = tuple(
                Request(*row, each.prefix, each.answer, each.declared, stops=each.stops) for row, each in known
            )
        return Workload(made, rate=rate, description=f"{len(made):,} requests of the day")


def traffic_of(workload: Workload, window: float = WINDOW) -> Traffic:
    """A recorded day; its first window begins with time 0 of the trace."""
    if workload.concurrency is not None:
        raise InputError("a day of traffic has arrivals; a closed loop has none")
    requests = workload.requests
    span = requests[-1].arrival
    _check_window(window)
    if span / window > MOST_WINDOWS:
        raise InputError(f"the trace spans {span:,.0f} s, more than {MOST_WINDOWS:,} windows of {window:g} s; cut it")
    return Traffic(
        np.array([request.arrival for request in requests]), np.array([request.num_input for request in requests]),
        np.array([request.num_output for request in requests]), window, workload.description, requests,
    )  # fmt: skip


def _check_window(window: float) -> None:
    if not STEP <= window <= 3600.0 or window % STEP:
        raise InputError(f"a window must be {STEP:g} to 3600 s in whole steps of {STEP:g} s, not {window:g} s")


def parse_profile(text: str) -> tuple[float, float]:
    """``sine:1.8:14`` is a peak of 1.8 times the mean at 14 h; returns both, and ``flat`` is a factor of 1."""
    if text == "flat":
        return 1.0, PEAK_HOUR
    kind, *numbers = text.split(":")
    try:
        factor, hour = [float(number) for number in numbers] if len(numbers) == 2 else [float(*numbers), PEAK_HOUR]
    except (ValueError, TypeError):
        factor, hour = 0.0, PEAK_HOUR
    if kind != "sine" or not 1.0 <= factor <= 2.0 or not 0.0 <= hour < 24.0:
        raise InputError(
            f"day profile {text!r} must be flat or sine:FACTOR[:HOUR] with a peak of 1 to 2 times the mean, such as "
            "sine:1.8:14; give a trace for any other shape"
        )
    return factor, hour


def made_up_day(
    rate: float, profile: str, input_lengths: LengthDistribution, output_lengths: LengthDistribution, *, seed: int = 0,
    window: float = WINDOW, duration: float = DAY,
) -> Traffic:  # fmt: skip
    """A day of ``rate`` requests a second on average, with Poisson arrivals around a sinusoid of 24 hours."""
    factor, hour = parse_profile(profile)
    _check_window(window)
    if not 0 < rate * duration <= 2e7:
        raise InputError(f"rate {rate:g} over a day must give 1 to 20,000,000 requests")
    arrival_rng, input_rng, output_rng = np.random.default_rng(seed).spawn(3)
    minutes = ceil(duration / 60.0)
    middles = [(minute + 0.5) / 60.0 for minute in range(minutes)]
    expected = [60.0 * rate * (1.0 + (factor - 1.0) * cos(2 * pi * (middle - hour) / 24.0)) for middle in middles]
    counts = arrival_rng.poisson(expected)
    arrivals = np.sort(np.repeat(np.arange(minutes) * 60.0, counts) + 60.0 * arrival_rng.random(int(counts.sum())))
    if not arrivals.size:
        raise InputError(f"rate {rate:g} gives no request in the whole day")
    words = f"{arrivals.size:,} requests, {profile} around {rate:g}/s, input {input_lengths}, output {output_lengths}"
    inputs, outputs = input_lengths.sample(arrivals.size, input_rng), output_lengths.sample(arrivals.size, output_rng)
    return Traffic(arrivals, inputs, outputs, window, words)


SHARES = (0.02, 0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94)  # simulated loads, as shares of the saturated rate
LEAST, MOST = 1500, 12_000  # requests of a simulation: `RESIDENCES` residence times, within these limits
RESIDENCES = 20.0


@dataclass(frozen=True, slots=True)
class Level:
    in_system: float
    rate: float
    forecast: Forecast
    values: tuple[Array, ...]  # For each limit of the SLO, the latency it is about of each request, in ascending order
    slack: Array  # Seconds that each request could wait longer and still keep every limit; ascending


@dataclass(frozen=True)
class LoadCurve:
    levels: tuple[Level, ...]
    slo: Slo
    full_rate: float  # Requests a second that it serves at most
    in_system: Array
    rates: Array

    def wait(self, in_system: float) -> float:
        """Seconds of queueing before the fullest level."""
        return max(0.0, in_system - float(self.in_system[-1])) / self.full_rate

    def attained(self, in_system: float) -> float:
        wait = self.wait(in_system)
        return self._between(in_system, lambda level: 1.0 - np.searchsorted(level.slack, wait) / level.slack.size)

    def use_of_limits(self, in_system: float) -> float:
        """The largest latency over its limit: below 1 the SLO holds."""
        uses = []
        for place, limit in enumerate(self.slo.limits):
            value = self._between(in_system, lambda level: _summary(level.values[place], limit.percentile))  # noqa: B023
            uses.append((value + self._added(limit.quantity, in_system)) / limit.seconds)
        return max(uses)

    def beyond(self, in_system: float) -> list[float]:
        """For each limit, the share of requests beyond it; of a limit on a mean all or none."""
        return [self._beyond(place, limit, in_system) for place, limit in enumerate(self.slo.limits)]

    def _beyond(self, place: int, limit: Limit, in_system: float) -> float:
        room = limit.seconds - self._added(limit.quantity, in_system)

        def share(level: Level) -> float:
            values = level.values[place]
            return 1.0 - np.searchsorted(values, room) / max(1, values.size)

        if limit.percentile is None:
            return float(self._between(in_system, lambda level: _summary(level.values[place], None)) >= room)
        return self._between(in_system, share) if self._neighbours(in_system)[1].values[place].size else 0.0

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
        return float(np.interp(in_system, self.in_system, self.rates))

    def percentile(self, quantity: str, name: str, in_system: float) -> float:
        value = self._between(
            in_system, lambda level: getattr(getattr(level.forecast, QUANTITIES[quantity]), name, 0.0)
        )
        return value + self._added(quantity, in_system)

    def _added(self, quantity: str, in_system: float) -> float:
        return 0.0 if quantity == "tpot" else self.wait(in_system)

    def _between(self, in_system: float, value_of: Callable[[Level], float]) -> float:
        low, high, part = self._neighbours(in_system)
        ends = value_of(low), value_of(high)
        return float(ends[0] + part * (ends[1] - ends[0]))

    def _neighbours(self, in_system: float) -> tuple[Level, Level, float]:
        place = int(np.clip(np.searchsorted(self.in_system, in_system), 1, len(self.levels) - 1))
        low, high = self.levels[place - 1], self.levels[place]
        part = (in_system - low.in_system) / (high.in_system - low.in_system)
        return low, high, float(np.clip(part, 0.0, 1.0))

    @cached_property
    def _steps(self) -> tuple[Array, Array]:
        """Requests in the system at the end of a step, and what was there at its beginning and came."""
        numbers, rates = (np.concatenate([[0.0], each]) for each in (self.in_system, self.rates))
        return numbers, numbers + STEP * rates

    def after(self, in_system: float, rate: float) -> float:
        """The number in the system a step later, at a rate of typical requests."""
        end, (numbers, reached) = in_system + STEP * rate, self._steps
        if end >= reached[-1]:
            return float(numbers[-1] + end - reached[-1])
        return float(np.interp(end, reached, numbers))

    @cached_property
    def _grid(self) -> tuple[Array, dict[str, Array]]:
        """Numbers of requests, and what `interpolate` knows there."""
        longest, points = max(limit.seconds for limit in self.slo.limits), 400
        most = float(self.in_system[-1]) + 1.5 * self.full_rate * longest
        grid = np.unique(np.concatenate([np.linspace(0.0, most, points), self.in_system]))
        looks = {"attained": self.attained, "use_of_limits": self.use_of_limits, "beyond": self.beyond}
        return grid, {name: np.array([*map(look, grid.tolist())]) for name, look in looks.items()}

    def interpolate(self, name: str, in_system: Array) -> Array:
        """``attained``, ``use_of_limits`` or ``beyond`` (a column per limit) at many numbers of requests."""
        grid, values = self._grid[0], self._grid[1][name]
        columns = [np.interp(in_system, grid, each) for each in np.atleast_2d(values.T)]
        return np.stack(columns, axis=1) if values.ndim > 1 else np.asarray(columns[0])


def _summary(values: Array, percentile: float | None) -> float:
    """A mean or a percentile; 0 where no answer has a second token."""
    if not values.size:
        return 0.0
    return float(values.mean() if percentile is None else np.percentile(values, percentile))


def learn_curve(system: System, traffic: Traffic, slo: Slo, replicas: int = 1) -> LoadCurve:
    """Simulate a replica at several loads, alone or as one of ``replicas``, which have steadier traffic."""
    random = np.random.default_rng(7)
    mix = _sample(traffic, MOST if replicas == 1 else 2 * MOST, random)
    whole = traffic.workload(mix, np.zeros(mix.size))
    full = most_requests_per_second(system, whole)
    levels: list[Level] = []
    fullness = (0.3, 1.0)  # shares of a replica's seats that closed loops keep taken
    runs = len(SHARES) + len(fullness)
    for place, share in enumerate(SHARES):
        rate, stay = share * full, levels[-1].in_system / levels[-1].rate if levels else 1.0
        count = min(int(max(RESIDENCES * rate * stay, LEAST)), mix.size)
        comes = partial(_at_rate, traffic, mix, random.exponential(1.0 / rate, mix.size), rate)
        with share_of_time(1.0 / (runs - place)):
            levels.append(_level(_settled(system, comes, count, mix.size), slo, rate, replicas))
    pool = system.pools[-1].engines
    seats = len(pool.replicas) * num_seats(pool.replicas[0], whole.requests)
    rounds = 8
    for place, share in enumerate(fullness):
        clients = int(share * seats)
        if clients > (1.2 if share < 1.0 else 1.02) * replicas * levels[-1].in_system:
            count = int(np.clip(rounds * clients, LEAST, 2 * MOST))
            closed = partial(_clients, traffic, mix, clients)
            with share_of_time(1.0 / (len(fullness) - place)):
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
    """A forecast of the steady part, if the run has one; one twice as long where the first is too short, in time."""
    pace = Pace()
    while True:
        workload = load(count)
        run = system.serve(workload, go_on=lambda *_: None)
        forecast = simulate_system(system, workload, run=run)
        if forecast.steady.reached:
            return simulate_system(system, workload, run=run, steady=True)
        longer = pace.affordable(count, min(2 * count, most), again=True)
        if pace.is_late:
            note_cut("a level")
        if longer <= count:
            return forecast
        count, pace = longer, Pace()


def _at_rate(traffic: Traffic, mix: Array, gaps: Array, rate: float, count: int) -> Workload:
    """``count`` requests with exactly this mean rate, so that no level is busier by chance."""
    arrivals = np.cumsum(gaps[:count])
    return traffic.workload(mix[:count], arrivals * (count / rate / arrivals[-1]), rate)


def _clients(traffic: Traffic, mix: Array, clients: int, count: int) -> Workload:
    load = traffic.workload(np.resize(mix, count), np.zeros(count))
    return Workload(load.requests, concurrency=clients, description=load.description)


def _level(forecast: Forecast, slo: Slo, rate: float | None, replicas: int) -> Level:
    served, start = forecast.clients, float(forecast.clients.sent_at.min())
    ramp_up = 0.4  # Share of a run that never settled
    begin, end = forecast.window or (start + ramp_up * forecast.steady.end, start + forecast.steady.end)
    kept = (served.sent_at >= begin) & (served.sent_at <= end)
    done = np.count_nonzero((served.last_token > begin) & (served.last_token <= end)) / max(end - begin, 1e-9)
    through = (rate or float(done)) / replicas
    stay = float(served.end_to_end[kept].mean())
    latencies = {quantity: latency_of(served, quantity) for quantity in slo.of_a_request}
    several = served.num_output > 1
    values = tuple(
        np.sort(latencies[limit.quantity][kept & several if limit.quantity == "tpot" else kept]) for limit in slo.limits
    )
    # How much longer each request could wait; minus infinity where it is too late already
    slack = np.full(served.sent_at.size, np.inf)
    for quantity, seconds in slo.of_a_request.items():
        if quantity == "tpot":
            slack[latencies[quantity] >= seconds] = -np.inf
        else:
            slack = np.minimum(slack, seconds - latencies[quantity])
    slack[slack <= 0] = -np.inf
    return Level(through * stay, through, forecast, values, np.sort(slack[kept]))


class ServiceTime(NamedTuple):
    fixed: float
    per_input: float
    per_output: float

    def of(self, inputs: Any, outputs: Any) -> Any:
        return self.fixed + self.per_input * inputs + self.per_output * outputs


def learn_service(system: System, traffic: Traffic, longest: int) -> ServiceTime:
    random, size, mix = np.random.default_rng(11), traffic.arrivals.size, 300
    chosen = random.choice(size, min(size, mix), replace=False)
    rows, seconds = [], []
    # Factors on lengths: four rates for three coefficients
    for of_inputs, of_outputs in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (0.5, 0.5)):
        outputs = np.clip(np.rint(of_outputs * traffic.outputs[chosen]), 1, longest // 2)
        inputs = np.clip(np.rint(of_inputs * traffic.inputs[chosen]), 1, longest - outputs)
        stretched = Traffic(
            np.zeros(chosen.size), inputs.astype(np.int64), outputs.astype(np.int64), traffic.window, "", None
        )
        load = stretched.workload(np.arange(chosen.size), np.zeros(chosen.size))
        rows.append((1.0, float(inputs.mean()), float(outputs.mean())))
        seconds.append(1.0 / most_requests_per_second(system, load))
    return ServiceTime(*_non_negative(np.array(rows), np.array(seconds)).tolist())


def _non_negative(rows: Array, seconds: Array) -> Array:
    """Least squares of relative errors with coefficients of at least 0."""
    rows, targets = rows / seconds[:, None], np.ones(seconds.size)
    used = [0, 1, 2]
    while True:
        found = np.zeros(3)
        found[used] = np.linalg.lstsq(rows[:, used], targets, rcond=None)[0]
        if found.min() >= 0.0:
            return found
        used.remove(int(np.argmin(found)))


Scaler = Callable[[int, float, float], tuple[int, int]]
"""Given the step, the typical requests a second that arrived and the requests in the system: (ready, paid for)."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    ready: Array
    paid: Array  # Replicas that cost, those that are starting too
    in_system: Array
    attained: Array
    use_of_limits: Array
    beyond: Array  # Share of the requests beyond each limit (columns)


def run_fleet(curves: Mapping[int, LoadCurve], load: Array, scaler: Scaler, first: float = 0.0) -> FleetRun:
    """Step through a day; ``first`` requests are there at its begin, ``curves`` are one replica's by size of fleet."""
    by_size = sorted(curves.items())
    ready: list[int] = []
    paid: list[int] = []
    numbers: list[float] = []
    total, arrived = first, float(load[0]) if load.size else 0.0
    for step, rate in enumerate(load.tolist()):
        serving, costing = scaler(step, arrived, total)
        among = max(serving, 1)
        curve = [curve for size, curve in by_size if size <= among][-1]
        number = curve.after(total / among, rate / among) if serving else total + STEP * rate
        total, arrived = among * number, rate
        ready.append(serving)
        paid.append(costing)
        numbers.append(number)
    in_system, counts = np.array(numbers), np.array(ready)
    # Requests that arrive in a step meet what is there between its beginning and its end.
    met = (np.concatenate([[first / max(ready[0], 1)], in_system[:-1]]) + in_system) / 2
    seen = []
    for name in ("attained", "use_of_limits", "beyond"):
        (_, found), *larger = [(size, curve.interpolate(name, met)) for size, curve in by_size]
        for size, others in larger:
            found[counts >= size] = others[counts >= size]
        found[counts == 0] = 0.0 if name == "attained" else 1.0
        seen.append(np.asarray(found))
    return FleetRun(counts, np.array(paid), in_system, *seen)


def fixed(count: int) -> Scaler:
    return lambda step, rate, total: (count, count)


class Failing:
    """The replicas of others less those that are down, which are paid for all the same."""

    def __init__(self, outages: Outages, num_steps: int) -> None:
        self._outages, self._times = outages, STEP * np.arange(num_steps + 1)
        self.down = [np.zeros(num_steps + 1, dtype=np.int64)]  # In each step, of the first replicas, by their number

    def of(self, scaler: Scaler) -> Scaler:
        def decide(place: int, rate: float, total: float) -> tuple[int, int]:
            ready, paid = scaler(place, rate, total)
            while len(self.down) <= ready:
                self.down.append(self.down[-1] + self._outages.down(len(self.down) - 1, self._times))
            return ready - int(self.down[ready][place]), paid

        return decide


HOUR = 3600.0
MEASURES = ("utilization", "queue")


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Rules like those of Kubernetes' HorizontalPodAutoscaler; times in seconds."""

    measure: str = "utilization"  # ``utilization``: arrivals over what replicas can serve; ``queue``: requests of each
    target: float | None = None  # What one replica should have; None: a share of where the SLO just holds (`SAFETIES`)
    interval: float = 30.0
    up_delay: float = 0.0  # More replicas must have been needed for this long before they are started
    down_delay: float = 300.0  # Fewer must have been enough for this long before some are stopped
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        require(self.measure in MEASURES, "autoscale-on", f"be {' or '.join(MEASURES)}", repr(self.measure))
        require(self.target is None or 0 < self.target < 1e9, "autoscaler target", "be above 0", self.target)
        if not (self.interval > 0 and self.up_delay >= 0 and self.down_delay >= 0):
            raise InputError("the interval of an autoscaler must be above 0 s, and its delays at least 0 s")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise InputError(f"replicas must be at least 1 and from few to many, not {self.least} to {self.most}")


SAFETIES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""Shares of the load with which the SLO just holds that an autoscaler may aim at by default."""


def scheduled(hours: Sequence[int], step: float, lag: float) -> Scaler:
    """A number for each hour; replicas are started ahead, to be ready when it begins."""

    def decide(place: int, rate: float, total: float) -> tuple[int, int]:
        del rate, total
        now = place * step
        ready = hours[min(int(now / HOUR), len(hours) - 1)]
        ahead = hours[min(int((now + lag) / HOUR), len(hours) - 1)]
        return ready, max(ready, ahead)

    return decide


class Autoscaling:
    """Decisions every interval; a replica serves a start-up lag after it is started."""

    def __init__(self, rules: Autoscaler, target: float, full_rate: float, step: float, lag: float, first: int) -> None:
        self._rules, self._target, self._full_rate, self._step, self._lag = rules, target, full_rate, step, lag
        self._ready = max(first, rules.least)
        self._starting: deque[tuple[float, int]] = deque()  # When each lot is ready, and how many they are
        self._wanted: deque[tuple[float, int]] = deque()  # What was needed at each decision, over the longer delay
        self._next = 0.0
        self._interval_rates: list[float] = []

    def __call__(self, place: int, rate: float, total: float) -> tuple[int, int]:
        """Replicas that serve in this step, and those that are paid for."""
        now = place * self._step
        self._interval_rates.append(rate)
        while self._starting and self._starting[0][0] <= now:
            self._ready += self._starting.popleft()[1]
        if now >= self._next:
            self._decide(now, sum(self._interval_rates) / len(self._interval_rates), total)
            self._next, self._interval_rates = now + self._rules.interval, []
        return self._ready, self._ready + self._coming

    @property
    def _coming(self) -> int:
        return sum(count for _, count in self._starting)

    def _decide(self, now: float, rate: float, total: float) -> None:
        rules = self._rules
        needed = rate / self._full_rate if rules.measure == "utilization" else total
        wanted = max(rules.least, ceil(needed / self._target - 1e-9))
        wanted = wanted if rules.most is None else min(wanted, rules.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - max(rules.up_delay, rules.down_delay):
            self._wanted.popleft()
        have = self._ready + self._coming
        at_least = min(count for since, count in self._wanted if since >= now - rules.up_delay)
        at_most = max(count for since, count in self._wanted if since >= now - rules.down_delay)
        if at_least > have:
            self._starting.append((now + self._lag, at_least - have))
        elif at_most < have:
            self._stop(have - at_most)

    def _stop(self, count: int) -> None:
        """Those that have not started yet go first."""
        while count and self._starting:
            when, coming = self._starting.pop()
            fewer = min(count, coming)
            count -= fewer
            if coming > fewer:
                self._starting.append((when, coming - fewer))
        self._ready -= count


@dataclass(frozen=True, slots=True)
class Goal:
    """How much of a day must be within the SLO."""

    share: float = 0.99
    of: str = "minutes"  # ``minutes``: share of those with all percentiles held; ``requests``: that keep every limit

    def __post_init__(self) -> None:
        if self.of not in ("minutes", "requests"):
            raise InputError(f"a goal is a share of minutes or requests, not of {self.of!r}")
        require(0 < self.share <= 1, f"the share of {self.of} within the SLO", "be above 0 and up to 1", self.share)

    def __str__(self) -> str:
        return f"{100 * self.share:g} % of {self.of} within the SLO"


@dataclass(frozen=True, slots=True)
class PolicyDay:
    policy: str
    ready: Array  # Replicas that serve, on average in each window
    paid: Array  # Replicas that cost, those that are starting too
    attained: Array  # Share of the requests of each window that keep every limit; not a number where there are none
    use_of_limits: Array  # The largest mean latency of each window over its limit: below 1 the SLO holds
    chance_out: Array  # The probability that it does not hold in a window, which has few requests
    counts: Array
    window: float
    gpus_per_replica: int
    price: GpuPrice | None
    gpu_kwh: float | None = None  # What the GPU boards draw in the day; None where their power is not known
    wall_kwh: float | None = None
    usd_electricity: float | None = None  # Dollars of that; None where no price of a kWh was given

    @property
    def hours(self) -> float:
        """Of the traffic: 24, but where a trace is shorter or longer."""
        return self.counts.size * self.window / HOUR

    @property
    def minutes_out(self) -> float:
        """Minutes in which a percentile of the SLO does not hold, as many as are to be expected."""
        return float(self.chance_out.sum()) * self.window / 60.0

    @property
    def minutes(self) -> float:
        return float(np.count_nonzero(self.counts)) * self.window / 60.0

    @property
    def requests_in(self) -> float:
        return float(np.nansum(self.attained * self.counts) / self.counts.sum())

    @property
    def gpu_hours(self) -> float:
        return float(self.paid.sum()) * self.window / HOUR * self.gpus_per_replica

    @property
    def cost(self) -> float | None:
        """Dollars of the day, with electricity on top where GPUs are owned; None where no price is known."""
        if self.price is None:
            return None
        electricity = self.usd_electricity or 0.0 if self.price.metered else 0.0
        return self.gpu_hours * self.price.per_hour + electricity

    def keeps(self, goal: Goal) -> bool:
        if goal.of == "requests":
            return self.requests_in >= goal.share
        return self.minutes_out <= (1.0 - goal.share) * self.minutes + 1e-9
