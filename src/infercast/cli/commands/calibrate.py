"""``infercast calibrate``: what a user's own benchmark results say of a deployment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from infercast import Deployment, __version__
from infercast.calibrate.learn import calibrate
from infercast.calibrate.result import Asked
from infercast.cli.options import deployment_of, host_of, is_given, with_options
from infercast.cli.outputs import Form, print_result, stages_bar
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.calibration import write_calibration
from infercast.forecast.command.flags import Point, read_flags
from infercast.forecast.command.pasted import started_engine, text_of, the_command
from infercast.forecast.deploy import load_device
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, OPTIONS, Option, file, workload
from infercast.report.calibration import calibration_dict, render_calibration
from infercast.report.files import check_writable, write_whole

OF_COMMAND = ("network", "pcie_topology", "api_server", "expert_routing", "predictor")
"""What no flag of an engine says."""
OF_LOAD = ("rate", "concurrency", "num_requests", "input_len", "output_len", "prefix_hit_rate")


CALIBRATE = (
    Option(
        *("results", list[Path], ..., "RESULT..."),
        "Files of a load generator, folders of a sweep, /metrics snapshots.",
        argument=True,
    ),
    OPTIONS["gpu"],
    Option("model", str, None, "MODEL", "What was served, as `simulate` takes it.", catalogue="models"),
    Option(
        *("deployment", str, None, "TEXT"),
        "In place of --model and options: the command that started the engine, or a file with it.",
        flag="--command",
        short="--deployment",
    ),
    Option("service", str, None, "NAME", "Which of several commands in a file."),
)
MEASURED = (
    *(OPTIONS[name] for name in ("rate", "concurrency", "num_requests")),
    workload("input_len", str, None, "LENGTH", "Prompt tokens, where results do not list them."),
    workload("output_len", str, None, "LENGTH", "Output tokens, likewise."),
    workload("prefix_hit_rate", float, None, "X", "Share of prompt tokens found in the prefix cache."),
    file("out", Path, Path("calibration.toml"), "FILE", "The calibration, for --calibration of others.", short="-o"),
)


@with_options(
    CALIBRATE,
    "tensor_parallel_size pipeline_parallel_size data_parallel_size",
    MEASURED,
    ENGINE_ARGS,
    DEPLOYMENT,
)
def command(ctx: typer.Context, *, out: Path, form: Form, **given: Any) -> None:
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
    if (given["model"] is None) == (given["deployment"] is None):
        raise InputError("say what was served: --model MODEL with the options of `simulate`, or --command TEXT")
    prefix_hit_rate = given["prefix_hit_rate"]
    if prefix_hit_rate is not None and not 0 <= prefix_hit_rate < 1:
        raise InputError(f"--prefix-hit-rate must be from 0 to below 1, not {prefix_hit_rate:g}")
    check_writable(out, "--out", (".toml",))
    started = deployment_of(ctx)() if given["deployment"] is None else _pasted(ctx)
    asked = Asked(*(given[name] for name in OF_LOAD))
    with stages_bar() as tell:
        found = calibrate(started, given["results"], asked=asked, version=__version__, tell=tell or (lambda _: None))
    write_whole(out, [write_calibration(found)])
    print_result(
        form,
        lambda: {**calibration_dict(found), "written": str(out)},
        lambda: render_calibration(found, str(out)),
        rows="factors",
    )


def _pasted(ctx: typer.Context) -> Deployment:
    given = ctx.params
    text = given["deployment"]
    read = text_of(text, sys.stdin.read() if text == "-" else None)
    engine = engine_named(given["engine"]) if is_given(ctx, "engine") else started_engine(read)
    reading = read_flags(the_command(read, engine.commands, given["service"]).words, engine)
    others = {name: given[name] for name in OF_COMMAND} | {"host": host_of(ctx, given["gpu"], engine.name)}
    return Point.of(reading, load_device(given["gpu"], given["network"]), engine, others).deploy()
