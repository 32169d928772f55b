"""Options of a day of traffic and of who scales a fleet, and what they make."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import Deployment
from infercast.cli.options import workload as served
from infercast.cli.options.engine import is_given, longest_asked
from infercast.cli.options.shared import of_workload
from infercast.errors import InputError
from infercast.forecast.day.outcome import Goal
from infercast.forecast.day.policies import MEASURES, Autoscaler
from infercast.forecast.day.startup import LOAD_BANDWIDTH, OTHER_SECONDS, StartUp, start_up
from infercast.forecast.day.traffic import WINDOW, Traffic, made_up_day, traffic_of
from infercast.forecast.deploy import load_model
from infercast.serve.workload.asked import lengths_within
from infercast.serve.workload.lengths import INPUT_LEN, OUTPUT_LEN
from infercast.serve.workload.too_long import TOO_LONG, check_too_long, refuse_too_long, truncated
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
