"""How a forecast does by a promise: each limit with its interval and odds, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log, log10
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals import Band, Intervals, forecast_intervals
from infercast.forecast.run import SimulatedRun
from infercast.forecast.slo import FRACTIONS, NAMES, QUANTITIES, Limit, Percentiles, Slo, attainment, parse_slo
from infercast.forecast.uncertainty import EIGHTY, odds_within, slower_by
from infercast.shown import Answer
from infercast.units import format_odds, format_percent

Array = npt.NDArray[Any]


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


def judge(forecast: SimulatedRun, slo: Slo | str, intervals: Intervals | None = None) -> Verdict:
    """Hold a forecast against a promise; 80 % intervals are worked out if they are not given."""
    if isinstance(slo, str):
        slo = parse_slo(slo)
    if intervals is None:
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


def holds(forecast: SimulatedRun, slo: Slo) -> bool:
    """Whether all limits hold in the forecast's own numbers; none does for long where more and more requests wait."""
    return forecast.state.is_steady and headroom(forecast, slo) > 1.0


def headroom(forecast: SimulatedRun, slo: Slo) -> float:
    """The smallest limit / forecast: above 1 all limits hold."""
    return min(limit.seconds / max(value_of(forecast, limit), 1e-12) for limit in slo.limits)


def odds(forecast: SimulatedRun, slo: Slo, intervals: Intervals | None = None) -> float | None:
    """The probability that all limits hold, from the 80 % intervals of the forecast, worked out if not given.

    None where latencies have no steady value, or the run was too short to see it.

    Around each number is a distribution with these ends, whose shape was found on measured runs (docs/odds.md). All
    limits of one run are off together, because one GPU and one host make them all, so the least likely limit decides.
    """
    if not forecast.state.is_steady:
        return None
    if intervals is None:
        intervals = forecast_intervals(forecast)
    return min(limit_odds(forecast, limit, intervals) or 0.0 for limit in slo.limits)


def limit_odds(forecast: SimulatedRun, limit: Limit, intervals: Intervals) -> float | None:
    """The probability that one limit holds; None as for all of them."""
    if not forecast.state.is_steady:
        return None
    value = value_of(forecast, limit)
    ends = interval_of(forecast, limit, intervals)
    if ends is None:
        return 1.0
    slower = slower_by([pool.deployment for pool in forecast.pools], forecast.workload)
    return chance_below(limit.seconds, value, *ends, slower=slower)


def chance_below(limit: float, value: float, low: float, high: float, *, slower: float = 0.0) -> float:
    """The probability of at most ``limit`` where ``value`` is forecast and 80 % lie between ``low`` and ``high``.

    Each side of the middle, which is slower than the value by so much (`odds_within`), has its own width.
    """
    room, longer = log(limit / value), log(high / value)
    middle = longer * slower / (EIGHTY + slower)
    beyond = room - middle
    return float(odds_within(beyond, longer - middle if beyond >= 0 else middle - log(low / value)))


def value_of(forecast: SimulatedRun, limit: Limit) -> float:
    """What the forecast says of what is limited, in seconds; 0 where no request has it."""
    summary: Percentiles | None = getattr(forecast, QUANTITIES[limit.quantity])
    if summary is None:
        return 0.0
    name = limit.name.partition("_")[2]
    if name in NAMES:
        return float(getattr(summary, name))
    return float(np.percentile(_values(forecast, limit.quantity), limit.percentile or 0.0))


def _values(forecast: SimulatedRun, quantity: str) -> Array:
    served = forecast.clients
    inside = counted(forecast)
    values: Array = getattr(served, QUANTITIES[quantity])
    return values[inside[served.num_output > 1] if quantity == "tpot" else inside]


def counted(forecast: SimulatedRun) -> Array:
    """Which requests count: all, or those sent in the steady part."""
    sent, window = forecast.clients.sent_at, forecast.window
    return np.ones(sent.size, dtype=bool) if window is None else (sent >= window[0]) & (sent <= window[1])


def interval_of(forecast: SimulatedRun, limit: Limit, intervals: Intervals) -> tuple[float, float] | None:
    """The ends of the 80 % interval of what is limited; None where no request has it.

    Percentiles between those that have one get a width between theirs, and those beyond get that of the nearest.
    """
    summary: Percentiles | None = getattr(forecast, QUANTITIES[limit.quantity])
    band: Band | None = getattr(intervals, QUANTITIES[limit.quantity])
    if summary is None or band is None:
        return None
    value = value_of(forecast, limit)
    if limit.percentile is None:
        return band.low.mean, band.high.mean
    shares = [np.log(np.array(ends.values[1:]) / summary.values[1:]) for ends in (band.low, band.high)]
    below, above = (_width_at(limit.percentile, each) for each in shares)
    return value * float(np.exp(below)), value * float(np.exp(above))


def _width_at(percentile: float, widths: Array) -> float:
    """Between the percentiles of `FRACTIONS`, by the logarithm of the share of requests above."""
    tails = [-log10(1.0 - fraction) for fraction in FRACTIONS]
    asked = inf if percentile >= 100 else -log10(1.0 - percentile / 100)
    return float(np.interp(asked, tails, widths))
