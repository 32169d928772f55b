"""A point served with the same draws of requests as others, and by how much two of them differ beyond chance.

Requests of all draws are summed up together: a percentile of four runs. What chance does to the ratio of two points is
told by leaving out one draw after the other (the jackknife), which also works where a queue builds up in one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.forecast.command.point import Timers
from infercast.forecast.intervals.luck import APART
from infercast.forecast.intervals.redraw import redraw
from infercast.forecast.intervals.results import chance_of
from infercast.forecast.intervals.uncertainty import Uncertainty, kernel_widths
from infercast.forecast.slo import QUANTITIES, Slo
from infercast.forecast.system import System, busiest
from infercast.serve import Replica, Workload
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

DRAWS, REQUESTS = 4, 300
"""Each point is served with so many draws of so many requests."""
STUDENT = 2.353
"""Standard errors on either side that hold 90 %, where the error is known from four draws."""
LEAST = 0.02
"""Nobody changes a setting for less."""
PERCENTILES = {
    "TTFT p50": ("ttft", 0.5),
    "TTFT p99": ("ttft", 0.99),
    "TPOT p50": ("tpot", 0.5),
    "TPOT p99": ("tpot", 0.99),
}
"""What two points are compared by."""
THROUGHPUT, HEADROOM = "output tokens/s", "SLO headroom"
"""Beside them, where requests wait for each other, and where something is promised: the smallest limit / forecast."""


class Seen(NamedTuple):
    """What the requests of one draw saw, or those of several."""

    ttft: Array
    tpot: Array
    end_to_end: Array
    rate: float
    """Output tokens a second."""

    @staticmethod
    def of(served: Served) -> Seen:
        """One draw."""
        duration = float(served.last_token.max() - served.sent_at.min())
        return Seen(served.ttft, served.tpot, served.end_to_end, float(served.num_output.sum()) / duration)

    @staticmethod
    def together(draws: Sequence[Seen]) -> Seen:
        """Several draws as one."""
        ttft, tpot, whole = (np.concatenate(values) for values in zip(*(each[:3] for each in draws), strict=True))
        return Seen(ttft, tpot, whole, sum(each.rate for each in draws) / len(draws))


class Load(NamedTuple):
    """One load that points are compared under."""

    name: str
    workload: Workload
    slo: Slo | None = None
    """What is promised, if anything."""

    def numbers(self, seen: Seen) -> dict[str, float]:
        """What points are compared by; without TPOT where no request has a second token."""
        found = {
            name: float(np.percentile(values, 100 * fraction))
            for name, (kind, fraction) in PERCENTILES.items()
            if (values := getattr(seen, kind)).size
        }
        if self.workload.concurrency is not None:
            found[THROUGHPUT] = seen.rate
        if self.slo is not None:
            found[HEADROOM] = _headroom(seen, self.slo)
        return found

    def draws(self, replica: Replica) -> list[Workload]:
        """Further draws of the same requests; of requests that are given, the first ones."""
        seed = 0 if self.workload.drawn is None else self.workload.drawn.seed
        count = min(len(self.workload.requests), REQUESTS)
        seeds = [seed + APART * number for number in range(DRAWS)]
        found = [redraw(self.workload, replica, seed=each, count=count) for each in seeds]
        given = replace(self.workload, requests=self.workload.requests[: DRAWS * REQUESTS])
        return [each for each in found if each is not None] or [given]


def _headroom(seen: Seen, slo: Slo) -> float:
    """The smallest limit / what requests saw."""
    rooms = []
    for limit in slo.limits:
        values: Array = getattr(seen, QUANTITIES[limit.quantity])
        if values.size:
            value = values.mean() if limit.percentile is None else np.percentile(values, limit.percentile)
            rooms.append(limit.seconds / max(float(value), 1e-12))
    return min(rooms, default=inf)


class Effect(NamedTuple):
    """What a change does to one number."""

    load: str
    name: str
    change: float
    """The logarithm of the ratio of after to before."""
    noise: float
    """What chance and estimates alone could do."""

    @property
    def is_real(self) -> bool:
        """Whether it is more than noise, and worth a word."""
        return abs(self.change) > max(self.noise, LEAST)

    @property
    def gain(self) -> float:
        """Positive where it is better; nothing where it may be noise."""
        if not self.is_real:
            return 0.0
        return self.change if self.name in (THROUGHPUT, HEADROOM) else -self.change


@dataclass(slots=True)
class Trial:
    """One point, and what requests saw of it in each draw of each load."""

    system: System
    seen: list[list[Seen]]
    uncertainty: Uncertainty
    """How far its kernels may be off."""


def try_point(deployment: Deployment, draws: Sequence[Sequence[Workload]], timers: Timers, most: int = 1) -> Trial:
    """Serve the first draws of each load, ``most`` of them."""
    system = timers.system(deployment)
    seen: list[list[Seen]] = []
    uncertainty = Uncertainty(0.0, 0.0)
    for of_load in draws:
        runs = [system.serve(each) for each in of_load[:most]]
        seen.append([Seen.of(run.clients) for run in runs])
        uncertainty = Uncertainty(*kernel_widths(deployment, busiest(runs[0].records[0])))
    return Trial(system, seen, uncertainty)


def try_further(trial: Trial, draws: Sequence[Sequence[Workload]]) -> None:
    """Serve the other draws, too."""
    for of_load, seen in zip(draws, trial.seen, strict=True):
        seen += [Seen.of(trial.system.serve(each).clients) for each in of_load[len(seen) :]]


def effects(before: Trial, after: Trial, loads: Sequence[Load], *, kernels: bool) -> list[Effect]:
    """What differs between two points; ``kernels``: whether they run different ones."""
    found = []
    for load, first, second in zip(loads, before.seen, after.seen, strict=True):
        whole = _ratios(load, first, second)
        count = len(first)
        left_out = [
            _ratios(load, first[:at] + first[at + 1 :], second[:at] + second[at + 1 :]) for at in range(count)
        ] if count > 1 else []  # fmt: skip
        for name, change in whole.items():
            if left_out:
                parts = np.array([each[name] for each in left_out])
                noise = STUDENT * sqrt((count - 1) / count * float(np.square(parts - parts.mean()).sum()))
            else:
                noise = _luck_of_ranks(name, first[0])
            if kernels:
                noise = hypot(noise, _estimates(before, name), _estimates(after, name))
            found.append(Effect(load.name, name, change, noise))
    return found


def differs(before: Trial, after: Trial, loads: Sequence[Load]) -> bool:
    """Whether the first draws show anything at all."""
    pairs = zip(loads, before.seen, after.seen, strict=True)
    return any(
        abs(change) > LEAST / 2
        for load, first, second in pairs
        for change in _ratios(load, first[:1], second[:1]).values()
    )


def _ratios(load: Load, before: Sequence[Seen], after: Sequence[Seen]) -> dict[str, float]:
    """Logarithms of the ratios of what two points are compared by."""
    first, second = (load.numbers(Seen.together(each)) for each in (before, after))
    return {name: log(second[name] / first[name]) for name in first if 0 < first[name] < inf}


def _luck_of_ranks(name: str, seen: Seen) -> float:
    """What is left open of a percentile of given requests, which have no other draws."""
    kind, fraction = PERCENTILES.get(name, ("ttft", 0.99))
    return 0.0 if name == THROUGHPUT else chance_of(getattr(seen, kind), fraction)


def _estimates(trial: Trial, name: str) -> float:
    """How far the kernels behind a number may be off."""
    prompts, decodes = trial.uncertainty.prompts, trial.uncertainty.decodes
    return prompts if name.startswith("TTFT") else max(prompts, decodes) if name == HEADROOM else decodes
