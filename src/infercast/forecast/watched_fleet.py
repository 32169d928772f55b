"""A run on several engines, with the steps of each."""

from __future__ import annotations

from infercast.engine.deployment import Deployment
from infercast.forecast.breakdown import WatchedRun
from infercast.forecast.fleet import DEFAULT_ROUTER, FleetForecast, forecast_fleet, timer_of
from infercast.forecast.step_log import EngineRun, StepLog, new_log
from infercast.records import dataclass
from infercast.serve import Workload
from infercast.serve.state import Progress


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """A run, and what each of its engines did when."""

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


def watch_fleet(
    deployment: Deployment,
    workload: Workload,
    router: str = DEFAULT_ROUTER,
    *,
    progress: Progress | None = None,
    steady: bool = False,
) -> WatchedFleet:
    """Simulate a workload on every copy of a deployment and note the steps of each."""
    logs = tuple(new_log(deployment, len(workload.requests)) for _ in range(deployment.layout.data))
    forecast = forecast_fleet(deployment, workload, router, watch=logs, progress=progress, steady=steady)
    return WatchedFleet(forecast, logs)
