"""Forecasts with one part of the model turned off: what each part contributes to the accuracy of the whole."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from infercast.engines.base import Deployment, engine_of
from infercast.engines.settings import Settings, changed
from infercast.errors import UnknownNameError
from infercast.hardware import Gpu
from infercast.ops import Collective, Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.roofline import Adjusted
from infercast.serve import Record, Replica, Workload, simulate

HOST, SCHEDULER, COMMUNICATION, OVERLAP = "host", "scheduler", "communication", "overlap"
PARTS = {
    HOST: "the CPU takes no time",
    SCHEDULER: "each request is served as if it were alone: no queue and no batch",
    COMMUNICATION: "collectives take no time",
    OVERLAP: "a step is planned when the one before it has ended",
}


def check_part(name: str | None) -> None:
    if name is not None and name not in PARTS:
        raise UnknownNameError("part to leave out", name, PARTS)


def settings_without(part: str | None, settings: Settings) -> Settings:
    if part != OVERLAP:
        return settings
    if engine_of(settings).family == "sglang":
        return changed(settings, disable_overlap_schedule=True)
    return changed(settings, async_scheduling=False)


def deployment_without(part: str | None, deployment: Deployment) -> Deployment:
    if part == HOST:
        times: dict[str, Any] = dict.fromkeys(deployment.host.seconds, 0.0)
        return replace(deployment, host=replace(deployment.host, **times))
    if part == COMMUNICATION:
        return replace(deployment, predictor=FreeCollectives(deployment.predictor))
    return deployment


class FreeCollectives(Adjusted):
    """Another predictor whose collectives take no time."""

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        known = self._predictor.estimate(op, gpu)
        if not isinstance(op, Collective):
            return known
        return replace(known, **{end: 0.0 * getattr(known, end) for end in ("seconds", "low", "high")})

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        return self._predictor.seconds(op, gpu) * (0.0 if isinstance(op, Collective) else 1.0)


def served_alone(replica: Replica, workload: Workload) -> Record:
    """Requests that do not meet: served hours apart, then put back to where they were sent (in a closed loop, to the
    end of the one before). Prompts still share what the prefix cache holds of earlier ones.
    """
    apart = 1e4  # seconds, longer than any answer takes
    spaced = (replace(request, arrival=place * apart) for place, request in enumerate(workload.requests))
    record = simulate(replica, Workload(tuple(spaced), description=workload.description))
    sent = np.array([request.arrival for request in workload.requests])
    if workload.concurrency is not None:
        free = [0.0] * workload.concurrency
        heapify(free)
        for place, seconds in enumerate((record.last_token - record.sent_at).tolist()):
            sent[place] = free[0]
            heapreplace(free, free[0] + seconds)
    shift = record.sent_at - sent
    for name in ("sent_at", "started_at", "first_token", "last_token"):
        setattr(record, name, getattr(record, name) - shift)
    return record
