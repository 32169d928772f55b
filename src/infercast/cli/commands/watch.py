"""``infercast watch``: a running engine against its forecast."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from infercast import __version__
from infercast.calibration.learn import Watched, fetch, watch
from infercast.cli.options import Context, deployment_of, with_options
from infercast.cli.outputs import Form, print_result, stages_bar
from infercast.errors import InputError
from infercast.forecast.calibration import write_calibration
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, PARALLEL, Option
from infercast.report.calibration import calibration_dict, render_calibration
from infercast.report.files import check_writable, write_whole
from infercast.report.terminal import Facts
from infercast.units import format_many


@with_options(
    Option("url", str, "Of a running engine, such as http://localhost:8000.", ..., metavar="URL", argument=True),
    Option("model", str, "What it serves; default: what its /v1/models says.", metavar="MODEL", catalogue="models"),
    "gpu",
    Option("seconds", float, "How long to watch.", 30.0),
    Option("out", Path, "Where to write a calibration, for --calibration of others.", panel="Files", short="-o"),
    *(PARALLEL, ENGINE_ARGS, DEPLOYMENT),
)
def command(ctx: Context, *, out: Path | None, form: Form, **given: Any) -> None:
    if out is not None:
        check_writable(out, "--out", (".toml",))
    if given["model"] is None:
        ctx.params["model"] = _served(given["url"])
    with stages_bar() as tell:
        found = watch(deployment_of(ctx)(), given["url"], given["seconds"], tell or (lambda _: None))
    if out is not None:
        write_whole(out, [write_calibration(found.calibration)])
    print_result(form, partial(watched_dict, found), partial(render_watched, found, str(out or "")))


def _served(url: str) -> str:
    """The first model of a server."""
    try:
        return str(json.loads(fetch(url, "/v1/models"))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{url} does not say what it serves; give --model") from None


def watched_dict(found: Watched) -> dict[str, Any]:
    return {
        "seconds": found.seconds, "requests": found.requests, "requests_per_second": found.rate,
        "mean_input_tokens": found.inputs.mean, "mean_output_tokens": found.outputs.mean, **found.gauges,
        "prefix_hit_rate": found.hits, "prefix_hit_rate_before": found.hits_before,
        "deviations": list(found.deviations), "calibration": calibration_dict(found.calibration),
        "version": __version__,
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
