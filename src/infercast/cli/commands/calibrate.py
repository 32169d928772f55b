"""``infercast calibrate``: what benchmark results say of a deployment, and ``watch``: what a running engine does."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler
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
    Option("metrics_port", int, "Go on, and tell Prometheus what was measured and forecast last at this port."),
    Option("listen", str, "Where that port is; 0.0.0.0: on all networks.", "127.0.0.1", metavar="ADDRESS"),
    Option("out", Path, "Where to write a calibration, for --calibration of others.", panel="Files", short="-o"),
    *(PARALLEL, ENGINE_ARGS, DEPLOYMENT),
)
def watch_command(ctx: Context, *, out: Path | None, form: Form, **given: Any) -> None:
    if out is not None:
        check_writable(out, "--out", (".toml",))
    if given["model"] is None:
        ctx.params["model"] = _served(given["url"])
    if given["metrics_port"] is not None:
        if out is not None:
            raise InputError("--out is for one look; leave it or --metrics-port out")
        export(
            partial(watch, deployment_of(ctx)(), given["url"], given["seconds"]), given["listen"], given["metrics_port"]
        )
        return
    with stages_bar() as tell:
        found = watch(deployment_of(ctx)(), given["url"], given["seconds"], tell)
    if out is not None:
        write_whole(out, [write_calibration(found.calibration)])
    print_result(form, partial(watched_dict, found), partial(render_watched, found, str(out or "")))


def export(look: Callable[[], Watched], host: str, port: int, *, ends: Callable[[], bool] = lambda: False) -> None:
    """Look again and again, and serve what Prometheus reads; ``ends`` says when to stop."""
    page = [metrics_page(None)]

    class Page(StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.rfile.readline(8192).strip():  # the head of a request, whatever it asks for
                    pass
                self.wfile.write(
                    b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n" + page[0].encode()
                )

    try:
        server = ThreadingHTTPServer((host, port), Page)
    except (OSError, OverflowError) as problem:
        raise InputError(f"--metrics-port {port} on {host} cannot be used: {problem}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    note(f"http://{host}:{server.server_address[1]}/metrics tells what is measured and forecast; Ctrl+C ends it")
    told: tuple[str, ...] = ()
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(server.socket):
        while not ends():
            try:
                found = look()
                page[0], said = metrics_page(found), found.deviations
            except InputError as problem:
                page[0], said = metrics_page(None), (str(problem),)
                time.sleep(1)  # else an engine that is down would be asked without a pause
            if said != told:
                note("; ".join(said) or "nothing deviates beyond what is uncertain")
            told = said


def metrics_page(found: Watched | None) -> str:
    """What was found, in Prometheus' format; None: nothing, for the engine is away or idle."""
    rows = {"up": ("1 if the last look found a load to judge.", {"": float(found is not None)})}
    if found is not None:
        pairs = [pair for source in found.calibration.results for pair in source.pairs]
        factors = {f'{{part="{name}"}}': each.value for name, each in found.calibration.factors.items()}
        rows |= {
            "requests_per_second": ("Requests that ended.", {"": found.rate}),
            "prefix_hit_rate": ("Share of prompt tokens.", {"": found.hits or 0.0}),
            "measured": ("Seconds.", {f'{{quantity="{each.quantity}"}}': each.measured for each in pairs}),
            "forecast": ("Seconds.", {f'{{quantity="{each.quantity}"}}': each.before for each in pairs}),
            "factor": ("Times the forecast; path: seconds.", factors),
            "deviation": ("1 if named.", {f'{{cause="{name}"}}': float(is_so) for name, is_so in found.causes.items()}),
        }
    lines = []
    for name, (text, values) in rows.items():
        full = f"infercast:watch_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge"]
        lines += [f"{full}{label} {value:.10g}" for label, value in values.items()]
    return "\n".join(lines) + "\n"


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
