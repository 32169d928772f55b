"""A day in short steps, ready to be run with any number of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.day.chance import chance_out
from infercast.forecast.day.curve import LoadCurve
from infercast.forecast.day.fleet import FleetRun, Replicas, Scaler, fixed, run_fleet
from infercast.forecast.day.outcome import Goal, PolicyDay
from infercast.forecast.day.service import ServiceTime
from infercast.forecast.day.traffic import STEP, Traffic
from infercast.forecast.money import GpuPrice

Array = npt.NDArray[Any]


class SteppedDay:
    """The day in steps, ready to be run with any number of replicas."""

    def __init__(
        self,
        curves: Mapping[int, LoadCurve],
        traffic: Traffic,
        service: ServiceTime,
        gpus: int,
        price: GpuPrice | None,
    ) -> None:
        weights = service.of(traffic.inputs, traffic.outputs)
        steps = replace(traffic, window=STEP)
        self.load = steps.load(weights / weights.mean())
        self.replicas, self.price = Replicas(curves, STEP), price
        self._gpus, self._traffic, self._slo = gpus, traffic, curves[1].slo
        self._counts = steps.counts
        self._windows = (np.arange(steps.num_windows) * STEP // traffic.window).astype(np.int64)

    def run(self, name: str, scaler: Scaler) -> PolicyDay:
        """The whole day."""
        done = run_fleet(self.replicas, self.load, scaler)
        return PolicyDay(
            name,
            self._mean(done.ready),
            self._mean(done.paid),
            self._mean(done.attained, self._counts),
            np.nan_to_num(self._mean(done.use_of_limits, self._counts)),
            self._chance_out(done.beyond, 0),
            self._traffic.counts,
            self._traffic.window,
            self._gpus,
            self.price,
        )

    def part(self, first: int, last: int, count: int, before: float) -> FleetRun:
        """Some steps with a fixed fleet, before which so many requests are in the system."""
        return run_fleet(self.replicas, self.load[first:last], fixed(count), before)

    def share_in(self, done: FleetRun, first: int, goal: Goal) -> float:
        """What a goal is about, of steps from ``first`` on."""
        counts = self._counts[first : first + done.ready.size]
        if goal.of == "requests":
            return float((done.attained * counts).sum() / max(1, counts.sum()))
        return 1.0 - float(self._chance_out(done.beyond, first).mean())

    def _chance_out(self, beyond: Array, first: int) -> Array:
        """Of each window that these steps lie in."""
        places = self._windows[first : first + len(beyond)]
        places = places - places[0]
        counts = self._counts[first : first + len(beyond)]
        each = np.bincount(places, counts)
        shares = [np.bincount(places, counts * column) / np.maximum(each, 1) for column in beyond.T]
        return chance_out(self._slo, each, np.stack(shares, axis=1))[: self._traffic.num_windows]

    def _mean(self, values: Array, weights: Array | None = None) -> Array:
        """By windows; not a number where nothing came."""
        each = np.ones(values.size) if weights is None else weights
        size = self._traffic.num_windows
        sums = np.bincount(self._windows, each * values, size)[:size]
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / np.bincount(self._windows, each, size)[:size])
