"""A day of requests, counted by windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, cos, pi

import numpy as np

from infercast.errors import InputError
from infercast.forecast.slo import Array
from infercast.serve import Request, Workload
from infercast.serve.workload.distributions import LengthDistribution

DAY = 86_400.0
WINDOW = 60.0
"""Seconds of a window: a minute in or out of the SLO."""
STEP = 10.0
"""Seconds from one look at a fleet to the next."""
MOST_WINDOWS = 20_160
"""A fortnight of minutes."""
PEAK_HOUR = 14.0


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival, and the windows they fall in."""

    arrivals: Array
    """Seconds after the start of the day."""
    inputs: Array
    outputs: Array
    window: float
    description: str
    requests: tuple[Request, ...] | None = None
    """As a trace had them, with what they share."""

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
        """Some of the requests, arriving at other times."""
        rows = zip(arrivals.tolist(), self.inputs[chosen].tolist(), self.outputs[chosen].tolist(), strict=True)
        if self.requests is None:
            made = tuple(Request(*row) for row in rows)
        else:
            known = [self.requests[place] for place in chosen.tolist()]
            made = tuple(
                Request(*row, each.prefix, each.answer, each.declared, stops=each.stops)
                for row, each in zip(rows, known, strict=True)
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
        np.array([request.arrival for request in requests]),
        np.array([request.num_input for request in requests]),
        np.array([request.num_output for request in requests]),
        window,
        workload.description,
        requests,
    )


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
    rate: float,
    profile: str,
    input_lengths: LengthDistribution,
    output_lengths: LengthDistribution,
    *,
    seed: int = 0,
    window: float = WINDOW,
    duration: float = DAY,
) -> Traffic:
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
    return Traffic(
        arrivals,
        input_lengths.sample(arrivals.size, input_rng),
        output_lengths.sample(arrivals.size, output_rng),
        window,
        words,
    )
