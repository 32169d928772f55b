"""A run as a file to keep: the HTML report, a row per request, or the forecast as JSON."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import Any

from infercast import __version__
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.explain.overview import look_over
from infercast.forecast.explain.watched import Watched
from infercast.forecast.intervals.intervals import Intervals
from infercast.report.files import today
from infercast.report.forecast import forecast_dict
from infercast.report.requests import request_rows

KINDS = ("html", "csv", "json")


def check_kind(kind: Any) -> str:
    """One of the kinds, or an error; a report needs a package that may not be there."""
    if kind not in KINDS:
        raise UnknownNameError("kind of export", str(kind)[:40], KINDS)
    if kind == "html" and find_spec("matplotlib") is None:
        raise InputError("a report needs matplotlib: pip install 'infercast[report]'")
    return str(kind)


def export_of(kind: str, run: Watched, intervals: Intervals, command: str) -> dict[str, Any]:
    """The name of a file and what it holds."""
    forecast = run.forecast
    deployment = forecast.pools[0].deployment
    stem = re.sub(r"[^\w.-]+", "-", f"{deployment.model.name}-{deployment.gpu.name}")
    if kind == "csv":
        text = "".join(request_rows(forecast))
    elif kind == "json":
        text = json.dumps(forecast_dict(forecast, intervals), indent=2) + "\n"
    else:
        from infercast.report.page.html import report_page  # noqa: PLC0415 - it loads matplotlib

        text = report_page(look_over(run, intervals), __version__, command, today())
    return {"name": f"{stem}.{kind}", "text": text}
