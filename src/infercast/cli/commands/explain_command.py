"""``infercast explain-command``: what a command that starts an engine does, and what to change."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.cost import Decided, facility_of, slo_of, tariff_of
from infercast.cli.options.deployment import is_given
from infercast.cli.options.groups import Deployed, Served, asked_calibration, takes
from infercast.cli.outputs import Form, print_result, runs_bar
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.command.explain import explain_command
from infercast.forecast.command.flags import read_flags
from infercast.forecast.command.pasted import started_engine, text_of, the_command
from infercast.report.command import explained_dict, render_explained

OF_COMMAND = ("network", "pcie_topology", "api_server", "expert_routing", "predictor", "engine", "host", "calibration")
"""What no flag of the engine says."""
SERVES = ("rate", "concurrency", "trace", "session_rate")
USUAL_TRIALS = 24
"""For the bar: about as many settings are tried."""


@takes(Served, Decided, Deployed, only=OF_COMMAND)
def command(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="A command line in quotes, a file, or - for standard input."),
    ],
    gpu: options.GpuName,
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Which of several commands in a file.")
    ] = None,
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", metavar="", help="Try settings around the command, or do not.")
    ] = True,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Explain a command that starts an engine: every flag, what fits, a forecast, and advice by simulated gain.

    Also read are docker run, compose files and Kubernetes manifests; nothing is ever executed.

    For example:

      infercast explain-command "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64" --gpu h100-sxm --rate 8

      infercast explain-command "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2" --gpu h100-sxm

      infercast explain-command deployment.yaml --gpu h200-sxm --service server

      kubectl get deployment server -o yaml | infercast explain-command - --gpu l40s --json
    """
    text = text_of(words[0], sys.stdin.read() if words == ["-"] else None) if len(words) == 1 else shlex.join(words)
    if not text.strip():
        raise InputError("there is no command to explain; give one in quotes, a file, or - for standard input")
    slo, tariff = slo_of(given), tariff_of(given)
    engine = engine_named(given["engine"]) if is_given(context, "engine") else started_engine(text)
    given["engine"] = context.params["engine"] = engine.name
    reading = read_flags(the_command(text, engine.commands, service).words, engine)
    context.params |= {"model": reading.model, "max_model_len": reading.settings.get(engine.bounds[2])}
    said = any(given[name] is not None for name in SERVES) or is_given(context, "arrival")
    if not said:
        context.params["rate"] = 1.0  # of requests whose rate is chosen later
    workload = served.workload_of(context)
    host = given.pop("host")
    if host is not None:
        from infercast.forecast.deploy import host_from  # noqa: PLC0415 - most runs name no host

        host = host_from(host, gpu, given["engine"])
    with runs_bar("settings", USUAL_TRIALS) as tell:
        explained = explain_command(
            text,
            gpu,
            workload if said else None,
            like=workload,
            slo=slo,
            tariff=tariff,
            facility=facility_of(given),
            service=service,
            advice=advice,
            host=host,
            calibration=asked_calibration(given),
            tell=tell or (lambda _: None),
            **{name: given[name] for name in OF_COMMAND if name not in ("host", "calibration")},
        )
    print_result(form, explained_dict, render_explained, explained, rows="flags")
