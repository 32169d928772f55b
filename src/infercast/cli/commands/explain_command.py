"""``infercast explain-command``: what a command that starts an engine does, and what to change."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from infercast.cli.options import Context, calibration_of, is_given, time_limit_of, with_options, workload_of
from infercast.cli.outputs import Form, print_answer, runs_bar
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.command.explain import explain_command, loaded_model
from infercast.forecast.command.pasted import read_command, text_of
from infercast.forecast.cost import facility_of, slo_of, tariff_of
from infercast.forecast.deploy import deploy, taken_by
from infercast.forecast.option_table import COST, TIME, WORKLOAD, Option
from infercast.forecast.progress import share_of_time, time_budget


@with_options(
    Option("words", list, "A command line in quotes, a file, or - for standard input.", ..., metavar="COMMAND",
           argument=True),
    "gpu",
    Option("service", str, "Which of several commands in a file."),
    Option("advice", bool, "Try settings around the command, or do not.", True, off=True),
    *(WORKLOAD, COST, "network engine expert_routing pcie_topology api_server chat predictor host calibration", TIME),
)  # fmt: skip
def command(ctx: Context, *, words: list[str], gpu: str, form: Form, **given: Any) -> None:
    text = text_of(words[0], sys.stdin.read() if words == ["-"] else None) if len(words) == 1 else shlex.join(words)
    if not text.strip():
        raise InputError("there is no command to explain; give one in quotes, a file, or - for standard input")
    slo, tariff = slo_of(given), tariff_of(given)
    asked_for = engine_named(given["engine"]).name if is_given(ctx, "engine") else None
    engine, _, reading, _ = read_command(text, asked_for, given["service"])
    given["engine"] = ctx.params["engine"] = engine.name
    ctx.params |= {"model": loaded_model(reading), "max_model_len": reading.settings.get(engine.bounds[2])}
    serves = ("rate", "concurrency", "trace", "session_rate")
    said = any(given[name] is not None for name in serves) or is_given(ctx, "arrival")
    if not said:
        ctx.params["rate"] = 1.0  # of requests whose rate is chosen later
    workload = workload_of(ctx)
    deployed = {**taken_by(deploy, given), "calibration": calibration_of(given)}
    usual_trials = 24  # for the bar: about as many settings are tried
    of_trials = 0.85  # Share of the time that is for runs and settings, and not for what is said of them
    asked: dict[str, Any] = {"like": workload, "slo": slo, "tariff": tariff, "facility": facility_of(given)}
    asked |= {"advice": given["advice"], "service": given["service"], "engine": asked_for}
    with time_budget(time_limit_of(ctx)):
        with runs_bar("settings", usual_trials) as tell, share_of_time(of_trials):
            asked["tell"] = tell
            explained = explain_command(text, gpu, workload if said else None, **asked, **deployed)
        print_answer(form, explained)
