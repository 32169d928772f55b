"""A command explained: what each flag does, what users would see, and what should be different."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from infercast.engines.registry import AnyEngine, engine_named
from infercast.errors import DoesNotFitError, InputError
from infercast.forecast.command.advice import Advised, advise
from infercast.forecast.command.changes import Change
from infercast.forecast.command.flags import Reading, read_flags
from infercast.forecast.command.meaning import Meaning, explain_flags
from infercast.forecast.command.pasted import Pasted, started_engine, the_command
from infercast.forecast.command.point import Point, Timers
from infercast.forecast.command.starting import changes_that_fit
from infercast.forecast.command.trials import Load
from infercast.forecast.deploy import GpuSource, load_device
from infercast.forecast.intervals.intervals import Intervals, forecast_intervals
from infercast.forecast.memory import Fit
from infercast.forecast.money import Tariff
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.wall import Facility
from infercast.predict.default import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve import Workload
from infercast.serve.workload.redraw import drawn_with
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.shown import Answer

LOADS = {"light": 0.2, "heavy": 0.8}
"""Shares of what the deployment can serve, where nobody says what comes."""
USUAL_LENGTHS = "lognormal:700:0.9:16:8000", "lognormal:180:0.8:4:1000"


@dataclass(frozen=True, slots=True)
class Served:
    """One load, and what users would see under it."""

    load: Load
    forecast: Forecast
    intervals: Intervals


@dataclass(frozen=True, slots=True, repr=False)
class Explained(Answer):
    """A command, explained."""

    pasted: Pasted
    reading: Reading
    engine: AnyEngine
    meanings: tuple[Meaning, ...]
    notes: tuple[str, ...]
    fit: Fit
    problem: str
    """Why the engine would not start; empty if it does."""
    capacity: float | None
    """Requests per second that can be served, of requests like these."""
    served: tuple[Served, ...]
    advised: Advised | None
    would_fit: tuple[Change, ...]
    """What would let it start, if it does not."""

    def _words(self) -> str:
        flags = f"{len(self.reading.flags)} flags"
        state = self.problem or "starts"
        return f"{self.reading.model} on {self.fit.gpu.name}, {self.engine.name}, {flags}: {state}"

    @property
    def command(self) -> str:
        """The command as it is, in one line."""
        return command_line(self.reading, self.engine)

    @property
    def recommended(self) -> str | None:
        """The command with the advice; None where it is good as it is."""
        if self.advised is None or not self.advised.applied:
            return None
        return command_line(self.reading, self.engine, self.advised.applied)


def explain_command(
    text: str,
    gpu: GpuSource,
    workload: Workload | None = None,
    *,
    like: Workload | None = None,
    slo: Slo | None = None,
    tariff: Tariff | None = None,
    facility: Facility | None = None,
    service: str | None = None,
    engine: str | None = None,
    advice: bool = True,
    network: str | None = None,
    predictor: str | Predictor = "learned",
    tell: Callable[[str], None] = lambda _: None,
    **given: Any,
) -> Explained:
    """Explain a command line, a ``docker run``, a compose file or a Kubernetes manifest; the text is never executed.

    Without a ``workload``, requests ``like`` these random ones (or the usual ones) come at a light and at a heavy rate.
    What is promised (``slo``) is held against the forecast, and advice is ranked by its headroom. Of several commands
    in a text, ``service`` names one. ``engine`` is the one that the text starts unless a release of it is named.
    ``given`` goes to `deploy` as it is.
    """
    chosen = started_engine(text) if engine is None else engine_named(engine)
    pasted = the_command(text, chosen.commands, service)
    reading = read_flags(pasted.words, chosen)
    kernels = make_predictor(predictor, chosen.family) if isinstance(predictor, str) else predictor
    device = load_device(gpu, network)
    point = Point.of(reading, device, chosen, {**given, "network": network, "predictor": kernels})
    notes: list[str] = []
    chosen.settings(reading.settings, notes.append)
    load = workload or like or usual_requests()
    fit = point.fit(mean_context(load))
    timers = Timers()
    try:
        deployment = point.deploy()
    except DoesNotFitError as problem:
        meanings = explain_flags(point, reading, fit, None)
        would_fit = tuple(changes_that_fit(point, fit)) if advice else ()
        notes += _notes(pasted, fit, chosen)
        return Explained(
            pasted, reading, chosen, tuple(meanings), tuple(notes), fit, str(problem), None, (), None, would_fit
        )
    system = timers.system(deployment)
    capacity = most_requests_per_second(system, load)
    loads = light_and_heavy(load, capacity, slo) if workload is None else [Load("as asked", workload, slo)]
    served = []
    for each in loads:
        tell(f"{each.name} load")
        forecast = simulate_system(system, each.workload, capacity=lambda: capacity, slo=slo)
        forecast = replace(forecast, tariff=tariff or Tariff(), facility=facility or Facility())
        intervals = forecast_intervals(forecast)
        served.append(Served(each, forecast if slo is None else forecast.promised(slo, intervals), intervals))
    meanings = explain_flags(point, reading, fit, deployment)
    advised = advise(point, fit, loads, timers, tell) if advice else None
    notes += _notes(pasted, fit, chosen)
    return Explained(
        pasted, reading, chosen, tuple(meanings), tuple(notes), fit, "", capacity, tuple(served), advised, ()
    )


def usual_requests() -> Workload:
    """Requests as they are by default, whose rate is not said."""
    inputs, outputs = USUAL_LENGTHS
    return synthetic_workload(rate=1.0, input_lengths=inputs, output_lengths=outputs)


def mean_context(workload: Workload) -> int:
    """Tokens of an average sequence halfway through its answer."""
    requests = workload.requests
    return max(1, round(sum(each.num_input + each.num_output / 2 for each in requests) / len(requests)))


def light_and_heavy(like: Workload, capacity: float, slo: Slo | None = None) -> list[Load]:
    """Random requests at shares of what can be served."""
    if like.drawn is None:
        raise InputError("the requests of a light and a heavy load must be drawn; give a workload to have it served")
    rates = {name: float(f"{share * capacity:.2g}") for name, share in LOADS.items()}
    count = {"count": None} if like.open_ended else {}
    return [Load(name, drawn_with(like.drawn, rate=rate, **count), slo) for name, rate in rates.items()]


def command_line(reading: Reading, engine: AnyEngine, changes: dict[str, Any] | None = None) -> str:
    """The command that starts the engine, with other values of some flags."""
    left = dict(changes or {})
    negates = engine.commands.negates
    words = [*engine.commands.serve, reading.model]
    for flag in reading.flags:
        if flag.field and flag.field in (changes or {}):
            if flag.field in left:
                words += _words(flag.field, left.pop(flag.field), negates=negates)
        else:
            words += [f"--{flag.name}", *([flag.text] if flag.text else [])]
    for field, value in left.items():
        words += _words(field, value, negates=negates)
    return shlex.join(words)


def _words(field: str, value: Any, *, negates: bool) -> list[str]:
    name = field.replace("_", "-")
    if value is None or (value is False and not negates):
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _notes(pasted: Pasted, fit: Fit, engine: AnyEngine) -> list[str]:
    """What the text says beside the flags."""
    found = []
    own = [name for name in pasted.environment if name.startswith(engine.commands.environment)]
    if own:
        found.append(f"environment variables are not modelled: {', '.join(sorted(own))}")
    devices = pasted.environment.get("CUDA_VISIBLE_DEVICES", "")
    gpus = pasted.gpus or (len(devices.split(",")) if devices and devices[0].isdigit() else None)
    if gpus is not None and gpus != fit.layout.gpus:
        what = "more than" if fit.layout.gpus > gpus else "fewer than"
        found.append(f"the flags use {fit.layout.gpus} GPUs, {what} the {gpus} that the command is given")
    if pasted.replicas > 1:
        found.append(f"{pasted.replicas} replicas are started; the forecast is of one, with the load of one")
    return found
