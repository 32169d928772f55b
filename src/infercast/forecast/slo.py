"""A promise to users (SLO), and whether a forecast keeps it: ``ttft_p99<1s,tpot_p95<40ms,e2e_mean<8s``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, log, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.forecast.intervals.odds import odds_within, slower_by
from infercast.forecast.intervals.uncertainty import EIGHTY
from infercast.forecast.latency import FRACTIONS, NAMES, Percentiles
from infercast.serve import Record
from infercast.serve.fleet.served import Served
from infercast.shown import Shown
from infercast.units import MICRO, MILLI

if TYPE_CHECKING:
    from infercast.forecast.intervals.intervals import Band, Intervals
    from infercast.forecast.result import Forecast

Array = npt.NDArray[Any]

QUANTITIES = {"ttft": "ttft", "tpot": "tpot", "e2e": "end_to_end"}
"""What may be promised, by the fields of `Outcome` that have it."""
UNITS = {"us": MICRO, "ms": MILLI, "s": 1.0, "min": 60.0}
EXAMPLE = "ttft_p99<1s,tpot_p95<40ms,e2e_mean<8s"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a mean or a percentile of one latency must stay below."""

    quantity: str
    """One of `QUANTITIES`."""
    percentile: float | None
    """Above 0 and up to 100; None: the mean."""
    seconds: float

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise InputError(f"an SLO's quantity must be one of {', '.join(QUANTITIES)}, not {self.quantity!r}")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise InputError(f"an SLO's percentile must be above 0 and up to 100, not {self.percentile:g}")
        if not 0 < self.seconds < inf:
            raise InputError(f"an SLO's limit must be a time above 0, not {self.seconds:g} s")

    @property
    def name(self) -> str:
        """``ttft_p99``."""
        return f"{self.quantity}_{'mean' if self.percentile is None else f'p{self.percentile:g}'}"

    def __str__(self) -> str:
        unit = "s" if self.seconds >= 1.0 else "ms" if self.seconds >= MILLI else "us"
        return f"{self.name}<{self.seconds / UNITS[unit]:.12g}{unit}"


@dataclass(frozen=True, slots=True, repr=False)
class Slo(Shown):
    """Limits that must all hold."""

    limits: tuple[Limit, ...]

    def _words(self) -> str:
        return str(self)

    def __post_init__(self) -> None:
        if not self.limits:
            raise InputError(f"an SLO needs at least one limit, such as {EXAMPLE}")

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @property
    def of_a_request(self) -> dict[str, float]:
        """Seconds that each request is asked to stay below, by quantity.

        Of several limits on one latency it is the loosest: ``ttft_p50<200ms`` lets half of all requests take longer.
        """
        found: dict[str, float] = {}
        for limit in self.limits:
            found[limit.quantity] = max(limit.seconds, found.get(limit.quantity, 0.0))
        return found


def parse_slo(text: str) -> Slo:
    """Read ``ttft_p99<1s,tpot_p95<40ms``."""
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise InputError(f"slo {text!r} has no limits; write {EXAMPLE}")
    limits = [_limit(part) for part in parts if part]
    names = [limit.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"slo {text!r} limits {name} twice; say it once")
    return Slo(tuple(limits))


def _limit(text: str) -> Limit:
    match = re.fullmatch(r"([a-z0-9]+)_(mean|p\d+(?:\.\d+)?)\s*<=?\s*(\d*\.?\d+(?:e-?\d+)?)\s*([a-z]*)", text.lower())
    if match is None:
        raise InputError(
            f"slo {text!r} must be QUANTITY_PERCENTILE<TIME such as {EXAMPLE}; quantities: {', '.join(QUANTITIES)}"
        )
    quantity, which, number, unit = match.groups()
    if quantity not in QUANTITIES:
        raise InputError(f"slo {text!r}: unknown quantity {quantity!r}; known: {', '.join(QUANTITIES)}")
    if unit not in UNITS:
        raise InputError(f"slo {text!r}: the time needs a unit, one of {', '.join(UNITS)}, not {unit!r}")
    percentile = None if which == "mean" else float(which[1:])
    if percentile is not None and not 0 < percentile <= 100:
        raise InputError(f"slo {text!r}: a percentile is above p0 and up to p100, not {which}")
    if float(number) <= 0:
        raise InputError(f"slo {text!r}: the time must be above 0")
    return Limit(quantity, percentile, float(number) * UNITS[unit])


def attainment(served: Record | Served, slo: Slo, which: Array | None = None) -> float:
    """The share of requests whose own TTFT, TPOT and end-to-end time stay below every limit; of those ``which`` count.

    An answer of one token has no TPOT and keeps any limit on it.
    """
    kept = keeps(served, slo)
    return float((kept if which is None else kept[which]).mean())


def keeps(served: Record | Served, slo: Slo) -> Array:
    """Which requests keep all limits."""
    within = np.ones(served.sent_at.size, dtype=bool)
    for quantity, seconds in slo.of_a_request.items():
        values = getattr(served, QUANTITIES[quantity])
        if quantity == "tpot":
            within[served.num_output > 1] &= values < seconds
        else:
            within &= values < seconds
    return within


def holds(forecast: Forecast, slo: Slo) -> bool:
    """Whether all limits hold in the forecast's own numbers; none does for long where more and more requests wait."""
    return forecast.state.is_steady and headroom(forecast, slo) > 1.0


def headroom(forecast: Forecast, slo: Slo) -> float:
    """The smallest limit / forecast: above 1 all limits hold."""
    return min(limit.seconds / max(value_of(forecast, limit), 1e-12) for limit in slo.limits)


def odds(forecast: Forecast, slo: Slo, intervals: Intervals | None = None) -> float | None:
    """The probability that all limits hold, from the 80 % intervals of the forecast, worked out if not given.

    None where latencies have no steady value, or the run was too short to see it.

    Around each number is a distribution with these ends, whose shape was found on measured runs (docs/odds.md). All
    limits of one run are off together, because one GPU and one host make them all, so the least likely limit decides.
    """
    if not forecast.state.is_steady:
        return None
    if intervals is None:
        from infercast.forecast.intervals.intervals import forecast_intervals  # noqa: PLC0415 - it imports results

        intervals = forecast_intervals(forecast)
    return min(limit_odds(forecast, limit, intervals) or 0.0 for limit in slo.limits)


def limit_odds(forecast: Forecast, limit: Limit, intervals: Intervals) -> float | None:
    """The probability that one limit holds; None as for all of them."""
    if not forecast.state.is_steady:
        return None
    value = value_of(forecast, limit)
    ends = interval_of(forecast, limit, intervals)
    return 1.0 if ends is None else chance_below(limit.seconds, value, *ends, slower=_slower(forecast))


def _slower(forecast: Forecast) -> float:
    return slower_by([pool.deployment for pool in forecast.pools], forecast.workload)


def chance_below(limit: float, value: float, low: float, high: float, *, slower: float = 0.0) -> float:
    """The probability of at most ``limit`` where ``value`` is forecast and 80 % lie between ``low`` and ``high``.

    Each side of the middle, which is slower than the value by so much (`odds_within`), has its own width.
    """
    room, longer = log(limit / value), log(high / value)
    middle = longer * slower / (EIGHTY + slower)
    beyond = room - middle
    return float(odds_within(beyond, longer - middle if beyond >= 0 else middle - log(low / value)))


def value_of(forecast: Forecast, limit: Limit) -> float:
    """What the forecast says of what is limited, in seconds; 0 where no request has it."""
    summary: Percentiles | None = getattr(forecast, QUANTITIES[limit.quantity])
    if summary is None:
        return 0.0
    name = limit.name.partition("_")[2]
    if name in NAMES:
        return float(getattr(summary, name))
    return float(np.percentile(_values(forecast, limit.quantity), limit.percentile or 0.0))


def _values(forecast: Forecast, quantity: str) -> Array:
    """The latency of every request that counts."""
    served = forecast.clients
    inside = counted(forecast)
    values: Array = getattr(served, QUANTITIES[quantity])
    return values[inside[served.num_output > 1] if quantity == "tpot" else inside]


def counted(forecast: Forecast) -> Array:
    """Which requests count: all, or those sent in the steady part."""
    sent, window = forecast.clients.sent_at, forecast.window
    return np.ones(sent.size, dtype=bool) if window is None else (sent >= window[0]) & (sent <= window[1])


def interval_of(forecast: Forecast, limit: Limit, intervals: Intervals) -> tuple[float, float] | None:
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
