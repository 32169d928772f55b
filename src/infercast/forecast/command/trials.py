"""A point served with the same draws of requests as others, and by how much two of them differ beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.forecast.command.point import Timers
from infercast.forecast.intervals.luck import APART
from infercast.forecast.intervals.redraw import redraw
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.uncertainty import MEASURED, Uncertainty, uncertainty_of
from infercast.forecast.system import System, busiest
from infercast.serve import Replica, Workload

Array = npt.NDArray[Any]

DRAWS, REQUESTS = 4, 200
"""Each point is served with so many draws of so many requests."""
STUDENT = 3.182
"""Standard errors on either side that hold 95 % of the mean of four draws."""
LEAST = 0.02
"""Nobody changes a setting for less."""
WATCHED = {"TTFT p50": 1, "TTFT p99": 4, "TPOT p50": 6, "TPOT p99": 9}
"""Where each is in a row of `results_of`."""
THROUGHPUT, AT_THROUGHPUT = "output tokens/s", 20
"""Watched as well where requests do not come at a rate of their own."""


class Load(NamedTuple):
    """One load that points are compared under."""

    name: str
    workload: Workload

    @property
    def watched(self) -> dict[str, int]:
        """What two points are compared by."""
        own_rate = self.workload.rate is not None or self.workload.concurrency is None
        return WATCHED if own_rate else {**WATCHED, THROUGHPUT: AT_THROUGHPUT}

    def draws(self, replica: Replica) -> list[Workload]:
        """Further draws of the same requests; of requests that are given, the first ones."""
        drawn = self.workload.drawn
        count = min(len(self.workload.requests), REQUESTS)
        seeds = [(0 if drawn is None else drawn.seed) + APART * number for number in range(DRAWS)]
        found = [redraw(self.workload, replica, seed=seed, count=count) for seed in seeds]
        given = replace(self.workload, requests=self.workload.requests[: DRAWS * REQUESTS])
        return [each for each in found if each is not None] or [given]


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
        return self.change if self.name == THROUGHPUT else -self.change


@dataclass(slots=True)
class Trial:
    """One point, and what it did with each draw of each load."""

    deployment: Deployment
    system: System
    results: list[list[Array]]
    """Of each load, of each draw that was served so far."""
    uncertainty: Uncertainty
    chances: list[Array]
    """Of each load, what the luck of ranks adds."""


def try_point(deployment: Deployment, draws: Sequence[Sequence[Workload]], timers: Timers) -> Trial:
    """Serve the first draw of each load."""
    system = timers.system(deployment)
    results: list[list[Array]] = []
    chances: list[Array] = []
    uncertainty = Uncertainty(0.0, 0.0)
    for of_load in draws:
        run = system.serve(of_load[0])
        results.append([results_of(run.clients)])
        chances.append(chance_in(run.clients))
        uncertainty = uncertainty_of(deployment, busiest(run.records[0]), MEASURED)
    return Trial(deployment, system, results, uncertainty, chances)


def try_further(trial: Trial, draws: Sequence[Sequence[Workload]]) -> None:
    """Serve the other draws, too."""
    for number, of_load in enumerate(draws):
        served = trial.results[number]
        served += [results_of(trial.system.serve(each).clients) for each in of_load[len(served) :]]


def effects(before: Trial, after: Trial, loads: Sequence[Load], *, kernels: bool) -> list[Effect]:
    """What differs between two points, draw by draw; ``kernels``: whether they run different ones."""
    found = []
    for number, load in enumerate(loads):
        pairs = zip(before.results[number], after.results[number], strict=False)
        ratios = np.log(np.array([second / first for first, second in pairs]))
        for name, at in load.watched.items():
            change = float(ratios[:, at].mean())
            if not np.isfinite(change):
                continue
            if len(ratios) > 1:
                noise = STUDENT * float(ratios[:, at].std(ddof=1)) / sqrt(len(ratios))
            else:
                noise = float(before.chances[number][at])
            if kernels:
                noise = hypot(noise, _estimates(before, name), _estimates(after, name))
            found.append(Effect(load.name, name, change, noise))
    return found


def differs(before: Trial, after: Trial, loads: Sequence[Load]) -> bool:
    """Whether the first draws show anything at all."""
    return any(
        abs(float(np.log(after.results[number][0][at] / before.results[number][0][at]))) > LEAST / 2
        for number, load in enumerate(loads)
        for at in load.watched.values()
        if np.isfinite(before.results[number][0][at])
    )


def _estimates(trial: Trial, name: str) -> float:
    """How far the kernels behind a number may be off."""
    return trial.uncertainty.prompts if name.startswith("TTFT") else trial.uncertainty.decodes
