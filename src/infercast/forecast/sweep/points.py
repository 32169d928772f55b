"""One point of a sweep, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infercast.forecast.cost import per_hour_of
from infercast.forecast.money import GpuPrice
from infercast.forecast.result import Forecast
from infercast.forecast.slo import Slo, attainment, counted, headroom, holds
from infercast.forecast.sweep.axis import Axis
from infercast.shown import Plotted, Shown


@dataclass(frozen=True, slots=True, repr=False)
class Point(Shown):
    """What a simulation of one value says, or why there is none."""

    label: str
    number: float | None
    """The value, where it is a number."""
    forecast: Forecast | None = None
    problem: str = ""
    """Why it cannot be done."""
    attainment: float | None = None
    """Share of the requests within every limit of the SLO."""
    goodput: float | None = None
    """Requests a second within every limit."""
    holds: bool | None = None
    """Whether the percentiles of the SLO hold."""
    headroom: float | None = None
    """The smallest limit over its forecast: above 1 all hold."""
    per_hour: float | None = None
    """Dollars that the GPUs cost an hour; None where no price is known."""

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
        """Whether latencies tell how long the run was, and nothing else."""
        return self.forecast is not None and self.forecast.saturation is not None


def point_of(label: str, number: float | None, forecast: Forecast, slo: Slo | None) -> Point:
    """A simulation, with the prices and the facility that it is to be seen by, measured by what was promised."""
    promised: dict[str, Any] = {}
    if slo is not None:
        share = attainment(forecast.clients, slo, counted(forecast))
        promised = {
            "attainment": share,
            "goodput": share * forecast.requests_per_second,
            "holds": holds(forecast, slo) and forecast.saturation is None,
            "headroom": headroom(forecast, slo),
        }
    return Point(label, number, forecast, per_hour=per_hour_of(forecast), **promised)


@dataclass(frozen=True, slots=True)
class Edge:
    """How far along an axis something holds."""

    value: float | None
    """The largest value at which it does; None where it does at none of them."""
    reached: bool
    """Whether it fails further on; if not, it holds at the last value, too."""


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Plotted):
    """All points, and where the curve bends."""

    title: str
    workload: str
    """In words."""
    axis: Axis
    points: tuple[Point, ...]
    slo: Slo | None = None
    price: GpuPrice | None = None
    light_ttft: float | None = None
    """Median time to first token, in seconds, at a tenth of the saturating rate; for rates and clients."""
    knee: Edge | None = None
    """Up to where the median TTFT stays below twice that."""
    promise: Edge | None = None
    """Up to where the SLO holds."""
    capacity: float | None = None
    """Requests per second at which the deployment is saturated."""

    def _words(self) -> str:
        ends = f"{self.points[0].label} to {self.points[-1].label}" if self.points else "no value"
        knee = "" if self.knee is None or self.knee.value is None else f", knee {self.knee.value:g}"
        return f"{self.title} along {self.axis.name}, {len(self.points)} points from {ends}{knee}"

    @property
    def simulated(self) -> tuple[Point, ...]:
        """The points that could be simulated."""
        return tuple(point for point in self.points if point.forecast is not None)
