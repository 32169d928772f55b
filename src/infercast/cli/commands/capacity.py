"""``infercast capacity``: replicas over a day of traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import __version__
from infercast.cli.options import day as day_options
from infercast.cli.options import plots
from infercast.cli.options import shared as options
from infercast.cli.options.day import OneDay, Scaled
from infercast.cli.options.decision import Decided, slo_of, tariff_of
from infercast.cli.options.facility import facility_of
from infercast.cli.options.groups import Deployed, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.cli.outputs import of_file
from infercast.cli.progress import runs_bar
from infercast.errors import InputError
from infercast.forecast.day.day import plan_day
from infercast.report.day import render_day
from infercast.report.day_data import autoscaler_rows, day_dict, day_rows
from infercast.report.files import write_whole


@takes(OneDay, Decided, Scaled, Deployed)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    check: Annotated[
        bool,
        day_options.of_fleet(
            "--check/--no-check",
            metavar="",
            show_default=False,
            help="Simulate the busiest minutes request by request, too; on by default.",
        ),
    ] = True,
    plot: plots.Plot = None,
    csv: plots.Csv = None,
    export_autoscaler: Annotated[
        Path | None,
        of_file("--export-autoscaler", metavar="FILE", help="Also write service-time coefficients (.csv)."),
    ] = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Plan a day of traffic: replicas over time by three policies, what they cost, and minutes out of SLO.

    A replica is one deployment of the model with these options. The policies: the smallest fixed fleet that reaches the
    goal, a timetable by hour, and an autoscaler whose replicas take a while to start.

    For example:

      infercast capacity llama-3.1-8b --gpu h200-sxm --trace day.csv --slo "ttft_p99<1s,tpot_p95<40ms"

      infercast capacity llama-3.3-70b --gpu h100-sxm -q fp8 -tp 4 --rate 30 --slo "ttft_p99<2s,tpot_p95<50ms"

      infercast capacity qwen3-32b --gpu h100-sxm --trace day.csv --slo "tpot_p95<50ms" --export-autoscaler replica.csv
    """  # fmt: skip
    slo = slo_of(given)
    if slo is None:
        raise InputError('capacity needs an SLO, such as --slo "ttft_p99<1s,tpot_p95<40ms"')
    plots.check_files(plot, ("--csv", csv), ("--export-autoscaler", export_autoscaler))
    goal, rules, tariff = day_options.goal_of(given), day_options.autoscaler_of(given), tariff_of(given)
    deployment = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )()
    traffic = day_options.day_of(context)
    with runs_bar("day", 5) as tell:
        plan = plan_day(
            deployment,
            traffic,
            slo,
            goal=goal,
            autoscaler=rules,
            start=day_options.start_of(deployment, given),
            price=tariff,
            facility=facility_of(given),
            check=check,
            tell=tell,
        )
    if csv is not None:
        write_whole(csv, day_rows(plan))
    if export_autoscaler is not None:
        write_whole(export_autoscaler, autoscaler_rows(plan))
    if plot is not None:
        from infercast.report.page.day_page import day_plot  # noqa: PLC0415 - only those who ask for it

        plots.write_plot(plot, day_plot(plan, __version__))
    print_result(form, day_dict, render_day, plan, rows="policies")
