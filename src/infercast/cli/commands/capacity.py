"""``infercast capacity``: replicas over a day of traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.cli import options
from infercast.cli.outputs import Form, check_files, print_answer, runs_bar
from infercast.errors import InputError
from infercast.forecast.autoscaling import Autoscaler, Goal, Traffic, traffic_of
from infercast.forecast.cost import facility_of, slo_of, tariff_of
from infercast.forecast.day import capacity, day_within
from infercast.forecast.deploy import load_model
from infercast.forecast.option_table import COST, DEPLOYMENT, ENGINE_ARGS, FLEET, PARALLEL, PLACE, TIME
from infercast.forecast.outages import start_up
from infercast.report.files import write_whole
from infercast.report.sweep import autoscaler_rows
from infercast.serve.workload.request import check_too_long, refuse_too_long, truncated
from infercast.units import GIGA


def day_of(ctx: options.Context) -> Traffic:
    """The day that the options of a command ask for; all requests are within the model's length."""
    given = ctx.params
    check_too_long(given["too_long"])
    longest = options.longest_asked(ctx) or load_model(given["model"]).max_positions
    trace, rate = given["trace"], given["rate"]
    if trace is None and rate is None:
        raise InputError("say what comes over the day: --trace FILE, or --rate R with --day-profile")
    if trace is not None:
        made_up = ("input_len", "output_len", "seed", "day_profile")
        options.refuse_idle_options(ctx, made_up, replays=True)
        day = options.replayed(Path(trace), given, longest)
        if given["too_long"] == "truncate":
            day = truncated(day, longest)
        refuse_too_long(day, longest)
        return traffic_of(day, given["window"])
    for name in ("rate_scale", "num_requests"):
        if options.is_given(ctx, name):
            raise InputError(f"--{name.replace('_', '-')} needs --trace")
    return day_within(given, longest, given["window"])


def goal_of(given: dict[str, Any]) -> Goal:
    if given["goal_minutes"] is not None and given["goal_requests"] is not None:
        raise InputError("--goal-minutes and --goal-requests are two goals; give one")
    if given["goal_requests"] is not None:
        return Goal(given["goal_requests"], "requests")
    return Goal() if given["goal_minutes"] is None else Goal(given["goal_minutes"])


RULES = {
    **{"measure": "autoscale_on", "least": "min_replicas", "most": "max_replicas"},
    **{name: name for name in ("target", "interval", "up_delay", "down_delay")},
}  # Options of the autoscaler, by its fields


@options.with_options(
    PLACE,
    f"{PARALLEL} check plot csv export_autoscaler",
    "trace rate rate_scale day_profile input_len output_len num_requests too_long seed window",
    COST,
    [option for option in FLEET if option.name != "fleet"],
    ENGINE_ARGS,
    DEPLOYMENT,
    TIME,
)
def command(ctx: options.Context, *, plot: Path | None, csv: Path | None, form: Form, **given: Any) -> None:
    slo = slo_of(given)
    if slo is None:
        raise InputError('capacity needs an SLO, such as --slo "ttft_p99<1s,tpot_p95<40ms"')
    export = given["export_autoscaler"]
    check_files(plot, ("--csv", csv), ("--export-autoscaler", export))
    goal, rules = goal_of(given), Autoscaler(**{name: given[option] for name, option in RULES.items()})
    paid: dict[str, Any] = {"price": tariff_of(given), "facility": facility_of(given)}
    deployment = options.deployment_of(ctx)()
    traffic = day_of(ctx)
    start = start_up(deployment, bandwidth=given["load_bandwidth"] * GIGA, other=given["start_seconds"])
    with runs_bar("day", 5) as tell:
        asked = paid | {"goal": goal, "autoscaler": rules, "start": start, "check": given["check"], "tell": tell}
        asked |= {"time_limit": options.time_limit_of(ctx), "fail": given["fail"], "seed": given["seed"]}
        plan = capacity(deployment, traffic, slo, **asked)
    if export is not None:
        write_whole(export, autoscaler_rows(plan))
    print_answer(form, plan, plot=plot, csv=csv)
