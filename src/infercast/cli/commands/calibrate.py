"""``infercast calibrate``: what a user's own benchmark results say of a deployment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import Deployment, __version__
from infercast.calibrate.learn import calibrate
from infercast.calibrate.result import Asked
from infercast.cli import completion, outputs
from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.groups import Deployed, asked_deployment, takes
from infercast.cli.outputs import Form, print_result, stages_bar
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.calibration import write_calibration
from infercast.forecast.command.flags import Point, read_flags
from infercast.forecast.command.pasted import started_engine, text_of, the_command
from infercast.forecast.deploy import load_device
from infercast.report.calibration import calibration_dict, render_calibration
from infercast.report.files import check_writable, write_whole

OF_COMMAND = ("network", "pcie_topology", "api_server", "expert_routing", "predictor")
"""What no flag of an engine says."""


@takes(Deployed)
def command(
    context: typer.Context,
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULT...", help="Files of a load generator, folders of a sweep, /metrics snapshots."),
    ],
    gpu: options.GpuName,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            autocompletion=completion.models,
            help="What was served, as `simulate` takes it.",
        ),
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(
            "--command",
            "--deployment",
            metavar="TEXT",
            help="In place of --model and options: the command that started the engine, or a file with it.",
        ),
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Which of several commands in a file.")
    ] = None,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    rate: served.Rate = None,
    concurrency: served.Concurrency = None,
    num_requests: served.NumRequests = None,
    input_len: Annotated[
        str | None, served.of_length("--input-len", help="Prompt tokens, where results do not list them.")
    ] = None,
    output_len: Annotated[str | None, served.of_length("--output-len", help="Output tokens, likewise.")] = None,
    prefix_hit_rate: Annotated[
        float | None,
        options.of_workload("--prefix-hit-rate", metavar="X", help="Share of prompt tokens found in the prefix cache."),
    ] = None,
    out: Annotated[
        Path, outputs.of_file("--out", "-o", metavar="FILE", help="The calibration, for --calibration of others.")
    ] = Path("calibration.toml"),
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Learn factors of host, API server and GPU from your own benchmark results, for every forecast.

    Read are results of vllm bench serve (--save-result, better with --save-detailed) and vllm bench sweep, SGLang's
    bench_serving, GuideLLM, AIPerf, GenAI-Perf, inference-perf, and snapshots of vLLM's /metrics.

    For example:

      infercast calibrate result.json --model llama-3.1-8b --gpu h200-sxm

      infercast calibrate sweep/ --gpu h100-sxm --command "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2"

      infercast calibrate metrics.txt --model llama-3.1-8b --gpu l40s --rate 4 --out l40s.toml

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 30 --calibration calibration.toml
    """
    if given["calibration"] is not None:
        raise InputError("--calibration is what this command writes; give results alone")
    if (model is None) == (deployment is None):
        raise InputError("say what was served: --model MODEL with the options of `simulate`, or --command TEXT")
    if prefix_hit_rate is not None and not 0 <= prefix_hit_rate < 1:
        raise InputError(f"--prefix-hit-rate must be from 0 to below 1, not {prefix_hit_rate:g}")
    check_writable(out, "--out", (".toml",))
    if deployment is None:
        started = asked_deployment(
            context,
            gpu,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            data_parallel_size=data_parallel_size,
        )()
    else:
        started = _pasted(context, deployment, service, gpu)
    asked = Asked(rate, concurrency, num_requests, input_len, output_len, prefix_hit_rate)
    with stages_bar() as tell:
        found = calibrate(started, results, asked=asked, version=__version__, tell=tell or (lambda _: None))
    write_whole(out, [write_calibration(found)])
    print_result(
        form,
        lambda: {**calibration_dict(found), "written": str(out)},
        lambda: render_calibration(found, str(out)),
        rows="factors",
    )


def _pasted(context: typer.Context, text: str, service: str | None, gpu: str) -> Deployment:
    """The deployment that a command starts."""
    given = context.params
    read = text_of(text, sys.stdin.read() if text == "-" else None)
    named = context.get_parameter_source("engine")
    engine = engine_named(given["engine"]) if named and named.name == "COMMANDLINE" else started_engine(read)
    reading = read_flags(the_command(read, engine.commands, service).words, engine)
    host = given["host"]
    if host is not None:
        from infercast.forecast.deploy import host_from  # noqa: PLC0415 - most runs name no host

        host = host_from(host, gpu, engine.name)
    others = {name: given[name] for name in OF_COMMAND}
    return Point.of(reading, load_device(gpu, given["network"]), engine, {**others, "host": host}).deploy()
