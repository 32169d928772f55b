"""A result simulated again, with other factors each time: what clients would see."""

from __future__ import annotations

from dataclasses import replace
from math import cosh, exp, sinh
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.calibrate.result import QUANTITIES, RATE, Result
from infercast.errors import InputError
from infercast.forecast.intervals.luck import luck_of
from infercast.forecast.intervals.results import chance_in, results_of
from infercast.forecast.intervals.slowed import slowed
from infercast.forecast.intervals.uncertainty import EIGHTY, Uncertainty, uncertainty_of
from infercast.forecast.system import Run, System, busiest
from infercast.serve.fleet.served import Served

Array = npt.NDArray[Any]

NAMES = ("host", "prefill", "decode", "path")
"""What is looked for, in this order: three logarithms, and a number that stands for seconds (`Point.path`)."""
PATH_SCALE = 0.002
"""Seconds that `Point.path` counts in. Around 0 it is proportional to seconds, further out to their logarithm: API
servers and networks take a few milliseconds mostly, and now and then a hundred."""
STEPS = np.array([0.1, 0.05, 0.05, 0.5])
"""How far each is moved to see what results do."""


class Point(NamedTuple):
    """Values of what is looked for."""

    host: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    path: float = 0.0

    @property
    def path_seconds(self) -> float:
        """Seconds that requests take longer to the engine."""
        return PATH_SCALE * sinh(self.path)

    @property
    def seconds_a_unit(self) -> float:
        """How many more seconds one unit more of ``path`` is."""
        return PATH_SCALE * cosh(self.path)


class Replay:
    """One result on the deployment that it was measured on."""

    def __init__(self, system: System, result: Result) -> None:
        """``system`` is the deployment, at the state that the run found it in."""
        self.result = result
        self._system = _without_server(system) if result.server_side else system
        self.chosen = chosen_quantities(result)
        self.names = [QUANTITIES[index] for index in self.chosen]
        self.measured = np.log([result.seen[name] for name in self.names])
        run = self._run(Point())
        self.estimated = np.log(results_of(run.clients)[self.chosen])
        """Without any factor."""
        self.chance = self._chance(run)[self.chosen] / EIGHTY
        """What luck does to each, as a standard deviation."""

    def at(self, point: Point) -> Array:
        """Logarithms of what clients would see."""
        return np.asarray(np.log(results_of(self.served(point))[self.chosen]))

    def served(self, point: Point) -> Served:
        """What clients would see."""
        return self._run(point).clients

    def slopes(self, point: Point, values: Array) -> Array:
        """By how much each quantity (rows) moves with each factor (columns); ``values``: what it is at the point."""
        columns = []
        for index, step in enumerate(STEPS):
            moved = Point(*(value + step * (index == place) for place, value in enumerate(point)))
            columns.append((self.at(moved) - values) / step)
        return np.stack(columns, axis=1)

    def unknown(self) -> Uncertainty:
        """How far its deployment may be off before anything was seen."""
        return uncertainty_of(self._system.pools[0].deployment, busiest(self._run(Point()).records[0]))

    def _run(self, point: Point) -> Run:
        pool = self._system.pools[0]
        replica = slowed(
            pool.replica,
            prompts=exp(point.prefill),
            decodes=exp(point.decode),
            host=exp(point.host),
            path=0.0 if self.result.server_side else point.path_seconds,
        )
        return self._system._replace(pools=(pool.of(replica),)).serve(self.result.workload)

    def _chance(self, run: Run) -> Array:
        """Where requests were drawn, the result had others than ours."""
        pool, workload = self._system.pools[0], self.result.workload
        if workload.drawn is not None:
            luck = luck_of(workload, run.clients, pool.replica, lambda other: self._system.serve(other).clients)
            if luck is not None:
                return np.asarray(luck)
        return chance_in(run.clients)


def _without_server(system: System) -> System:
    """The same by the engine's own clock, which starts when its server has read the request."""
    pool = system.pools[0]
    if not pool.deployment.over_http:
        return system
    host, replica = pool.deployment.host, pool.replica
    replica = replace(
        replica,
        request_path_seconds=replica.request_path_seconds - host.server_path,
        request_token_seconds=replica.request_token_seconds - host.server_token,
        request_turn_seconds=0.0,
    )
    return system._replace(pools=(pool.of(replica),))


CENTRES, TAILS = ("p50", "mean"), ("p95", "p90", "p99")


def chosen_quantities(result: Result) -> list[int]:
    """What a result is compared by: median, mean and a tail of TTFT, of which each has its own luck, the middle of the
    time of a token, and the rate where clients wait for answers. Tails of times of tokens hang on which prompts came
    between.
    """
    steps = next((each for each in ("tpot", "itl", "e2e") if any(name.startswith(each) for name in result.seen)), "")
    groups = [("ttft", CENTRES[:1]), ("ttft", CENTRES[1:]), ("ttft", TAILS), (steps, CENTRES)]
    names = []
    for latency, group in groups:
        known = [name for name in group if name == "mean" or not result.means_only]
        names += [name for name in (f"{latency}_{each}" for each in known) if name in result.seen][:1]
    if RATE in result.seen and result.workload.rate is None:
        names.append(RATE)
    if not names:
        raise InputError(f"{result.file} says no latency that can be compared: lengths are known by their means alone")
    return [QUANTITIES.index(name) for name in names]
