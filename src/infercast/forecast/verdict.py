"""How a forecast does by a promise: each limit with its interval and odds, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from infercast.forecast.slo import (
    Limit,
    Slo,
    attainment,
    counted,
    headroom,
    holds,
    interval_of,
    limit_odds,
    odds,
    parse_slo,
    value_of,
)
from infercast.shown import Answer
from infercast.units import format_odds, format_percent

if TYPE_CHECKING:
    from infercast.forecast.intervals.intervals import Intervals
    from infercast.forecast.result import Forecast


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """One limit, and what the forecast says of it in seconds."""

    limit: Limit
    value: float | None
    """None where no request has such a latency; the limit holds then."""
    interval: tuple[float, float] | None
    odds: float | None
    """None where the run shows no steady latencies."""

    @property
    def headroom(self) -> float | None:
        """Limit / forecast: above 1 it holds."""
        return None if self.value is None else self.limit.seconds / self.value


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Answer):
    """What is to be said of an SLO."""

    slo: Slo
    limits: tuple[JudgedLimit, ...]
    holds: bool
    """In the forecast's own numbers."""
    odds: float | None
    """The probability that all limits hold; None where the run shows no steady latencies."""
    headroom: float | None
    """The smallest limit / forecast, a factor; None where no request has any of the latencies."""
    attainment: float
    """The share of requests that keep every limit themselves."""
    goodput: float
    """Requests per second that do."""

    def _words(self) -> str:
        word = "holds" if self.holds else "fails"
        return f"{self.slo} {word}, odds {format_odds(self.odds)}, attainment {format_percent(self.attainment)}"


def judge(forecast: Forecast, slo: Slo | str, intervals: Intervals | None = None) -> Verdict:
    """Hold a forecast against a promise; 80 % intervals are worked out if they are not given."""
    if isinstance(slo, str):
        slo = parse_slo(slo)
    if intervals is None:
        from infercast.forecast.intervals.intervals import forecast_intervals  # noqa: PLC0415 - it imports results

        intervals = forecast_intervals(forecast)
    share, least = attainment(forecast.clients, slo, counted(forecast)), headroom(forecast, slo)
    return Verdict(
        slo=slo,
        limits=tuple(
            JudgedLimit(
                limit,
                value_of(forecast, limit) or None,
                interval_of(forecast, limit, intervals),
                limit_odds(forecast, limit, intervals),
            )
            for limit in slo.limits
        ),
        holds=holds(forecast, slo),
        odds=odds(forecast, slo, intervals),
        headroom=least if isfinite(least) else None,
        attainment=share,
        goodput=share * forecast.requests_per_second,
    )
