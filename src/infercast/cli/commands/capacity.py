"""``infercast capacity``: replicas over a day of traffic."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import Deployment, __version__
from infercast.cli import outputs as plots
from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.cost import Decided, facility_of, slo_of, tariff_of
from infercast.cli.options.deployment import is_given, longest_asked, of_workload
from infercast.cli.options.groups import Deployed, asked_deployment, takes
from infercast.cli.outputs import Form, of_file, print_result, runs_bar
from infercast.errors import InputError
from infercast.forecast.autoscaling import LOAD_BANDWIDTH, MEASURES, OTHER_SECONDS, Autoscaler, Goal, StartUp, start_up
from infercast.forecast.day import plan_day
from infercast.forecast.deploy import load_model
from infercast.forecast.options import lengths_within
from infercast.forecast.traffic import WINDOW, Traffic, made_up_day, traffic_of
from infercast.report.day import autoscaler_rows, day_dict, day_rows, render_day
from infercast.report.files import write_whole
from infercast.serve.workload.distributions import INPUT_LEN, OUTPUT_LEN
from infercast.serve.workload.request import TOO_LONG, check_too_long, refuse_too_long, truncated
from infercast.units import GIGA

of_fleet = partial(typer.Option, rich_help_panel="Fleet")
MADE_UP = ("input_len", "output_len", "seed", "day_profile")
RULES = Autoscaler()


class OneDay:
    """What comes over a day."""

    trace: served.Trace = None
    rate: served.Rate = None
    rate_scale: served.RateScale = 1.0
    day_profile: Annotated[
        str,
        of_workload(
            "--day-profile",
            metavar="SHAPE",
            help="Without a trace: flat, or sine:FACTOR[:HOUR] with its peak over the mean and when.",
        ),
    ] = "sine:1.8:14"
    input_len: served.InputLen = INPUT_LEN
    output_len: served.OutputLen = OUTPUT_LEN
    num_requests: served.NumRequests = None
    too_long: served.TooLong = TOO_LONG[0]
    seed: served.Seed = 0
    window: Annotated[
        float, of_workload("--window", metavar="S", help="Seconds that are in or out of the SLO as one.")
    ] = WINDOW


class Scaled:
    """Who decides how many replicas there are, and how long one takes to start."""

    goal_minutes: Annotated[
        float | None,
        of_fleet("--goal-minutes", metavar="X", help="Share of minutes that must be within the SLO; default: 0.99."),
    ] = None
    goal_requests: Annotated[
        float | None,
        of_fleet("--goal-requests", metavar="X", help="In place of it: share of requests that keep every limit."),
    ] = None
    autoscale_on: Annotated[
        str,
        of_fleet(
            "--autoscale-on",
            metavar="NAME",
            help=f"{' or '.join(MEASURES)}: requests that arrive over what replicas serve at most, or those in each.",
        ),
    ] = RULES.measure
    target: Annotated[
        float | None,
        of_fleet(
            "--target",
            metavar="X",
            help="What each should have; default: the most that reaches the goal.",
        ),
    ] = None
    interval: Annotated[float, of_fleet("--interval", metavar="S", help="Seconds from one decision to the next.")] = (
        RULES.interval
    )
    up_delay: Annotated[
        float, of_fleet("--up-delay", metavar="S", help="Seconds that more must be needed before they are started.")
    ] = RULES.up_delay
    down_delay: Annotated[
        float, of_fleet("--down-delay", metavar="S", help="Seconds that fewer must be enough before some are stopped.")
    ] = RULES.down_delay
    min_replicas: Annotated[int, of_fleet("--min-replicas", metavar="N", help="Fewest of an autoscaler.")] = RULES.least
    max_replicas: Annotated[int | None, of_fleet("--max-replicas", metavar="N", help="Most of an autoscaler.")] = None
    load_bandwidth: Annotated[
        float, of_fleet("--load-bandwidth", metavar="X", help="GB/s at which a replica reads its weights.")
    ] = LOAD_BANDWIDTH / GIGA
    start_seconds: Annotated[
        float,
        of_fleet(
            "--start-seconds", metavar="S", help="Of a start, all but weights and CUDA graphs: container, Python."
        ),
    ] = OTHER_SECONDS


def day_of(context: typer.Context) -> Traffic:
    """The day that the options of a command ask for; all requests are within the model's length."""
    given = context.params
    check_too_long(given["too_long"])
    longest = longest_asked(context) or load_model(given["model"]).max_positions
    trace, rate = given["trace"], given["rate"]
    if trace is None and rate is None:
        raise InputError("say what comes over the day: --trace FILE, or --rate R with --day-profile")
    if trace is not None:
        served.refuse_idle_options(context, MADE_UP, replays=True)
        day = served.replayed(Path(trace), given, longest)
        if given["too_long"] == "truncate":
            day = truncated(day, longest)
        refuse_too_long(day, longest)
        return traffic_of(day, given["window"])
    for name in ("rate_scale", "num_requests"):
        if is_given(context, name):
            raise InputError(f"--{name.replace('_', '-')} needs --trace")
    inputs, outputs, _ = lengths_within(given["input_len"], given["output_len"], longest)
    if inputs.maximum + outputs.maximum > longest:
        raise InputError(
            f"--input-len and --output-len give up to {inputs.maximum + outputs.maximum:,} tokens, above max_model_len "
            f"{longest:,}; shorten them or raise --max-model-len"
        )
    return made_up_day(rate, given["day_profile"], inputs, outputs, seed=given["seed"], window=given["window"])


def goal_of(given: dict[str, Any]) -> Goal:
    """What must be reached."""
    if given["goal_minutes"] is not None and given["goal_requests"] is not None:
        raise InputError("--goal-minutes and --goal-requests are two goals; give one")
    if given["goal_requests"] is not None:
        return Goal(given["goal_requests"], "requests")
    return Goal() if given["goal_minutes"] is None else Goal(given["goal_minutes"])


def autoscaler_of(given: dict[str, Any]) -> Autoscaler:
    """The rules of an autoscaler."""
    return Autoscaler(
        measure=given["autoscale_on"],
        target=given["target"],
        interval=given["interval"],
        up_delay=given["up_delay"],
        down_delay=given["down_delay"],
        least=given["min_replicas"],
        most=given["max_replicas"],
    )


def start_of(deployment: Deployment, given: dict[str, Any]) -> StartUp:
    """How long a replica takes to start."""
    return start_up(deployment, bandwidth=given["load_bandwidth"] * GIGA, other=given["start_seconds"])


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
        of_fleet(
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
    goal, rules, tariff = goal_of(given), autoscaler_of(given), tariff_of(given)
    deployment = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )()
    traffic = day_of(context)
    with runs_bar("day", 5) as tell:
        plan = plan_day(
            deployment,
            traffic,
            slo,
            goal=goal,
            autoscaler=rules,
            start=start_of(deployment, given),
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
        from infercast.report.page.figures import day_plot  # noqa: PLC0415 - only those who ask for it

        plots.write_plot(plot, day_plot(plan, __version__))
    print_result(form, day_dict, render_day, plan, rows="policies")
