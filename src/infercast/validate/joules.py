"""Joules of a measured run held against those of its forecast."""

from __future__ import annotations

from math import log

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.timer import KernelTimer
from infercast.forecast.energy import Energy, energy_of_pools
from infercast.serve import Record
from infercast.validate.measured import MeasuredRun
from infercast.validate.parts import Comparison

LEAST_SECONDS = 1.0
"""Shorter runs tell little: the counter moves ten times a second."""
BEFORE_SECONDS = 0.05
"""The counter is read so long before the clock of a run starts."""


def energy_of_record(deployment: Deployment, timer: KernelTimer, run: MeasuredRun, record: Record) -> Energy | None:
    """What one simulated engine drew."""
    duration = float(np.nanmax(record.last_token) - np.nanmin(record.sent_at))
    return energy_of_pools([(deployment, timer, [record])], run.workload, record, duration)


def compare_joules(run: MeasuredRun, energy: Energy | None) -> Comparison | None:
    """Joules of an output token; None where the run does not tell, or was too short for its counter."""
    if energy is None or run.joules is None or not run.mean_watts or run.joules / run.mean_watts < LEAST_SECONDS:
        return None
    tokens = sum(request.num_output for request in run.workload.requests)
    before = (BEFORE_SECONDS + run.workload.requests[0].arrival) * energy.idle_watts
    predicted = (energy.joules + before) / tokens
    return Comparison(run.joules / tokens, predicted, log((energy.high + before) / tokens / predicted))
