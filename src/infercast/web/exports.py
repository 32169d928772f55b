"""A run as a file to keep: the HTML report, a row per request, or the forecast as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from infercast import __version__
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.explain.overview import look_over
from infercast.forecast.explain.watched import Watched
from infercast.forecast.intervals.intervals import Intervals
from infercast.forecast.result import Forecast
from infercast.report.files import today
from infercast.report.forecast import forecast_dict
from infercast.report.requests import request_rows
from infercast.report.several.saved import runs_of
from infercast.web.strict import finite

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
    if kind == "csv":
        text = "".join(request_rows(forecast))
    elif kind == "json":
        text = _json(forecast_dict(forecast, intervals))
    else:
        from infercast.report.page.html import report_page  # noqa: PLC0415 - it loads matplotlib

        text = report_page(look_over(run, intervals), __version__, command, today())
    return {"name": f"{_plain(title_of(forecast))}.{kind}", "text": text}


def comparison_of(kind: str, documents: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> dict[str, Any]:
    """The same of several runs side by side; the first is the one that others are compared with."""
    if kind == "csv":
        raise InputError("a table of requests is of one run; ask for html or json of several")
    runs = runs_of(documents, titles)
    if kind == "json":
        text = _json({run.name: document for run, document in zip(runs, documents, strict=True)})
    else:
        from infercast.report.page.several_page import several_page  # noqa: PLC0415 - it loads matplotlib

        text = several_page(runs, __version__, date=today())
    return {"name": f"comparison.{kind}", "text": text}


def title_of(forecast: Forecast) -> str:
    """What a run is called: its model and its GPUs."""
    deployment = forecast.pools[0].deployment
    return f"{deployment.model.name} {deployment.gpu.name}"


def _plain(title: str) -> str:
    return re.sub(r"[^\w.-]+", "-", title)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(finite(document), indent=2) + "\n"
