"""TTFT, TPOT, throughput, goodput and cost along an axis, the knee of the curve, and where it saturates.

Each point is what `infercast simulate` says of it. Along rates and numbers of clients the deployment and its step timer
are made once. The *knee* is the largest load at which the median time to first token is at most twice that of a light
load, a tenth of the saturating rate; the *promise* is kept up to the largest load at which the percentiles of the SLO
hold; both are looked for between the two points beside them by halving. *Saturation* is the rate of a deployment that
is kept full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.settings import Settings
from infercast.errors import DoesNotFitError
from infercast.forecast.asking import Load, Servable, asked_workload
from infercast.forecast.deploy import GpuSource, ModelSource, deploy, load_model
from infercast.forecast.money import GpuPrice, Tariff
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import Limit, Slo, holds, parse_slo
from infercast.forecast.sweep.axis import CONCURRENCY, Axis, at_load, axis_of
from infercast.forecast.sweep.points import Edge, Point, Sweep, point_of
from infercast.forecast.system import System, system_of
from infercast.forecast.telling import told_stages
from infercast.forecast.wall import Facility
from infercast.forecast.what_if import deploy_changed, parse_changes
from infercast.serve import Workload

TIMES_LIGHT = 2.0
"""The knee is where the median TTFT is so many times that of a light load."""
LIGHT, LIGHT_REQUESTS, SEED = 0.1, 300, 5
"""Which is such a share of the saturating rate, and how many requests tell it."""
LOADS = ("Poisson", "gamma", "constant", "closed")
"""Words that the speed of arrivals begins with in descriptions."""
HALVINGS = 4
"""Between two points: a knee is known to a sixteenth of their distance."""

Tell = Callable[[str], None]
Decide = Callable[[Forecast], Forecast]
"""A forecast as it is to be seen: by whose prices, and with what around its GPUs."""


def sweep(
    model: ModelSource,
    gpu: GpuSource,
    workload: Servable = None,
    *,
    rates: Iterable[float] | None = None,
    concurrencies: Iterable[int] | None = None,
    vary: tuple[str, Sequence[Any]] | None = None,
    slo: Slo | str | None = None,
    price: Tariff | float | None = None,
    facility: Facility | None = None,
    settings: Settings | None = None,
    router: str | None = None,
    tell: Tell | bool | None = None,
    **options: Any,
) -> Sweep:
    """Simulate a workload at several rates, numbers of clients, or values of a setting.

    ``vary`` names what a what-if can change, with its values: ``("max_num_seqs", [128, 1024])``. ``price`` is in
    dollars per GPU and hour, or says whose prices to take; left out, the middle of the bundled lists. ``facility`` is
    what stands around the GPUs. ``options`` are those of `deploy`, and of `synthetic_workload` where no workload is
    given. ``tell`` is told of each point as it begins; True shows it.
    """
    axis, promised = axis_of(rates, concurrencies, vary), parse_slo(slo) if isinstance(slo, str) else slo
    load = {name: options.pop(name) for name in Load.__annotations__ if name in options}
    if axis.is_load and workload is None:
        load[axis.name] = axis.values[0]
    asked = partial(deploy, model, gpu, settings, **options)
    tariff = price if isinstance(price, Tariff) else Tariff(per_gpu_hour=price)
    decide = partial(replace, tariff=tariff, facility=facility or Facility())
    with told_stages(tell) as say:
        if axis.is_load:
            deployment = asked()
            requests = asked_workload(workload, load, deployment.settings.max_model_len)
            return _along_load(system_of(deployment, router), axis, requests, promised, decide, say or _silent)
        requests = asked_workload(workload, load, load_model(model).max_positions)
        return _along_setting(asked, axis, requests, promised, decide, router, say or _silent)


def sweep_rates(
    system: System,
    workload: Workload,
    rates: Iterable[float],
    *,
    slo: Slo | None = None,
    price: Tariff | None = None,
    facility: Facility | None = None,
    tell: Tell | None = None,
) -> Sweep:
    """The same of a system that is made already, at several rates."""
    decide = partial(replace, tariff=price or Tariff(), facility=facility or Facility())
    return _along_load(system, axis_of(rates), workload, slo, decide, tell or _silent)


def _along_load(system: System, axis: Axis, workload: Workload, slo: Slo | None, decide: Decide, tell: Tell) -> Sweep:
    """One system under more and more load."""
    # What a system serves when it is kept full depends on what is sent, not on how fast: once is enough.
    capacity = cache(lambda: most_requests_per_second(system, workload))

    def run(value: float, only: Slo | None = None) -> Forecast:
        load = at_load(workload, axis.name, value)
        by = {"slo": slo} if only is None else {"slo": only, "medians": False}
        return decide(simulate_system(system, load, capacity=capacity, **by))

    points: list[Point] = []
    for value, label in zip(axis.values, axis.labels, strict=True):
        tell(f"{axis.name} {label}")
        points.append(point_of(label, value, run(value), slo))
    known = [point.forecast.state.capacity for point in points if point.forecast and point.forecast.state.capacity]
    most = known[0] if known else capacity()
    light, whole = _light_ttft(system, workload, most), axis.name == CONCURRENCY
    bend = Slo((Limit("ttft", 50.0, TIMES_LIGHT * light),))
    knee = _edge(points, partial(run, only=bend), partial(_keeps, bend), whole)
    promise = None if slo is None else _edge(points, partial(run, only=slo), partial(_keeps, slo), whole)
    return Sweep(
        title=_title(points),
        workload=_without_load(workload),
        axis=axis,
        points=tuple(points),
        slo=slo,
        price=_price(points[0]),
        light_ttft=light,
        knee=knee,
        promise=promise,
        capacity=most,
    )


def _along_setting(
    asked: partial[Deployment],
    axis: Axis,
    workload: Workload,
    slo: Slo | None,
    decide: Decide,
    router: str | None,
    tell: Tell,
) -> Sweep:
    """The same workload on one deployment after the other; what does not fit says so."""
    points: list[Point] = []
    prices: list[GpuPrice | None] = []
    for place, label in enumerate(axis.labels):
        tell(f"{axis.name} {label}")
        changes = parse_changes(axis.changes(place))
        number = axis.number(place)
        try:
            deployment = deploy_changed(asked, changes)
        except DoesNotFitError as problem:
            points.append(Point(label, number, problem=str(problem)))
            continue
        system = system_of(deployment, (changes.router or router) if deployment.layout.data > 1 else None)
        points.append(point_of(label, number, decide(simulate_system(system, workload, slo=slo)), slo))
        prices.append(_price(points[-1]))
    # Where the GPU itself changes there is not one price.
    common = prices[0] if len(set(prices)) == 1 else None
    return Sweep(_title(points), workload.description, axis, tuple(points), slo, common)


def _price(point: Point) -> GpuPrice | None:
    """What an hour of one GPU costs."""
    run = point.forecast
    return None if run is None else run.tariff.price(run.deployment.gpu.name, run.facility)


def _light_ttft(system: System, workload: Workload, capacity: float) -> float:
    """The median time to first token of the same requests at a tenth of the saturating rate."""
    requests, rate = workload.requests[:LIGHT_REQUESTS], LIGHT * capacity
    arrivals = np.cumsum(np.random.default_rng(SEED).exponential(1.0 / rate, len(requests))).tolist()
    light = tuple(replace(request, arrival=at) for request, at in zip(requests, arrivals, strict=True))
    return simulate_system(system, Workload(light, rate=rate)).ttft.p50


def _keeps(slo: Slo, forecast: Forecast) -> bool:
    return holds(forecast, slo)


def _edge(
    points: Sequence[Point], run: Callable[[float], Forecast], is_good: Callable[[Forecast], bool], whole: bool
) -> Edge:
    """The largest value up to which something holds, without a gap; between two points by halving."""
    good: float | None = None
    for point in points:
        assert point.forecast is not None
        assert point.number is not None
        if not is_good(point.forecast):
            return Edge(None if good is None else _between(good, point.number, run, is_good, whole), reached=True)
        good = point.number
    return Edge(good, reached=False)


def _between(
    good: float, bad: float, run: Callable[[float], Forecast], is_good: Callable[[Forecast], bool], whole: bool
) -> float:
    for _ in range(HALVINGS):
        middle = round((good + bad) / 2) if whole else float(f"{(good + bad) / 2:.3g}")
        if middle in (good, bad):
            break
        if is_good(run(middle)):
            good = middle
        else:
            bad = middle
    return good


def _title(points: Sequence[Point]) -> str:
    return next((point.forecast.title for point in points if point.forecast is not None), "nothing fits")


def _without_load(workload: Workload) -> str:
    """What is sent, less how fast: that is what changes."""
    parts = workload.description.split(", ")
    return ", ".join(part for part in parts if workload.drawn is None or part.split(" ")[0] not in LOADS)


def _silent(_: str) -> None:
    """Nobody listens."""
