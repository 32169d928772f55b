"""A run with the steps of its engine, or of each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.engines.deployment import Deployment
from infercast.engines.timer import KernelTimer
from infercast.errors import InputError
from infercast.forecast.explain.step_log import EngineRun, StepLog, new_log
from infercast.forecast.fleet import FleetForecast, forecast_fleet, timer_of
from infercast.forecast.serving import Forecast, simulate
from infercast.serve import Workload
from infercast.serve.loop import Progress


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run of one engine, and what is needed to say where its time went."""

    forecast: Forecast
    timer: KernelTimer
    log: StepLog

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        """The one engine of the run."""
        return (EngineRun(self.forecast.record, self.forecast.replica, self.timer, self.log),)


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """A run of several replicas, and what each of them did when."""

    forecast: FleetForecast
    logs: tuple[StepLog, ...]

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        """Every engine of the run; those that served nobody have nothing to show."""
        forecast = self.forecast
        timer = timer_of(forecast.pool)
        engines = zip(forecast.records, forecast.pool.replicas, self.logs, strict=True)
        return tuple(EngineRun(record, replica, timer, log) for record, replica, log in engines if log.num_steps)


Watched = WatchedRun | WatchedFleet


def watch_run(
    deployment: Deployment,
    workload: Workload,
    *,
    router: str | None = None,
    progress: Progress | None = None,
    steady: bool = False,
) -> Watched:
    """Simulate a workload on a deployment, on all its replicas, and note the steps."""
    if deployment.layout.data > 1:
        logs = tuple(new_log(deployment, len(workload.requests)) for _ in range(deployment.layout.data))
        fleet = forecast_fleet(deployment, workload, router, watch=logs, progress=progress, steady=steady)
        return WatchedFleet(fleet, logs)
    if router is not None:
        raise InputError(f"router {router!r} has no meaning for one replica; deploy with data_parallel_size=N")
    timer, log = deployment.timer(), new_log(deployment, len(workload.requests))
    forecast = simulate(deployment, workload, progress=progress, timer=timer, watch=log, steady=steady)
    return WatchedRun(forecast, timer, log)
