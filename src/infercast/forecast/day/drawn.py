"""What a day draws: GPU boards of each policy by the load of each window, and servers and building around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.forecast.day.curve import LoadCurve
from infercast.forecast.day.outcome import PolicyDay
from infercast.forecast.day.policies import HOUR
from infercast.forecast.money import around
from infercast.forecast.wall import KILO, Facility, server_around
from infercast.units import MICRO

Array = npt.NDArray[Any]


def board_watts(curve: LoadCurve) -> tuple[Array, Array] | None:
    """Requests a second of one replica, from none on, and the watts of each of its GPUs; None where not known."""
    drawn = [(level.rate, level.forecast.energy) for level in curve.levels]
    known = sorted((rate, energy.mean_watts, energy.idle_watts) for rate, energy in drawn if energy is not None)
    if len(known) < len(drawn):
        return None
    rates, watts, idle = zip(*known, strict=True)
    # A replica that serves more draws no less; what chance makes of it otherwise is smoothed.
    return np.array([0.0, *rates]), np.maximum.accumulate([min(idle), *watts])


def with_energy(day: PolicyDay, curve: LoadCurve, deployment: Deployment, facility: Facility) -> PolicyDay:
    """The same day with the kWh of its boards and at the wall; replicas that start draw what idle ones do."""
    known = board_watts(curve)
    if known is None:
        return day
    facility = around([day.price], facility)
    rates = day.counts / day.window / np.maximum(day.ready, MICRO)
    each = np.interp(rates, *known)
    idle = float(known[1][0])
    hours = day.window / HOUR / KILO
    boards = day.gpus_per_replica * (day.ready * each + np.maximum(day.paid - day.ready, 0.0) * idle)
    server, pue = server_around(deployment.gpu, facility), facility.pue or 1.0
    gpus = day.gpus_per_replica * day.paid
    bases = sum(server.base_of(round(count)) for count in gpus.tolist())
    drawn = pue * (bases + server.factor * float(boards.sum())) * hours
    money = None if facility.electricity_price is None else drawn * facility.electricity_price
    return replace(day, gpu_kwh=float(boards.sum()) * hours, wall_kwh=drawn, usd_electricity=money)
