"""What ``infercast simulate`` does beyond one plain run: several replicas, two runs side by side, where time went."""

from __future__ import annotations

from functools import partial

from infercast import Deployment, Workload
from infercast.cli import options, outputs
from infercast.cli.progress import simulation_bar
from infercast.errors import SaturatedError
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.saturation import Saturation
from infercast.report.layout import show
from infercast.report.serving import forecast_dict, render_forecast


def show_fleet(
    deployment: Deployment,
    workload: Workload,
    router: str,
    allow_overload: bool,
    as_json: bool,
    files: outputs.Outputs,
) -> None:
    """The run on several replicas, and the files that show it."""
    from infercast.forecast.fleet import forecast_fleet  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.watched_fleet import watch_fleet  # noqa: PLC0415
    from infercast.report.fleet import fleet_dict, render_fleet  # noqa: PLC0415

    with simulation_bar(len(workload.requests)) as progress:
        run = watch_fleet(deployment, workload, router, progress=progress) if files else None
        fleet = run.forecast if run else forecast_fleet(deployment, workload, router, progress=progress)
    refuse_overload(fleet.saturation, allow_overload)
    intervals = forecast_intervals(fleet)
    if run is not None:
        files.write(run, intervals)
    if as_json:
        options.print_json(fleet_dict(fleet, intervals))
    else:
        show(*render_fleet(fleet, intervals))


def compare_runs(
    asked: partial[Deployment], what_if: str, workload: Workload, allow_overload: bool, as_json: bool
) -> None:
    """The run as asked for beside the run with the changes."""
    from infercast.forecast.breakdown import check_in_order, watch_run  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.what_if import deploy_changed, parse_changes  # noqa: PLC0415
    from infercast.report.comparison import render_runs, runs_dict  # noqa: PLC0415

    changes = parse_changes(what_if)
    runs = []
    for deployment in (asked(), deploy_changed(asked, changes)):
        check_in_order(deployment)
        with simulation_bar(len(workload.requests)) as progress:
            runs.append(watch_run(deployment, workload, progress=progress))
        refuse_overload(runs[-1].forecast.saturation, allow_overload)
    both = runs[0], runs[1]
    if as_json:
        options.print_json(runs_dict(both, changes.text))
    else:
        show(*render_runs(both, changes.text))


def explain_run(
    deployment: Deployment,
    workload: Workload,
    allow_overload: bool,
    as_json: bool,
    files: outputs.Outputs,
    breakdown: bool,
) -> None:
    """The run, where its time went, and the files that show it."""
    from infercast.forecast.breakdown import (  # noqa: PLC0415 - most runs need none of it
        break_down,
        check_in_order,
        watch_run,
    )
    from infercast.report.breakdown import breakdown_dict, render_breakdown  # noqa: PLC0415

    if breakdown:
        check_in_order(deployment)
    with simulation_bar(len(workload.requests)) as progress:
        run = watch_run(deployment, workload, progress=progress)
    forecast = run.forecast
    refuse_overload(forecast.saturation, allow_overload)
    intervals = forecast_intervals(forecast)
    files.write(run, intervals)
    parts = break_down(run) if breakdown else None
    if as_json:
        more = {} if parts is None else {"breakdown": breakdown_dict(parts)}
        options.print_json({**forecast_dict(forecast, intervals), **more})
    else:
        tables = [] if parts is None else render_breakdown(forecast, parts)
        show(*render_forecast(forecast, intervals), *tables)


def refuse_overload(saturation: Saturation | None, allow_overload: bool) -> None:
    """A saturated run has no steady latencies to print."""
    if saturation is not None and not allow_overload:
        raise SaturatedError(f"{saturation.sentence}; lower --rate, add GPUs, or pass --allow-overload")
