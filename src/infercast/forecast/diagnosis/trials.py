"""A system with something changed serves requests of a run again: what gets better, and how well that is known.

A trial takes the first requests of the run, as many as it needs to look like the run, and both sides see the same
ones. The error of a ratio is estimated by leaving out one block of requests after the other (the jackknife).
"""

from __future__ import annotations

from math import ceil, exp, hypot, log

import numpy as np

from infercast.errors import InfercastError
from infercast.forecast.diagnosis.changes import Change
from infercast.forecast.intervals import ENDED
from infercast.forecast.result import Forecast, counted, value_of
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.slo import NAMES, QUANTITIES, Array, Limit, quantile
from infercast.forecast.steady import FILLING, OVERLOADED
from infercast.forecast.system import System, busiest
from infercast.forecast.uncertainty import EIGHTY, in_system, kernel_widths
from infercast.lazy_classes import NamedTuple, replace
from infercast.serve import Workload
from infercast.serve.record import ServedRequests

LEAST_REQUESTS, TURNOVERS, FILLING_UP = 96, 6, 3
"""A trial has so many requests at least, and so many times those in the system at one time, after some that fill it."""
BLOCKS, STUDENT = 8, 1.9  # Blocks left out in turn, and the standard errors of 80 % where neighbours are alike
SMOOTH = 0.4 * np.linspace(-1, 1, 9)
WAITING, BUSY, LONG = 0.3, 600, 3000
"""A share of TTFT in queues, and of an engine that is so busy the requests of a trial, and of the last one."""
QUEUED = 0.5  # Share of TTFT that is spent in a queue from which on it is the latency that matters
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end time", "tokens": "output tokens/s"}
CAPACITY, TOKENS = "capacity", "tokens"


class Aim(NamedTuple):
    quantity: str  # One of `QUANTITIES`, ``tokens`` a second, or ``capacity``: requests a second at most
    percentile: float | None = None
    limit: Limit | None = None  # Where it is limited by an SLO

    @property
    def name(self) -> str:
        if self.quantity == CAPACITY:
            return "serving capacity"
        if self.quantity == TOKENS:
            return TITLES[TOKENS]
        return f"{TITLES[self.quantity]} {'mean' if self.percentile is None else f'p{self.percentile:g}'}"

    @property
    def is_rate(self) -> bool:
        return self.quantity in (CAPACITY, TOKENS)

    @property
    def place(self) -> int:
        """Where it is among `results_of`, or the nearest to it."""
        if self.is_rate:
            return -1
        first = {"ttft": 0, "tpot": 1, "e2e": 3}[self.quantity] * len(NAMES)
        known = (50, 90, 95, 99)
        near = 0 if self.percentile is None else 1 + int(np.argmin([abs(each - self.percentile) for each in known]))
        return first + near

    def of(self, seen: RequestTimes, *, smooth: bool = True) -> float | None:
        """Its value for some requests, around a percentile if ``smooth``; None where none of them has it."""
        if self.quantity == TOKENS:
            # Clients wait for nothing but answers and go on: by Little's law, up to their number.
            return float(seen.num_output.sum()) / (seen.seconds or float(seen.end_to_end.sum()))
        values: Array = getattr(seen, QUANTITIES[self.quantity])
        if not values.size:
            return None
        if self.percentile is None:
            return float(values.mean())
        if not smooth:
            return quantile(values, self.percentile / 100)
        around = self.percentile / 100 + min(self.percentile, 100 - self.percentile) / 100 * SMOOTH
        ranked = np.sort(values)
        found = np.array([quantile(ranked, each) for each in around.tolist()])
        return float(np.exp(np.log(np.maximum(found, 1e-12)).mean()))


class RequestTimes(NamedTuple):
    ttft: Array
    tpot: Array
    end_to_end: Array
    num_output: Array
    seconds: float = 0.0  # Of a run that ends with them; 0: clients go on

    @staticmethod
    def of(served: ServedRequests, which: Array, *, ends: bool = False) -> RequestTimes:
        several = which[served.num_output[which] > 1]
        tpot = (served.last_token - served.first_token)[several] / (served.num_output[several] - 1)
        seconds = float(served.last_token.max() - served.sent_at.min()) if ends else 0.0
        return RequestTimes(served.ttft[which], tpot, served.end_to_end[which], served.num_output[which], seconds)


class Gain(NamedTuple):
    """By how much one number becomes better, as a logarithm, with half the widths of its 80 % interval."""

    aim: Aim
    gain: float
    chance: float  # Of so few requests ...
    estimates: float = 0.0  # ... and of other kernels.

    @property
    def error(self) -> float:
        return hypot(self.chance, self.estimates)

    @property
    def ratio(self) -> float:
        """After / before."""
        return exp(self.gain if self.aim.is_rate else -self.gain)

    @property
    def ends(self) -> tuple[float, float]:
        return self.ratio * exp(-self.error), self.ratio * exp(self.error)


def aim_of(forecast: Forecast) -> Aim:
    """The SLO's limit with least room; else the rate that can be served, tokens a second, or the latency that waits."""
    state, workload = forecast.state, forecast.workload
    is_short = state.word == FILLING and (state.capacity or 0.0) < (workload.rate or 0.0)
    if (state.word == OVERLOADED or is_short) and workload.rate is not None and not workload.in_turns:
        return Aim(CAPACITY)
    if forecast.verdict is not None and (known := [each for each in forecast.verdict.limits if each.value]):
        limit = min(known, key=lambda each: each.headroom or 0.0).limit
        return Aim(limit.quantity, limit.percentile, limit)
    if workload.concurrency is not None and not workload.in_turns and not forecast.deployment.model.pools:
        return Aim(TOKENS)
    if forecast.tpot is None:
        return Aim("e2e" if forecast.deployment.model.pools else "ttft", 50)
    if queued_share(forecast) <= QUEUED:
        return Aim("tpot", 50)
    # Where few requests wait, and these for long, the median shows none of it.
    return Aim("ttft", 50 if quantile(_waits(forecast), 0.5) > QUEUED * forecast.ttft.p50 else 99)


def _waits(forecast: Forecast) -> Array:
    """Seconds that requests wait for their first step, beyond the way of one that need not wait."""
    waits = (forecast.clients.started_at - forecast.clients.sent_at)[counted(forecast)]
    return np.asarray(np.maximum(waits - quantile(waits, 0.02), 0.0))


def queued_share(forecast: Forecast) -> float:
    """The share of TTFT in which requests wait so."""
    return float(_waits(forecast).sum() / forecast.clients.ttft[counted(forecast)].sum())


def value_in(forecast: Forecast, aim: Aim) -> float | None:
    """Its value in a run; None for a rate at most that the run need not tell."""
    if aim.is_rate:
        return forecast.state.capacity if aim.quantity == CAPACITY else forecast.output_tokens_per_second
    return value_of(forecast, aim.limit or Limit(aim.quantity, aim.percentile, 1.0))


class Trials:
    def __init__(self, forecast: Forecast, aim: Aim | None = None) -> None:
        self.forecast, self.aim = forecast, aim or aim_of(forecast)
        self.count = 0  # Simulations so far
        served, sent = forecast.clients, forecast.clients.sent_at
        present, self._whole = in_system(served), len(forecast.workload.requests)
        begin = forecast.steady_window[0] if forecast.steady.reached else float(sent.min())
        self._warm = min(int(np.count_nonzero(sent < begin)), ceil(FILLING_UP * present))
        # A busy engine takes long to fill up, and sessions to grow.
        self._fills = forecast.state.capacity is not None or not forecast.steady.reached
        self._fills |= forecast.workload.in_turns or (self.aim.quantity == "ttft" and queued_share(forecast) > WAITING)
        least = max(BUSY if self._fills else LEAST_REQUESTS, TURNOVERS * present)
        self._size = min(self._whole, self._warm + ceil(least))
        self._memory: dict[int, tuple[Workload, Array, RequestTimes]] = {}
        name = f"trials of {self.aim} for {forecast.verdict and forecast.verdict.slo}"
        self._tried = forecast.keep(name, dict[str, tuple[System, list[Gain]]])

    def can_grow_for(self, gain: Gain, before: Gain | None = None) -> bool:
        """Make further trials longer, if one with this gain was too short: by chance, or to fill up as the run does. A
        longer one than that ``before`` which says the same, but for chance, has filled up.
        """
        size, alike = self._size, 0.1  # Of what matters: so far may its value for these requests be from the run's
        sharp = 0.07  # Half the width of the interval of a ratio by chance from which on a longer trial is worth it
        settled = 0.02  # So far may the ratio of a longer trial be from one that says the same
        if self.aim.quantity == CAPACITY or (before is not None and abs(gain.ratio - before.ratio) < settled):
            return False
        here, run = self.aim.of(self._requests()[2]), self.value(self.aim)
        fills = self._fills or not here or abs(log(here / run)) > alike
        fills &= before is None or abs(gain.gain - before.gain) > hypot(gain.chance, before.chance)
        if fills or gain.ratio * gain.chance > sharp:
            self._size = min(self._whole, max(LONG if fills else 0, 4 * size))
        return self._size > size

    def whole(self) -> None:
        self._size = self._whole

    def numbers(self) -> list[Aim]:
        """What else must not become much worse."""
        verdict, found = self.forecast.verdict, [self.aim]
        if self.aim.quantity == CAPACITY:
            return found
        if verdict is not None:
            limits = [each.limit for each in verdict.limits if each.value]
            found += [Aim(each.quantity, each.percentile, each) for each in limits]
        else:
            others = ("e2e",) if self.forecast.deployment.model.pools else ("ttft", "tpot")
            found += [Aim(each, percentile) for each in others for percentile in (50, 99)]
        return list(dict.fromkeys(found))

    def value(self, aim: Aim) -> float:
        known = value_in(self.forecast, aim)
        return self.capacity(self.forecast.system) if known is None else known

    def capacity(self, system: System) -> float:
        self.count += 1
        return most_requests_per_second(system, self.forecast.workload)

    def change(self, change: Change, system: System | None = None) -> tuple[System, list[Gain]]:
        """The system with a change and what it gains, once for all answers about a run; an error if it is refused."""
        name = f"{change} {self._size}"
        if name not in self._tried:
            system = system or change.applied(self.forecast.system)
            self._tried[name] = system, self.gains(system, kernels=change.kernels)
        return self._tried[name]

    def outcome(self, change: Change) -> list[Gain] | None:
        """What a change gains, as other processes may find out; None if it is refused."""
        try:
            return self.change(change)[1]
        except InfercastError:
            return None

    def learn(self, change: Change, gains: list[Gain]) -> None:
        """What another process found out; it counts as found here."""
        name = f"{change} {self._size}"
        if name not in self._tried:
            self.count += 1
            self._tried[name] = change.applied(self.forecast.system), gains

    def gains(self, system: System, *, kernels: bool = False, spread: bool = False) -> list[Gain]:
        """What a changed system gains, the aim first; ``kernels``: it runs others; ``spread``: even arrivals."""
        if self.aim.quantity == CAPACITY:
            most = log(self.capacity(system) / self.value(self.aim))
            capacity_noise = 0.015  # Standard error of the logarithm of a capacity, from other draws of the requests
            return [Gain(self.aim, most, EIGHTY * capacity_noise, self._estimates(kernels, system, self.aim))]
        workload, which, before = self._requests()
        if spread:
            last = workload.requests[-1].arrival
            arrivals = np.linspace(workload.requests[0].arrival, last, len(workload.requests)).tolist()
            even = (replace(each, arrival=at) for each, at in zip(workload.requests, arrivals, strict=True))
            workload = replace(workload, requests=tuple(even))
        self.count += 1
        after = RequestTimes.of(system.serve(workload).clients, which, ends=before.seconds > 0)
        found, is_whole = [], self._size == self._whole
        for aim in self.numbers():
            if (gain := _gain(aim, before, after)) is not None:
                exact, error = _gain(aim, before, after, smooth=False) or gain, _error(aim, before, after)
                # Times that come in clusters have percentiles that jump from one to the next.
                gain, error = (exact, error) if is_whole else (gain, hypot(error, exact - gain))
                found.append(Gain(aim, gain, error, self._estimates(kernels, system, aim)))
        return found

    def _requests(self) -> tuple[Workload, Array, RequestTimes]:
        if self._size not in self._memory:
            served, size = self.forecast.clients, self._size
            first, last = np.arange(size), size
            if size < self._whole:  # the last ones do not see the requests after them
                stayed = quantile(served.end_to_end[first], ENDED)
                last = int(np.count_nonzero(served.sent_at[first] <= served.sent_at[first].max() - stayed))
            ends = size == self._whole and not self.forecast.steady_only
            start = 0 if ends else min(self._warm, last // 2)
            which = first[start : max(last, start + 2 * BLOCKS)]
            workload = replace(self.forecast.workload, requests=self.forecast.workload.requests[:size])
            self._memory[size] = workload, which, RequestTimes.of(served, which, ends=ends)
        return self._memory[self._size]

    def _estimates(self, kernels: bool, system: System, aim: Aim) -> float:
        """How far the estimates of other kernels may be off against those of the run."""
        if not kernels or system.pools[0].deployment.predictor.is_bound:
            return 0.0
        pool = self.forecast.pools[0 if aim.quantity == "ttft" else -1]
        prompts, decodes = kernel_widths(pool.deployment, busiest(pool.records))
        return 0.5 * (prompts if aim.quantity == "ttft" else decodes)


def _gain(aim: Aim, before: RequestTimes, after: RequestTimes, *, smooth: bool = True) -> float | None:
    first, second = (aim.of(each, smooth=smooth) for each in (before, after))
    if not first or not second:
        return None
    return log(second / first) if aim.is_rate else log(first / second)


def _error(aim: Aim, before: RequestTimes, after: RequestTimes) -> float:
    count, parts = before.ttft.size, []
    if count < 2 * BLOCKS:
        return 1.0
    blocks = np.arange(count) * BLOCKS // count
    for block in range(BLOCKS):
        kept = blocks != block
        pair = [
            RequestTimes(
                each.ttft[kept], each.tpot[kept[each.num_output > 1]], each.end_to_end[kept], each.num_output[kept]
            )
            for each in (before, after)
        ]
        parts.append(_gain(aim, *pair) or 0.0)
    left = np.array(parts)
    return STUDENT * float(np.sqrt((BLOCKS - 1) / BLOCKS * np.square(left - left.mean()).sum()))
