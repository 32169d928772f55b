"""What a request costs a replica, as a few numbers: so much for each, for each token in and for each token out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.forecast.day.traffic import Traffic
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.system import System

Array = npt.NDArray[Any]
STRETCHES = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (0.5, 0.5))
"""Prompts and answers of the day, each so many times as long: four rates for three numbers."""
MIX = 300
SEED = 11


class ServiceTime(NamedTuple):
    """Seconds of a replica that is kept full."""

    fixed: float
    per_input: float
    per_output: float

    def of(self, inputs: Any, outputs: Any) -> Any:
        """Of one request, or of each of many."""
        return self.fixed + self.per_input * inputs + self.per_output * outputs


def learn_service(system: System, traffic: Traffic, longest: int) -> ServiceTime:
    """From the rates of a replica that is kept full with longer and shorter requests."""
    random = np.random.default_rng(SEED)
    size = traffic.arrivals.size
    chosen = random.choice(size, min(size, MIX), replace=False)
    rows, seconds = [], []
    for of_inputs, of_outputs in STRETCHES:
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
    """Least squares of relative errors, without what would come out below nothing."""
    rows, targets = rows / seconds[:, None], np.ones(seconds.size)
    used = [0, 1, 2]
    while True:
        found = np.zeros(3)
        found[used] = np.linalg.lstsq(rows[:, used], targets, rcond=None)[0]
        if found.min() >= 0.0:
            return found
        used.remove(int(np.argmin(found)))
