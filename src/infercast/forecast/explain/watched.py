"""A run with the steps of each of its replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infercast.forecast.explain.step_log import EngineRun, StepLog, new_log
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.system import System
from infercast.serve import Workload
from infercast.serve.watching import Progress


@dataclass(frozen=True, slots=True)
class Watched:
    """A run, and what each of its replicas did when."""

    forecast: Forecast
    logs: tuple[tuple[StepLog, ...], ...]
    """Of each replica of each pool."""

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        """Every replica of the run; those that served nobody have nothing to show."""
        return tuple(
            EngineRun(record, replica, run.pool.timer, log, run.pool)
            for run, logs in zip(self.forecast.pools, self.logs, strict=True)
            for record, replica, log in zip(run.records, run.pool.engines.replicas, logs, strict=True)
            if log.num_steps
        )


def watch_run(
    system: System,
    workload: Workload,
    *,
    progress: Progress | None = None,
    steady: bool = False,
    capacity: Callable[[], float] | None = None,
    slo: Slo | None = None,
) -> Watched:
    """Simulate a workload and note the steps; ``capacity`` and ``slo`` as in `simulate_system`."""
    logs: tuple[tuple[StepLog, ...], ...] = ()

    def watch(load: Workload) -> tuple[tuple[StepLog, ...], ...]:
        nonlocal logs
        count = len(load.requests)
        logs = tuple(tuple(new_log(pool, count) for _ in pool.engines.replicas) for pool in system.pools)
        return logs

    forecast = simulate_system(
        system, workload, watch=watch, progress=progress, steady=steady, capacity=capacity, slo=slo
    )
    return Watched(forecast, logs)
