"""One question for any deployment: what users see of one engine, or of all replicas behind a load balancer."""

from __future__ import annotations

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.forecast.fleet import FleetForecast, forecast_fleet
from infercast.forecast.serving import Forecast
from infercast.forecast.serving import simulate as simulate_engine
from infercast.forecast.shown import check_run
from infercast.serve import Workload
from infercast.serve.loop import Progress


def simulate(
    deployment: Deployment,
    workload: Workload,
    *,
    router: str | None = None,
    progress: Progress | None = None,
    steady: bool = False,
) -> Forecast | FleetForecast:
    """Simulate a workload on a deployment, with ``data_parallel_size`` replicas on all of them.

    ``router`` names the load balancer before several replicas; that of the engine if none is named.
    ``progress`` is told now and then how many requests have been served, and the simulated seconds.
    With ``steady``, latencies and rates leave out ramp-up and drain; it is an error if the run reached no steady state.
    """
    check_run(deployment, workload)
    if deployment.layout.data > 1:
        return forecast_fleet(deployment, workload, router, progress=progress, steady=steady)
    if router is not None:
        raise InputError(f"router {router!r} has no meaning for one replica; deploy with data_parallel_size=N")
    return simulate_engine(deployment, workload, progress=progress, steady=steady)
