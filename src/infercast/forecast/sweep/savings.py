"""Which power limit, or which clock, saves most energy while users still see what they were promised.

Lower limits cost less energy for each operation, as voltage falls with the clock, but kernels take longer, and what is
drawn whatever the GPU does (static power, the server) is drawn for longer. So there is a best one; it is looked for
among the values that are asked for and then, by halving, beside the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from infercast.engines.settings import Settings
from infercast.errors import InputError
from infercast.forecast.deploy import GpuSource, ModelSource, load_device
from infercast.forecast.energy import Energy
from infercast.forecast.money import Tariff
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.sweep.points import Point
from infercast.forecast.sweep.sweep import sweep
from infercast.forecast.verdict import judge
from infercast.forecast.wall import Facility, Wall
from infercast.hardware import Gpu
from infercast.hardware.limited import MEGA
from infercast.serve import Workload
from infercast.shown import Answer

POWER, CLOCK = "power_limit_w", "gpu_clock_mhz"
"""What can be set, by the names of `deploy`."""
LEAST, VALUES = 0.4, 7
"""The usual values: so many, from such a share of the GPU's own limit."""
HALVINGS = 2
"""How often the gaps beside the best value are halved."""
LEAST_ODDS = 0.8
"""How sure an SLO must be to hold, where nobody says."""
STEP = 5.0
"""Watts or MHz: finer differences than this are not looked at."""


@dataclass(frozen=True, slots=True, repr=False)
class Savings(Answer):
    """Every value that was tried, in ascending order, and the best of them."""

    title: str
    workload: str
    name: str
    """`POWER` or `CLOCK`."""
    points: tuple[Point, ...]
    free: Point
    """The GPU as it is, without a limit of its own."""
    best: Point | None
    """The least energy at the wall of those that keep the SLO; None where none does."""
    slo: Slo | None = None
    odds: float | None = None
    """The probability that the best value keeps the SLO; None without one ..."""
    least_odds: float = 0.0
    """The least probability that was asked for, from 0 to 1."""

    def _words(self) -> str:
        best = "none" if self.best is None else self.best.label
        return f"{self.title} along {self.name}, best {best}"

    @property
    def saved(self) -> float:
        """Share of the energy at the wall that the best value saves; 0 where nothing does."""
        return 0.0 if self.best is None else 1.0 - joules_of(self.best) / joules_of(self.free)


def save_energy(
    model: ModelSource,
    gpu: GpuSource,
    workload: Workload,
    *,
    power_limits: Iterable[float] | None = None,
    clocks: Iterable[float] | None = None,
    slo: Slo | str | None = None,
    least_odds: float | None = None,
    price: Tariff | float | None = None,
    facility: Facility | None = None,
    settings: Settings | None = None,
    router: str | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Savings:
    """Simulate a workload under several power limits in watts, or clocks in MHz, and find the one that saves most.

    Without either, power limits from two fifths of the GPU's own limit on are tried. The SLO must hold with a
    probability of ``least_odds``, 80 % if none is given; 0: by the forecast's own numbers. ``options`` are those of
    `deploy`. Energy is counted at the wall, with servers and building.
    """
    if least_odds is None:
        least_odds = 0.0 if slo is None else LEAST_ODDS
    if not 0.0 <= least_odds < 1.0:
        raise InputError(f"least_odds must be a probability from 0 to below 1, not {least_odds:g}")
    if least_odds and slo is None:
        raise InputError("least_odds needs an slo to hold")
    if power_limits is not None and clocks is not None:
        raise InputError("power limits or clocks are varied, not both; give one of them")
    promise = parse_slo(slo) if isinstance(slo, str) else slo
    name = POWER if clocks is None else CLOCK
    own = _own(load_device(gpu, None), name)
    asked = power_limits if clocks is None else clocks
    values = sorted({own, *(_usual(own) if asked is None else map(float, asked))})
    seen = partial(sweep, slo=promise, price=price, facility=facility, tell=tell)
    run = partial(seen, model, gpu, workload, settings=settings, router=router, **options)
    points: dict[float, Point] = {}

    def simulate(numbers: Iterable[float]) -> str:
        found = run(vary=(name, [f"{number:g}" for number in numbers]))
        points.update({float(point.number or 0.0): point for point in found.points})
        return found.title

    title = simulate(values)
    judged = _Judged(promise, least_odds)
    for _ in range(HALVINGS):
        between = _beside(points, judged.best(points))
        if not between:
            break
        simulate(between)
    best = judged.best(points)
    if best is None and least_odds and points[own].holds:
        best = points[own]  # by the forecast it holds, though not as sure as was asked
    return Savings(
        title=title.partition(", held")[0],
        workload=workload.description,
        name=name,
        points=tuple(points[number] for number in sorted(points)),
        free=points[own],
        best=best,
        slo=promise,
        odds=None if best is None else judged.odds(best),
        least_odds=least_odds,
    )


def joules_of(point: Point) -> float:
    """Joules at the wall of an output token."""
    return drawn(point)[1].joules_per_output_token


def drawn(point: Point) -> tuple[Energy, Wall]:
    """What a point draws, of the GPU boards and at the wall."""
    assert point.forecast is not None
    energy, wall = point.forecast.energy, point.forecast.wall
    if energy is None or wall is None:
        raise InputError(f"the power of {point.forecast.deployment.gpu.name} is not known")
    return energy, wall


def _own(gpu: Gpu, name: str) -> float:
    """What a GPU does without a limit."""
    return gpu.tdp if name == POWER else gpu.top_clock / MEGA


def _usual(own: float) -> list[float]:
    return [STEP * round(value / STEP) for value in np.linspace(LEAST * own, own, VALUES).tolist()[:-1]]


class _Judged:
    """Which point is best by an SLO, whose odds take a few short simulations for each point that is asked for."""

    def __init__(self, slo: Slo | None, least_odds: float) -> None:
        self._slo, self._least, self._known = slo, least_odds, dict[float | None, float | None]()

    def best(self, points: dict[float, Point]) -> Point | None:
        """The least energy of those that keep up and keep the SLO; of equals the one that is held back least."""
        kept = [point for point in points.values() if point.holds is not False]
        able = [point for point in kept if point.forecast is not None and point.forecast.state.is_steady]
        able.sort(key=lambda point: (round(joules_of(point), 6), -(point.number or 0.0)))
        sure = (point for point in able if not self._least or (self.odds(point) or 0.0) >= self._least)
        return next(sure, None)

    def odds(self, point: Point) -> float | None:
        """The probability that the SLO holds; None without one."""
        if self._slo is None or point.forecast is None:
            return None
        if point.number not in self._known:
            self._known[point.number] = judge(point.forecast, self._slo).odds
        return self._known[point.number]


def _beside(points: dict[float, Point], best: Point | None) -> list[float]:
    """Values in the middle between the best and those beside it, as far as they are not tried yet."""
    if best is None or best.number is None:
        return []
    values = sorted(points)
    place = values.index(best.number)
    near = values[max(0, place - 1) : place] + values[place + 1 : place + 2]
    found = [STEP * round((best.number + other) / 2 / STEP) for other in near]
    return [value for value in dict.fromkeys(found) if value not in points]
