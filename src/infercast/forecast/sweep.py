"""Sweeps along a rate, clients or a setting: the knee of the curve, the best power limit, and break-even of drafts.

Each point is what `infercast simulate` says of it. The *knee* is the largest load at which the median time to first
token is at most twice that of a tenth of the capacity. It, the largest load that keeps the SLO and the best power limit
are found next to the best points by halving.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise
from math import exp, log
from operator import attrgetter
from typing import Any, NamedTuple, Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.settings import Settings, changed
from infercast.engines.speculation import Drafting
from infercast.errors import DoesNotFitError, InputError, require
from infercast.forecast import deploy
from infercast.forecast.cost import GpuPrice, Tariff
from infercast.forecast.energy import Energy, Facility, FacilityEnergy
from infercast.forecast.parallel import on_all_cores
from infercast.forecast.progress import note_cut, share_of_time, stage_progress, time_budget, time_left
from infercast.forecast.result import Forecast, counted, headroom, holds, per_hour_of
from infercast.forecast.simulate import SystemRun, forecast_of, most_requests_per_second, serve_system, simulate_system
from infercast.forecast.slo import Limit, Slo, attainment, parse_slo
from infercast.forecast.system import System, system_of
from infercast.hardware.gpu import MEGA
from infercast.serve import Workload
from infercast.serve.workload.synthetic import redrawn_with, scaled
from infercast.shown import PlottableResult, ReprMixin, ResultMixin
from infercast.units import format_many

RATE, CONCURRENCY = "rate", "concurrency"
MOST_VALUES = 200  # A longer list is a mistake more often than a question
USUAL_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LIGHT, LIGHT_REQUESTS, SEED = 0.1, 300, 5  # The share of the capacity that is a light load, its requests and seed
LOADS = ("Poisson", "gamma", "constant", "closed")  # Words that the speed of arrivals begins with in descriptions

Tell = Callable[[str], None]
Varied = tuple[str, Iterable[Any]] | Mapping[str, Iterable[Any]]
Decide = Callable[[Forecast], Forecast]
POWER, CLOCK = "power_limit_w", "gpu_clock_mhz"  # What can be set, by the names of `deploy`
LEAST, VALUES = 0.4, 7  # The default values: the least share of the GPU's own limit, and their number
HALVINGS = 2  # How often the gaps next to the best value are halved
LEAST_ODDS = 0.8
STEP = 5.0  # Watts or MHz: finer differences than this are not looked at


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    values: tuple[Any, ...]
    across: Axis | None = None  # A second setting: each of its values goes with each of these

    @property
    def is_load(self) -> bool:
        return self.name in (RATE, CONCURRENCY)

    @property
    def own_labels(self) -> tuple[str, ...]:
        return tuple(f"{value:g}" if isinstance(value, (int, float)) else str(value) for value in self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of every point: its value, or the values of both settings."""
        return self.own_labels if self.across is None else self.changes

    def number(self, place: int) -> float | None:
        try:
            number = math.nan if self.across else float(self.values[place])
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    @property
    def changes(self) -> tuple[str, ...]:
        """Values of settings in the words of ``--what-if``."""
        own = tuple(f"{self.name}={value}" for value in self.values)
        return own if self.across is None else tuple(f"{one},{each}" for one in own for each in self.across.changes)


def axis_of(
    rates: Iterable[float] | None = None, concurrencies: Iterable[int] | None = None, vary: Varied | None = None,
) -> Axis:  # fmt: skip
    """The axis that is given, or two settings as one with the other across; rates and clients in ascending order."""
    settings = [] if vary is None else [*vary.items()] if isinstance(vary, Mapping) else [vary]
    given = [(name, values) for name, values in ((RATE, rates), (CONCURRENCY, concurrencies)) if values is not None]
    if len(given) + bool(settings) != 1 or len(settings) > 2:
        raise InputError("a sweep goes along one axis: rates, concurrencies or the values of one setting, or of two")
    first, *others = [_axis(*each) for each in (*given, *settings)]
    for second in others:
        first = replace(first, across=second)
        if first.name == second.name or len(first.changes) > MOST_VALUES:
            raise InputError(f"{first.name} and {second.name} must be two settings of {MOST_VALUES} pairs at most")
    return first


def _axis(name: str, given: Iterable[Any]) -> Axis:
    values = values_of(given, name) if isinstance(given, str) else tuple(given)
    if not 1 <= len(set(values)) == len(values) <= MOST_VALUES:
        raise InputError(f"{name} must be 1 to {MOST_VALUES} different values, not {', '.join(map(str, values[:9]))!r}")
    if name in (RATE, CONCURRENCY):
        for value in values:
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InputError(f"{name} must be a positive number, not {value!r}")
        values = tuple(sorted(values))
    return Axis(name, values)


def parse_numbers(text: str, option: str, *, whole: bool = False) -> tuple[float, ...]:
    """``1:40:8`` is eight values from 1 to 40 at even steps, ``1,2,4`` those three; rounded to three digits."""
    wrong = InputError(f"{option} must be FROM:TO:COUNT or numbers with commas between them, not {text!r}")
    try:
        if ":" in text:
            begin, end, count = text.split(":")
            low, high, number = float(begin), float(end), int(count)
            if not (0 < low < high < math.inf and 2 <= number <= MOST_VALUES):
                raise wrong
            values = [float(f"{value:.3g}") for value in np.linspace(low, high, number).tolist()]
        else:
            values = [float(part) for part in text.split(",")]
    except ValueError:
        raise wrong from None
    if whole:
        return tuple(dict.fromkeys(float(round(value)) for value in values if round(value) > 0))
    return tuple(values)


def values_of(text: str, option: str) -> tuple[str, ...]:
    """Values of a setting as they are written; ``1x:2x:5`` and ``4T:8T:5`` are evenly spaced ones."""
    unit = "".join({part[-1:] for part in text.split(":")[:2] if not part[-1:].isdigit()})
    if text.count(":") != 2 or len(unit) > 1:
        return tuple(value.strip() for value in text.split(","))
    begin, end, count = text.split(":")
    plain = ":".join((begin.removesuffix(unit), end.removesuffix(unit), count))
    return tuple(f"{number:g}{unit}" for number in parse_numbers(plain, option))


def at_load(workload: Workload, axis: str, value: float) -> Workload:
    """The same requests at another rate, or sent by another number of clients; those of a trace keep their order."""
    if axis == CONCURRENCY:
        clients = round(value)
        drawn = redrawn_with(workload, rate=None, concurrency=clients, arrival="poisson", burstiness=1.0)
        if drawn is not None:
            return drawn
        requests = tuple(replace(request, arrival=0.0) for request in workload.requests)
        words = f"{workload.description}; sent by {clients:,} clients".removeprefix("; ")
        return replace(workload, requests=requests, concurrency=clients, rate=None, description=words, drawn=None)
    if workload.drawn is not None:
        arrival = "poisson" if workload.drawn.rate is None else workload.drawn.arrival
        drawn = redrawn_with(workload, rate=value, concurrency=None, arrival=arrival)
        if drawn is not None:
            return drawn
    if workload.concurrency is not None:
        raise InputError("rates have no meaning for clients that wait for their answers; sweep concurrencies")
    return scaled(workload, rate=value)


@dataclass(frozen=True, slots=True, repr=False)
class Point(ReprMixin):
    """The simulation of one value, or why there is none."""

    label: str
    number: float | None  # The value, where it is a number
    forecast: Forecast | None = None
    problem: str = ""  # Why it cannot be done
    attainment: float | None = None  # Share of the requests within every limit of the SLO
    goodput: float | None = None  # Requests a second within every limit
    holds: bool | None = None  # Whether the percentiles of the SLO hold
    headroom: float | None = None  # The smallest limit over its forecast: above 1 all hold
    per_hour: float | None = None  # Dollars that the GPUs cost an hour; None where no price is known
    odds: float | None = None  # The probability that the SLO holds; None where it was not asked for

    def _words(self) -> str:
        return f"{self.label}: {self.problem or self.forecast!r}"

    @property
    def per_million_output_tokens(self) -> float | None:
        """Dollars for a million output tokens at this load."""
        if self.per_hour is None or self.forecast is None or not self.forecast.state.is_steady:
            return None
        return self.per_hour / 3600.0 / self.forecast.output_tokens_per_second * 1e6

    @property
    def is_overloaded(self) -> bool:
        """Whether latencies depend on the length of the run."""
        return self.forecast is not None and self.forecast.saturation is not None


def point_of(label: str, number: float | None, forecast: Forecast, slo: Slo | None) -> Point:
    """A simulated point, measured by an SLO."""
    promised: dict[str, Any] = {}
    if slo is not None:
        share = attainment(forecast.clients, slo, counted(forecast))
        promised = {
            "attainment": share, "goodput": share * forecast.requests_per_second,
            "holds": holds(forecast, slo) and forecast.saturation is None, "headroom": headroom(forecast, slo),
        }  # fmt: skip
    return Point(label, number, forecast, per_hour=per_hour_of(forecast), **promised)


@dataclass(frozen=True, slots=True)
class Edge:
    """How far along an axis something holds."""

    value: float | None  # The largest value at which it does; None where it does at none of them
    reached: bool  # Whether it fails further on; if not, it holds at the last value, too
    fails_at: float | None = None  # Where it is known to fail, if the time limit ended the search between the two


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(PlottableResult):
    """All points, and where the curve bends."""

    title: str
    workload: str  # In words
    axis: Axis
    points: tuple[Point, ...]
    slo: Slo | None = None
    price: GpuPrice | None = None
    light_ttft: float | None = None  # Median time to first token, in seconds, at a tenth of the saturating rate
    knee: Edge | None = None  # Up to where the median TTFT stays below twice that
    promise: Edge | None = None  # Up to where the SLO holds
    capacity: float | None = None  # Requests per second at which the deployment is saturated

    def _words(self) -> str:
        ends = f"{self.points[0].label} to {self.points[-1].label}" if self.points else "no value"
        knee = "" if self.knee is None or self.knee.value is None else f", knee {self.knee.value:g}"
        return f"{self.title} along {self.axis.name}, {len(self.points)} points from {ends}{knee}"

    @property
    def simulated(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.forecast is not None)


def sweep(
    deployment: deploy.Deployable, gpu: deploy.GpuSource | None = None, workload: deploy.Servable = None, *,
    rates: Iterable[float] | None = None, concurrencies: Iterable[int] | None = None, vary: Varied | None = None,
    slo: Slo | str | None = None, price: Tariff | float | None = None, facility: Facility | None = None,
    router: str | None = None, tell: Tell | bool | None = None, time_limit: float | None = None,
    **options: Unpack[deploy.RunOptions],
) -> Sweep:  # fmt: skip
    """Simulate a workload at several rates, numbers of clients, or values of a setting; names do as in `simulate`.

    ``vary`` names a what-if change, with its values: ``("max_num_seqs", [128, 1024])``, or two, all pairs of which are
    simulated: ``{"dram_bandwidth": "1x:2x:5", "sms": "1x,2x"}``. ``price`` is in dollars per GPU and hour, or a
    `Tariff`; the default is the median of the bundled lists. ``facility`` describes servers and
    building. ``options`` are those of `deploy`, and of `synthetic_workload` without a workload. ``tell`` is called with
    each point as it begins; True shows it. Runs that are not precise when their part of ``time_limit`` seconds is over
    end there.
    """
    axis, promised = axis_of(rates, concurrencies, vary), parse_slo(slo) if isinstance(slo, str) else slo
    load, others = deploy.load_options(options), deploy.deploy_options(options)
    if axis.is_load and workload is None:
        load[axis.name] = axis.values[0]
    decide = partial(replace, tariff=Tariff.of(price), facility=facility or Facility())
    with stage_progress(tell) as say, time_budget(time_limit):
        if axis.is_load:
            found = deploy.resolve_deployment(deployment, gpu, others)
            requests = deploy.resolve_workload(workload, load, found.settings.max_model_len, found.model)
            return _along_load(system_of(found, router), axis, requests, promised, decide, say)
        asked = deploy.resolve_call(deployment, gpu, others)
        model = deploy.load_model(asked.args[0])
        requests = deploy.resolve_workload(workload, load, model.max_positions, model)
        return _along_setting(asked, axis, requests, promised, decide, router, say)


def find_intervals(swept: Sweep) -> bool:
    """Those of rows that have some, on all cores, for tables about to show them; False if time is over before."""
    steady = [each.forecast for each in swept.points if each.forecast is not None and each.forecast.state.is_steady]
    rows = [each for each in steady if not each.has_kept("intervals")]
    found = on_all_cores(attrgetter("intervals"), rows)
    for row in rows:
        if time_left() <= 0.0:
            note_cut("intervals")
            return False
        row.keep("intervals", partial(next, found))
    return True


def sweep_rates(
    system: System, workload: Workload, rates: Iterable[float], *, slo: Slo | None = None, price: Tariff | None = None,
    facility: Facility | None = None, tell: Tell | None = None,
) -> Sweep:  # fmt: skip
    """The same of a system that is made already, at several rates."""
    decide = partial(replace, tariff=price or Tariff(), facility=facility or Facility())
    return _along_load(system, axis_of(rates), workload, slo, decide, tell or (lambda _: None))


def _along_load(system: System, axis: Axis, workload: Workload, slo: Slo | None, decide: Decide, tell: Tell) -> Sweep:
    # What a system serves when it is kept full depends on what is sent, not on how fast: once is enough.
    capacity = cache(lambda: most_requests_per_second(system, workload))

    def serve(value: float) -> SystemRun:
        return serve_system(system, at_load(workload, axis.name, value), capacity=capacity, slo=slo)

    if len(axis.values) > 1:
        capacity()  # before processes are forked that would each compute it
    edges = 3  # Parts of the time for the light load and both edges, as each point has one
    points: list[Point] = []
    tell(f"{axis.name} {axis.labels[0]}")
    for place, served in enumerate(on_all_cores(serve, axis.values, later=edges)):
        value, label = axis.values[place], axis.labels[place]
        points.append(point_of(label, value, decide(forecast_of(system, served)), slo))
        tell(f"{axis.name} {axis.labels[min(place + 1, len(axis.labels) - 1)]}")
    known = [point.forecast.state.capacity for point in points if point.forecast and point.forecast.state.capacity]
    most = known[0] if known else capacity()
    light, whole = _light_ttft(system, workload, most), axis.name == CONCURRENCY
    times_light = 2.0  # The knee is where the median TTFT is this multiple of that of a light load

    def edge(limits: Slo) -> Edge:
        """Between points only the limits matter, so a run ends when it is clear on which side of them it lies."""

        @cache
        def keeps(value: float) -> bool:
            load = at_load(workload, axis.name, value)
            with share_of_time(0.5):
                run = simulate_system(system, load, capacity=capacity, slo=limits, medians=lambda: False)
            return holds(run, limits)

        return _edge(points, limits, keeps, whole)

    knee = edge(Slo((Limit("ttft", 50.0, times_light * light),)))
    promise = None if slo is None else edge(slo)
    parts = workload.description.split(", ")  # the rate varies, so it is left out
    return Sweep(
        title=_title(points),
        workload=_served(
            ", ".join(part for part in parts if workload.drawn is None or part.split(" ")[0] not in LOADS), points
        ),
        axis=axis, points=tuple(points), slo=slo, price=_price(points[0]), light_ttft=light, knee=knee, promise=promise,
        capacity=most,
    )  # fmt: skip


def _along_setting(
    asked: partial[Deployment], axis: Axis, workload: Workload, slo: Slo | None, decide: Decide, router: str | None,
    tell: Tell,
) -> Sweep:  # fmt: skip
    """The same workload on one deployment after the other; what does not fit says so."""
    found = changed_points(asked, axis.changes, workload, slo, decide, router, tell)
    labels = enumerate(zip(axis.labels, found, strict=True))
    points = [replace(point, label=label, number=axis.number(place)) for place, (label, point) in labels]
    # Where the GPU itself changes there is not one price.
    prices = {_price(point) for point in points if not point.problem}
    common = prices.pop() if len(prices) == 1 else None
    title = re.sub(r"\+\S*=\S*", "", _title(points))  # of the GPU without the changes of the first point
    return Sweep(title, _served(workload.description, points), axis, tuple(points), slo, common)


def changed_points(
    asked: partial[Deployment], changes: Sequence[str], workload: Workload, slo: Slo | None, decide: Decide,
    router: str | None, tell: Tell,
) -> list[Point]:  # fmt: skip
    """The same workload on a deployment after each of these changes, in the words of ``--what-if``."""
    systems: list[System | str] = []
    for text in changes:
        change = deploy.parse_changes(text)
        try:
            deployment = deploy.deploy_changed(asked, change)
        except DoesNotFitError as problem:
            systems.append(str(problem))
            continue
        systems.append(system_of(deployment, (change.router or router) if deployment.layout.data > 1 else None))
    serve = partial(serve_system, workload=workload, slo=slo)
    done = on_all_cores(serve, [each for each in systems if isinstance(each, System)])
    points: list[Point] = []
    for text, system in zip(changes, systems, strict=True):
        if isinstance(system, str):
            points.append(Point(text, None, problem=system))
            continue
        tell(text)
        points.append(point_of(text, None, decide(forecast_of(system, next(done))), slo))
    return points


def _served(words: str, points: Sequence[Point]) -> str:
    """The load in words, with the requests that rows have: a run goes on until its numbers have settled."""
    counts = {len(point.forecast.workload.requests) for point in points if point.forecast is not None}
    if len(counts) < 2:
        return words
    return re.sub(r"^[\d,]+ requests", f"{min(counts):,} to {max(counts):,} requests a row", words)


def _price(point: Point) -> GpuPrice | None:
    run = point.forecast
    return None if run is None or run.deployment.gpu.stages else run.tariff.price(run.deployment.gpu.name, run.facility)


def _light_ttft(system: System, workload: Workload, capacity: float) -> float:
    """The median time to first token of the same requests at a tenth of the saturating rate."""
    requests, rate = workload.requests[:LIGHT_REQUESTS], LIGHT * capacity
    arrivals = np.cumsum(np.random.default_rng(SEED).exponential(1.0 / rate, len(requests))).tolist()
    light = tuple(replace(request, arrival=at) for request, at in zip(requests, arrivals, strict=True))
    return simulate_system(system, Workload(light, rate=rate)).ttft.p50


def _edge(points: Sequence[Point], slo: Slo, keeps: Callable[[float], bool], whole: bool) -> Edge:
    """The largest value up to which an SLO holds, without a gap, within 3 %; between two points by halving."""
    good: float | None = None
    edge = 1.03  # Factor between a load at which something still holds and one at which it does not
    for point in points:
        assert point.forecast is not None
        assert point.number is not None
        if holds(point.forecast, slo):
            good = point.number
            continue
        bad = point.number
        while good is not None and bad > edge * good:
            if time_left() <= 0.0:
                note_cut("an edge")
                return Edge(good, reached=True, fails_at=bad)
            middle = round((good * bad) ** 0.5) if whole else float(f"{(good * bad) ** 0.5:.3g}")
            if middle in (good, bad):
                break
            good, bad = (middle, bad) if keeps(middle) else (good, middle)
        return Edge(good, reached=True)
    return Edge(good, reached=False)


def _title(points: Sequence[Point]) -> str:
    return next((point.forecast.title for point in points if point.forecast is not None), "nothing fits")


@dataclass(frozen=True, slots=True, repr=False)
class Savings(ResultMixin):
    title: str
    workload: str
    name: str  # `POWER` or `CLOCK`
    points: tuple[Point, ...]
    free: Point  # The GPU without a limit
    best: Point | None  # The least energy at the wall of those that keep the SLO; None where none does
    slo: Slo | None = None
    least_odds: float = 0.0  # The required probability that the SLO holds, from 0 to 1

    def _words(self) -> str:
        best = "none" if self.best is None else self.best.label
        return f"{self.title} along {self.name}, best {best}"

    @property
    def odds(self) -> float | None:
        """The probability that the best value keeps the SLO; None without one."""
        return None if self.best is None else self.best.odds

    @property
    def saved(self) -> float:
        """Share of the energy at the wall that the best value saves; 0 where nothing does."""
        return 0.0 if self.best is None else 1.0 - joules_of(self.best) / joules_of(self.free)


def save_energy(
    model: deploy.ModelSource, gpu: deploy.GpuSource, workload: Workload, *,
    power_limits: Iterable[float] | None = None, clocks: Iterable[float] | None = None, slo: Slo | str | None = None,
    least_odds: float | None = None, price: Tariff | float | None = None, facility: Facility | None = None,
    settings: Settings | None = None, router: str | None = None, tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Savings:  # fmt: skip
    """Simulate a workload under several power limits in watts, or clocks in MHz, and find the one that saves most.
    Without either, power limits from two fifths of the GPU's own limit on are tried. The SLO must hold with a
    probability of ``least_odds``, 80 % if none is given; 0: by the forecast's own numbers. ``options`` are those of
    `deploy`. Energy is counted at the wall, with servers and building.
    """
    if least_odds is None:
        least_odds = 0.0 if slo is None else LEAST_ODDS
    require(0.0 <= least_odds < 1.0, "least_odds", "be a probability from 0 to below 1", least_odds)
    if least_odds and slo is None:
        raise InputError("least_odds needs an slo to hold")
    if power_limits is not None and clocks is not None:
        raise InputError("power limits or clocks are varied, not both; give one of them")
    promise = parse_slo(slo) if isinstance(slo, str) else slo
    name = POWER if clocks is None else CLOCK
    device = deploy.load_device(gpu, None)
    own = device.tdp if name == POWER else device.top_clock / MEGA
    asked = power_limits if clocks is None else clocks
    usual = [STEP * round(value / STEP) for value in np.linspace(LEAST * own, own, VALUES).tolist()[:-1]]
    values = sorted({own, *(usual if asked is None else map(float, asked))})
    seen = partial(sweep, slo=promise, price=price, facility=facility, tell=tell)
    run = partial(seen, model, gpu, workload, settings=settings, router=router, **options)
    points: dict[float, Point] = {}

    def simulate(numbers: Iterable[float]) -> str:
        found = run(vary=(name, [f"{number:g}" for number in numbers]))
        for point in found.points:
            if point.problem:  # No limit frees any memory
                raise DoesNotFitError(point.problem)
            known = point.forecast if promise is None or point.forecast is None else point.forecast.promised(promise)
            odds = known.verdict.odds if known and known.verdict else None
            points[float(point.number or 0.0)] = replace(point, forecast=known, odds=odds)
        return found.title

    title = simulate(values)
    for _ in range(HALVINGS):
        between = _beside(points, _best(points, least_odds))
        if not between:
            break
        simulate(between)
    best = _best(points, least_odds)
    if best is None and least_odds and points[own].holds:
        best = points[own]  # by the forecast it holds, though not as sure as was asked
    return Savings(
        title=title.partition(", held")[0], workload=workload.description, name=name,
        points=tuple(points[number] for number in sorted(points)), free=points[own], best=best, slo=promise,
        least_odds=least_odds,
    )  # fmt: skip


def joules_of(point: Point) -> float:
    return drawn(point)[1].joules_per_output_token


def drawn(point: Point) -> tuple[Energy, FacilityEnergy]:
    assert point.forecast is not None
    energy, wall = point.forecast.energy, point.forecast.wall
    if energy is None or wall is None:
        raise InputError(f"the power of {point.forecast.deployment.gpu.name} is not known")
    return energy, wall


def _best(points: dict[float, Point], least_odds: float) -> Point | None:
    """The least energy of those that keep up and keep the SLO; of equals the one that is held back least."""
    kept = [point for point in points.values() if point.holds is not False and (point.odds or 0.0) >= least_odds]
    able = [point for point in kept if point.forecast is not None and point.forecast.state.is_steady]
    return min(able, key=lambda point: (round(joules_of(point), 6), -(point.number or 0.0)), default=None)


def _beside(points: dict[float, Point], best: Point | None) -> list[float]:
    if best is None or best.number is None:
        return []
    values = sorted(points)
    place = values.index(best.number)
    near = values[max(0, place - 1) : place] + values[place + 1 : place + 2]
    found = [STEP * round((best.number + other) / 2 / STEP) for other in near]
    return [value for value in dict.fromkeys(found) if value not in points]


class LoadPoint(NamedTuple):
    """One number of clients, each of which sends its next request when it has its answer."""

    clients: int
    plain: Forecast
    drafted: Forecast

    @property
    def speed_up(self) -> float:
        """How many times as many tokens a second there are with drafts."""
        return self.drafted.output_tokens_per_second / self.plain.output_tokens_per_second

    @property
    def tpot_ratio(self) -> float | None:
        """How many times as long a token takes without drafts."""
        if self.plain.tpot is None or self.drafted.tpot is None:
            return None
        return self.plain.tpot.p50 / self.drafted.tpot.p50


class BreakEven(NamedTuple):
    """Loads with and without speculative decoding, and where it stops paying."""

    drafting: Drafting
    title: str
    workload: str
    points: tuple[LoadPoint, ...]

    @property
    def clients(self) -> float | None:
        """Where both serve as much; None where one of the two is better at every load that was tried."""
        for before, after in reversed([*pairwise(self.points)]):
            if before.speed_up > 1.0 >= after.speed_up:
                share = log(before.speed_up) / (log(before.speed_up) - log(after.speed_up))
                return exp(log(before.clients) + share * (log(after.clients) - log(before.clients)))
        return None

    @property
    def sentence(self) -> str:
        drafting, first, last = self.drafting, self.points[0], self.points[-1]
        what = (
            f"{drafting.title[:1].upper()}{drafting.title[1:]} with {format_many(drafting.num_drafts, 'draft')} "
            f"a step and {drafting.acceptance.length:.2f} tokens accepted"
        )
        best = max(self.points, key=lambda point: point.speed_up)
        most = f"at most {best.speed_up:.2f} times as many tokens/s, with {format_many(best.clients, 'client')}"
        if self.clients is not None:
            rates = [point.plain.output_tokens_per_second for point in self.points]
            rate = np.interp(log(self.clients), [log(point.clients) for point in self.points], rates)
            return (
                f"{what} pays up to about {self.clients:,.0f} clients at the same time, near {rate:,.0f} output "
                f"tokens/s: {most}, and {last.speed_up:.2f} times with {last.clients:,}."
            )
        if last.speed_up > 1.0:
            clients = format_many(last.clients, "client")
            return f"{what} pays at every load up to {clients}: {most}, {last.speed_up:.2f} times there."
        if first.speed_up <= 1.0 and best.speed_up <= 1.0:
            return f"{what} does not pay at any load: {most}."
        clients = format_many(last.clients, "client")
        return f"{what} pays at some loads only: {most}, and {last.speed_up:.2f} times with {clients}."


def break_even(
    asked: partial[Deployment], workload: Callable[[int], Workload], clients: Sequence[int] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> BreakEven:  # fmt: skip
    """Simulate loads on a deployment that drafts and on the same one that does not; ``asked`` is a call of `deploy`."""
    drafted = asked()
    if drafted.drafting is None:
        raise InputError("nothing drafts here; say how with --speculative-config or --speculative-algorithm")
    model, gpu, settings = asked.args
    flags = [each.name for each in fields(settings) if each.name.startswith(("speculative_", "acceptance"))]
    plain = partial(asked.func, model, gpu, changed(settings, **dict.fromkeys(flags)), **asked.keywords)()
    if clients is None:
        clients = [each for each in USUAL_CLIENTS if each <= drafted.settings.max_num_seqs]
    loads = [workload(number) for number in clients]
    systems, points = (system_of(plain), system_of(drafted)), []
    both = on_all_cores(partial(_serve_both, systems), loads)
    for number, (without, drafting, is_steady) in zip(clients, both, strict=True):
        tell(format_many(number, "client"))
        before, after = forecast_of(systems[0], without, steady=is_steady), forecast_of(systems[1], drafting)
        points.append(LoadPoint(number, before, after))
    first = points[0].drafted
    words = first.workload.description
    return BreakEven(drafted.drafting, first.title, words.partition(" clients, ")[2] or words, tuple(points))


def _serve_both(systems: tuple[System, System], load: Workload) -> tuple[SystemRun, SystemRun, bool]:
    """Both with the same requests, as many as the longer takes; and whether a steady part of the first counts alone."""
    plain, drafted = systems
    with share_of_time(0.4):
        without = serve_system(plain, load)
    with share_of_time(0.6):
        drafting = serve_system(drafted, without.workload)
    if len(drafting.workload.requests) <= len(without.workload.requests):
        return without, drafting, False
    is_steady = drafting.part() is not None
    longer = replace(drafting.workload, open_ended=False)
    return serve_system(plain, longer, steady=is_steady), drafting, is_steady
