"""What ``infercast simulate`` does beyond one plain run: several replicas, two runs side by side, where time went."""

from __future__ import annotations

from functools import partial

from infercast import Deployment, Workload
from infercast.cli import outputs
from infercast.cli.options import shared as options
from infercast.cli.progress import simulation_bar
from infercast.errors import SaturatedError
from infercast.forecast.fleet import FleetForecast
from infercast.forecast.intervals.intervals import forecast_intervals
from infercast.forecast.saturation import Saturation
from infercast.report.layout import show
from infercast.report.serving import forecast_dict, render_forecast


def show_fleet(
    deployment: Deployment, workload: Workload, router: str | None, allow_overload: bool, as_json: bool, steady: bool
) -> None:
    """The run on several replicas."""
    from infercast.forecast.simulate import simulate  # noqa: PLC0415 - most runs need none of it
    from infercast.report.fleet import fleet_dict, render_fleet  # noqa: PLC0415

    with simulation_bar(len(workload.requests)) as progress:
        fleet = simulate(deployment, workload, router=router, progress=progress, steady=steady)
    assert isinstance(fleet, FleetForecast)
    refuse_overload(fleet.saturation, allow_overload)
    intervals = forecast_intervals(fleet)
    if as_json:
        options.print_json(fleet_dict(fleet, intervals))
    else:
        show(*render_fleet(fleet, intervals))


def compare_runs(
    asked: partial[Deployment],
    what_if: str,
    workload: Workload,
    router: str | None,
    allow_overload: bool,
    as_json: bool,
    breakdown: bool,
    steady: bool,
) -> None:
    """The run as asked for beside the run with the changes."""
    from infercast.forecast.explain.watched import watch_run  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.what_if import deploy_changed, parse_changes  # noqa: PLC0415
    from infercast.report.comparison import render_runs, runs_dict  # noqa: PLC0415

    changes = parse_changes(what_if)
    runs = []
    for deployment, chosen in ((asked(), router), (deploy_changed(asked, changes), changes.router or router)):
        with simulation_bar(len(workload.requests)) as progress:
            named = chosen if deployment.layout.data > 1 else None
            runs.append(watch_run(deployment, workload, router=named, progress=progress, steady=steady))
        refuse_overload(runs[-1].forecast.saturation, allow_overload)
    both = runs[0], runs[1]
    if as_json:
        options.print_json(runs_dict(both, changes.text, breakdown=breakdown))
    else:
        show(*render_runs(both, changes.text, breakdown=breakdown))


def explain_run(
    deployment: Deployment,
    workload: Workload,
    router: str | None,
    allow_overload: bool,
    as_json: bool,
    files: outputs.Outputs,
    breakdown: bool,
    steady: bool,
) -> None:
    """The run, where its time went, and the files that show it."""
    from infercast.forecast.explain.breakdown import break_down  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.explain.watched import watch_run  # noqa: PLC0415
    from infercast.report.breakdown import breakdown_dict, render_breakdown  # noqa: PLC0415
    from infercast.report.fleet import fleet_dict, render_fleet  # noqa: PLC0415

    with simulation_bar(len(workload.requests)) as progress:
        run = watch_run(deployment, workload, router=router, progress=progress, steady=steady)
    forecast = run.forecast
    refuse_overload(forecast.saturation, allow_overload)
    intervals = forecast_intervals(forecast)
    files.write(run, intervals)
    parts = break_down(run) if breakdown else None
    if as_json:
        found = (
            fleet_dict(forecast, intervals)
            if isinstance(forecast, FleetForecast)
            else forecast_dict(forecast, intervals)
        )
        options.print_json(found if parts is None else {**found, "breakdown": breakdown_dict(parts)})
    else:
        tables = [] if parts is None else render_breakdown(workload, parts)
        about = (
            render_fleet(forecast, intervals)
            if isinstance(forecast, FleetForecast)
            else render_forecast(forecast, intervals)
        )
        show(*about, *tables)


def refuse_overload(saturation: Saturation | None, allow_overload: bool) -> None:
    """A saturated run has no steady latencies to print."""
    if saturation is not None and not allow_overload:
        raise SaturatedError(f"{saturation.sentence}; lower --rate, add GPUs, or pass --allow-overload")
