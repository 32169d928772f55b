"""``infercast calibrate``: what benchmark results say of a deployment, and ``watch``: what a running engine does."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from infercast import Deployment, __version__
from infercast.calibration.learn import Watched, calibrate, fetch, watch
from infercast.calibration.result import Asked
from infercast.cli.options import Context, deployment_of, is_given, with_options
from infercast.cli.outputs import Form, note, print_result, stages_bar
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.calibration import doubts_of, write_calibration
from infercast.forecast.command.flags import FlagPoint
from infercast.forecast.command.pasted import read_command, text_of
from infercast.forecast.deploy import load_device
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, PARALLEL, Option
from infercast.report.calibration import calibration_dict, render_calibration
from infercast.report.files import check_writable, write_whole
from infercast.report.terminal import Facts, pick
from infercast.units import format_many


@with_options(
    Option("results", list[Path], "Files of a load generator, folders of a sweep, /metrics snapshots.", ...,
           metavar="RESULT...", argument=True),
    "gpu",
    Option("model", str, "What was served, as `simulate` takes it.", metavar="MODEL", catalogue="models"),
    Option("deployment", str,
           "In place of --model and options: the command that started the engine, or a file with it.", metavar="TEXT",
           flag="--command", short="--deployment"),
    Option("service", str, "Which of several commands in a file."),
    PARALLEL,
    "rate concurrency num_requests",
    Option("input_len", str, "Prompt tokens, where results do not list them.", metavar="LENGTH", panel="Workload"),
    Option("output_len", str, "Output tokens, likewise.", metavar="LENGTH", panel="Workload"),
    Option("prefix_hit_rate", float, "Share of prompt tokens found in the prefix cache.", panel="Workload"),
    Option("out", Path, "The calibration, for --calibration of others.", "calibration.toml", panel="Files", short="-o"),
    ENGINE_ARGS,
    DEPLOYMENT,
)  # fmt: skip
def command(ctx: Context, *, out: Path, form: Form, **given: Any) -> None:
    if given["calibration"] is not None:
        raise InputError("--calibration is what this command writes; give results alone")
    if (given["model"] is None) == (given["deployment"] is None):
        raise InputError("say what was served: --model MODEL with the options of `simulate`, or --command TEXT")
    prefix_hit_rate = given["prefix_hit_rate"]
    if prefix_hit_rate is not None and not 0 <= prefix_hit_rate < 1:
        raise InputError(f"--prefix-hit-rate must be from 0 to below 1, not {prefix_hit_rate:g}")
    check_writable(out, "--out", (".toml",))
    started = deployment_of(ctx)() if given["deployment"] is None else _pasted(ctx)
    of_load = ("rate", "concurrency", "num_requests", "input_len", "output_len", "prefix_hit_rate")
    asked = Asked(*(given[name] for name in of_load))
    with stages_bar() as tell:
        found = calibrate(started, given["results"], asked=asked, tell=tell)
    write_whole(out, [write_calibration(found)])
    for doubt in doubts_of(found):
        note(doubt)
    print_result(
        form, lambda: {**calibration_dict(found), "written": str(out)}, lambda: render_calibration(found, str(out)),
        rows="factors",
    )  # fmt: skip


def _pasted(ctx: Context) -> Deployment:
    given = ctx.params
    text = given["deployment"]
    read = text_of(text, sys.stdin.read() if text == "-" else None)
    asked = engine_named(given["engine"]).name if is_given(ctx, "engine") else None
    engine, _, reading, _ = read_command(read, asked, given["service"])
    of_command = ("network", "pcie_topology", "api_server", "expert_routing", "predictor", "host")  # No flag says it
    others = {name: given[name] for name in of_command}
    return FlagPoint.of(reading, load_device(given["gpu"], given["network"]), engine, others).deploy()


@with_options(
    Option("url", str, "Of a running engine, such as http://localhost:8000.", ..., metavar="URL", argument=True),
    Option("model", str, "What it serves; default: what its /v1/models says.", metavar="MODEL", catalogue="models"),
    "gpu",
    Option("seconds", float, "How long to watch.", 30.0),
    Option("out", Path, "Where to write a calibration, for --calibration of others.", panel="Files", short="-o"),
    *(PARALLEL, ENGINE_ARGS, DEPLOYMENT),
)
def watch_command(ctx: Context, *, out: Path | None, form: Form, **given: Any) -> None:
    if out is not None:
        check_writable(out, "--out", (".toml",))
    if given["model"] is None:
        ctx.params["model"] = _served(given["url"])
    with stages_bar() as tell:
        found = watch(deployment_of(ctx)(), given["url"], given["seconds"], tell)
    if out is not None:
        write_whole(out, [write_calibration(found.calibration)])
    print_result(form, partial(watched_dict, found), partial(render_watched, found, str(out or "")))


def _served(url: str) -> str:
    try:
        return str(json.loads(fetch(url, "/v1/models"))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{url} does not say what it serves; give --model") from None


def watched_dict(found: Watched) -> dict[str, Any]:
    seen = "requests_per_second=rate mean_input_tokens=inputs.mean mean_output_tokens=outputs.mean"
    return {
        **pick(found, f"seconds requests {seen}"), **found.gauges,
        **pick(found, "prefix_hit_rate=hits prefix_hit_rate_before=hits_before"), "deviations": list(found.deviations),
        "calibration": calibration_dict(found.calibration), "version": __version__,
    }  # fmt: skip


def render_watched(found: Watched, out: str) -> list[Any]:
    rows = [
        (
            "load",
            f"{format_many(found.requests, 'request')} in {found.seconds:.0f} s, {found.rate:.3g}/s; on average "
            f"{found.inputs.mean:.0f} prompt and {found.outputs.mean:.0f} output tokens",
        ),
        (
            "engine",
            f"{found.gauges['running']:.0f} run, {found.gauges['waiting']:.0f} wait, KV cache "
            f"{found.gauges['kv_usage']:.0%} full"
            + ("" if found.hits is None else f", {found.hits:.0%} of prompt tokens cached"),
        ),
        ("deviates", "\n".join(found.deviations) or "nothing beyond what is uncertain"),
    ]
    return [Facts(rows), *render_calibration(found.calibration, out)]
