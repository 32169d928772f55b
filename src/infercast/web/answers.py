"""Answers to the questions of the page as plain data, without any HTTP: a server and a browser call the same.

``answer(name, document)`` takes what a request holds (``state`` or ``query``, ``config``, and what a question takes
beside them) and returns what it is answered with. Everything that is wrong with it is an `InfercastError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from infercast import __version__
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.explain.watched import Watched, watch_run
from infercast.forecast.intervals.intervals import Intervals, forecast_intervals, jumps_over
from infercast.report.forecast import forecast_dict
from infercast.web.api_page import api_page
from infercast.web.arguments import Asked, capacity_known, read_asked, system_asked, workload_of
from infercast.web.catalogue import catalogue
from infercast.web.charts import charts_of
from infercast.web.curve import curve_of
from infercast.web.exports import check_kind, comparison_of, export_of, title_of
from infercast.web.fields import CAPACITY, CURVE, ENERGY, FIELDS, MEMORY, PLAN, SIMULATE
from infercast.web.heavy import capacity_of, energy_of, plan_of
from infercast.web.memory import memory_of
from infercast.web.openapi import document as openapi_document
from infercast.web.state import to_command, to_query
from infercast.web.strict import finite

Tell = Callable[[str], None]
"""Hears what a long question is at."""
Answer = dict[str, Any]
QUICK_REQUESTS = 150
"""Of an answer that must come soon, where a simulation goes step by step."""
MOST_COMPARED = 4
KEPT_RUNS = 4
"""Runs whose intervals, files or details may be asked for next."""
OF_RUNS = ("model", "hardware", "layout", "engine", "traffic", "sessions")
"""Groups of fields that a run depends on."""
_runs: dict[str | None, Watched] = {}
_intervals: dict[str | None, Intervals] = {}


def simulate(document: Mapping[str, Any], _: Tell) -> Answer:
    """What users would see: the forecast as ``infercast simulate --json`` prints it, and what charts need.

    With ``"intervals": false`` it comes in half the time, without 80 % intervals and without the SLO's verdict. Where
    a simulation cannot jump over steps, which takes ten times as long, it is then one of the first requests alone.
    """
    asked = read_asked(document)
    final = document.get("intervals", True)
    if not isinstance(final, bool):
        raise InputError(f"intervals must be true or false, not {final!r}")
    run = run_of(asked) if final else quick_run(asked)
    intervals = intervals_of(asked, run) if final else None
    run = decided(asked, run, intervals)
    return {
        **about(asked, SIMULATE),
        "command": command_of(asked, run),
        "final": final,
        "requests": len(run.forecast.workload.requests),
        "forecast": finite(forecast_dict(run.forecast, intervals)),
        "memory": memory_of(asked),
        **charts_of(run),
    }


def memory(document: Mapping[str, Any], _: Tell) -> Answer:
    """What fits, and how the memory of one GPU is divided; also where the answer is no."""
    asked = read_asked(document)
    return {**about(asked, MEMORY), "memory": memory_of(asked)}


def curve(document: Mapping[str, Any], tell: Tell) -> Answer:
    """Latencies and throughput along request rates, the knee, and up to where the SLO holds."""
    asked, found = curve_of(read_asked(document), tell)
    return {**about(asked, CURVE), "curve": found}


def plan(document: Mapping[str, Any], tell: Tell) -> Answer:
    """The deployment that keeps the SLO at the least cost."""
    asked = read_asked(document)
    return {**about(asked, PLAN), "plan": plan_of(asked, tell)}


def capacity(document: Mapping[str, Any], tell: Tell) -> Answer:
    """Replicas over a day of traffic."""
    asked = read_asked(document)
    return {**about(asked, CAPACITY), "capacity": capacity_of(asked, tell)}


def energy(document: Mapping[str, Any], tell: Tell) -> Answer:
    """The power limit that saves most energy while the SLO holds."""
    asked = read_asked(document)
    return {**about(asked, ENERGY), "energy": energy_of(asked, tell)}


def export(document: Mapping[str, Any], _: Tell) -> Answer:
    """A run as a file of a ``kind``, or several ``states`` side by side: its name and what it holds."""
    kind, several = check_kind(document.get("kind")), document.get("states")
    if several is not None:
        if not isinstance(several, list) or not 2 <= len(several) <= MOST_COMPARED:
            raise InputError(f"states must be a list of 2 to {MOST_COMPARED} states")
        runs = [_whole(read_asked({"state": each})) for each in several]
        documents = [forecast_dict(run.forecast, intervals) for run, intervals in runs]
        return comparison_of(kind, documents, [title_of(run.forecast) for run, _ in runs])
    asked = read_asked(document)
    run, intervals = _whole(asked)
    return export_of(kind, run, intervals, command_of(asked, run))


def _whole(asked: Asked) -> tuple[Watched, Intervals]:
    """A run with everything that is said of it."""
    run = run_of(asked)
    intervals = intervals_of(asked, run)
    return decided(asked, run, intervals), intervals


def openapi(_: Mapping[str, Any], __: Tell) -> Answer:
    """The API as an OpenAPI document."""
    return openapi_document()


def api_html(_: Mapping[str, Any], __: Tell) -> Answer:
    """The API as a page."""
    return {"html": api_page(openapi_document())}


def catalog(_: Mapping[str, Any], __: Tell) -> Answer:
    """All that can be chosen from."""
    return catalogue()


QUESTIONS: dict[str, Callable[[Mapping[str, Any], Tell], Answer]] = {
    "catalog": catalog,
    SIMULATE: simulate,
    MEMORY: memory,
    CURVE: curve,
    PLAN: plan,
    CAPACITY: capacity,
    ENERGY: energy,
    "export": export,
    "openapi": openapi,
    "api_page": api_html,
}


def answer(name: str, document: Mapping[str, Any], tell: Tell | None = None) -> Answer:
    """The answer to a question."""
    if name not in QUESTIONS:
        raise UnknownNameError("question", name, QUESTIONS)
    return QUESTIONS[name](document, tell or (lambda _: None))


def about(asked: Asked, question: str) -> Answer:
    """What every answer says of its question: the whole state, its URL and its command line."""
    return {
        "question": question,
        "version": __version__,
        "state": asked.state,
        "query": to_query(asked.state),
        "command": to_command(asked.state, question, config=asked.config is not None),
    }


def command_of(asked: Asked, run: Watched) -> str:
    """The command line of a run, which says so where the run is overloaded: it is refused otherwise."""
    command = to_command(asked.state, SIMULATE, config=asked.config is not None)
    return command if run.forecast.saturation is None else f"{command} --allow-overload"


def quick_run(asked: Asked) -> Watched:
    """A run for an answer that must come soon: of few requests where a simulation goes step by step.

    Such a system is not kept full first to see what it serves at most; an overload then shows in the final answer.
    """
    if run_key(asked) in _runs or jumps_over(system_asked(asked)):
        return run_of(asked)
    number = min(asked.state["num_requests"] or QUICK_REQUESTS, QUICK_REQUESTS)
    few = asked._replace(state={**asked.state, "num_requests": number})
    return watch_run(system_asked(few), workload_of(few), steady=few.state["steady"], capacity=lambda: inf)


def run_of(asked: Asked) -> Watched:
    """The simulated run; the last few are kept, but for those of a dropped config."""
    key = run_key(asked)
    if key in _runs:
        return _runs[key]
    system, workload = system_asked(asked), workload_of(asked)
    run = watch_run(system, workload, steady=asked.state["steady"], capacity=capacity_known(asked, system, workload))
    if key is not None:
        _runs[key] = run
        while len(_runs) > KEPT_RUNS:
            _intervals.pop(first := next(iter(_runs)), None)
            _runs.pop(first)
    return run


def intervals_of(asked: Asked, run: Watched) -> Intervals:
    """The 80 % intervals of a run, kept as long as the run is."""
    key = run_key(asked)
    if key in _intervals:
        return _intervals[key]
    intervals = forecast_intervals(run.forecast)
    if key in _runs:
        _intervals[key] = intervals
    return intervals


def run_key(asked: Asked) -> str | None:
    """What a run depends on: neither the SLO nor prices; None for a dropped config, of which nothing is kept."""
    if asked.config is not None:
        return None
    return json.dumps({field.name: asked.state[field.name] for field in FIELDS if field.group in OF_RUNS})


def decided(asked: Asked, run: Watched, intervals: Intervals | None) -> Watched:
    """The run with prices, held against what is promised; odds come with intervals."""
    forecast = replace(run.forecast, tariff=asked.tariff, facility=asked.facility)
    if asked.slo is not None and intervals is not None:
        forecast = forecast.promised(asked.slo, intervals)
    return replace(run, forecast=forecast)
