"""A run from the command line, whatever system it is of: what is asked of it, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from infercast import Deployment, Workload
from infercast.cli import outputs
from infercast.cli.options.decision import slo_of, tariff_of
from infercast.cli.options.facility import facility_of
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import simulation_bar
from infercast.errors import InputError, SaturatedError
from infercast.forecast.intervals.intervals import Intervals, forecast_intervals
from infercast.forecast.money import Tariff
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.system import System
from infercast.forecast.wall import Facility
from infercast.report.forecast import forecast_dict, render_forecast

Build = Callable[[Sequence[Deployment], str | None], System]
"""A system of deployments, behind another router if one is named."""


class Question(NamedTuple):
    """What is to be served, and what is to be said of it."""

    workload: Workload
    files: outputs.Outputs
    what_if: str | None
    breakdown: bool
    steady: bool
    allow_overload: bool
    form: Form
    slo: Slo | None = None
    tariff: Tariff = Tariff()
    facility: Facility = Facility()

    @staticmethod
    def of(given: dict[str, Any], workload: Workload) -> Question:
        """The options of a command by their names."""
        files = outputs.outputs_of(
            given["report"],
            given["trace_out"],
            given["trace_window"],
            given["requests_out"],
            given["save_result"],
            detailed=given["save_detailed"],
        )
        if given["what_if"] is not None and any((files.trace, files.requests, files.result)):
            named = "--trace-out, --requests-out or --save-result"
            raise InputError(f"--what-if and two engines show two runs side by side; ask for {named} of one")
        names = ("what_if", "breakdown", "steady", "allow_overload", "form")
        asked = {name: given[name] for name in names}
        return Question(
            workload, files, **asked, slo=slo_of(given), tariff=tariff_of(given), facility=facility_of(given)
        )

    @property
    def asked(self) -> dict[str, Any]:
        """What a simulation has to know of it."""
        return {"steady": self.steady, "slo": self.slo}

    def refuse_overload(self, forecast: Forecast) -> None:
        """A saturated run has no steady latencies to print."""
        saturation = forecast.saturation
        if saturation is not None and not self.allow_overload:
            raise SaturatedError(f"{saturation.sentence}; lower --rate, add GPUs, or pass --allow-overload")

    def decide(self, forecast: Forecast, intervals: Intervals | None = None) -> Forecast:
        """The forecast held against what is promised, with the prices that were asked for."""
        forecast = replace(forecast, tariff=self.tariff, facility=self.facility)
        return forecast if self.slo is None else forecast.promised(self.slo, intervals)


def answer(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    """Simulate what was asked for and print it."""
    if question.what_if is not None:
        _compare(question, asked, build)
        return
    system = build([each() for each in asked], None)
    if question.breakdown or question.files.need_steps:
        _explain(question, system)
        return
    with simulation_bar(len(question.workload.requests)) as progress:
        forecast = simulate_system(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(forecast)
    intervals = forecast_intervals(forecast)
    forecast = question.decide(forecast, intervals)
    question.files.write_requests(forecast)
    print_result(question.form, forecast_dict, render_forecast, forecast, intervals)


def _compare(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    """The run as asked for beside the run with the changes."""
    from infercast.forecast.explain.watched import watch_run  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.what_if import deploy_changed, parse_changes  # noqa: PLC0415
    from infercast.report.comparison import AS_ASKED, render_runs, runs_dict  # noqa: PLC0415

    assert question.what_if is not None
    changes = parse_changes(question.what_if)
    runs = []
    for system in (
        build([each() for each in asked], None),
        build([deploy_changed(each, changes) for each in asked], changes.router),
    ):
        with simulation_bar(len(question.workload.requests)) as progress:
            runs.append(watch_run(system, question.workload, progress=progress, **question.asked))
        question.refuse_overload(runs[-1].forecast)
        runs[-1] = replace(runs[-1], forecast=question.decide(runs[-1].forecast))
    pair, names = (runs[0], runs[1]), AS_ASKED
    if changes.is_engine_alone:
        names = (runs[0].forecast.deployment.engine.name, runs[1].forecast.deployment.engine.name)
    question.files.write_comparison(pair, names)
    document, tables = (partial(make, names=names, breakdown=question.breakdown) for make in (runs_dict, render_runs))
    print_result(question.form, document, tables, pair, changes.text, rows=("before", "after"))


def _explain(question: Question, system: System) -> None:
    """The run, where its time went, and the files that show it."""
    from infercast.forecast.explain.breakdown import break_down  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.explain.watched import watch_run  # noqa: PLC0415
    from infercast.report.breakdown import breakdown_dict, render_breakdown  # noqa: PLC0415

    with simulation_bar(len(question.workload.requests)) as progress:
        run = watch_run(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(run.forecast)
    intervals = forecast_intervals(run.forecast)
    run = replace(run, forecast=question.decide(run.forecast, intervals))
    question.files.write(run, intervals)
    parts = break_down(run) if question.breakdown else None

    def document() -> dict[str, Any]:
        found = forecast_dict(run.forecast, intervals)
        return found if parts is None else {**found, "breakdown": breakdown_dict(parts)}

    def tables() -> list[Any]:
        more = [] if parts is None else render_breakdown(question.workload, parts)
        return [*render_forecast(run.forecast, intervals), *more]

    print_result(question.form, document, tables)
