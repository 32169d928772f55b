"""Latency percentiles, and limits on them (SLO): ``ttft_p99<1s,tpot_p95<40ms,e2e_mean<8s``."""

from __future__ import annotations

import re
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.lazy_classes import dataclass
from infercast.serve import Record
from infercast.serve.record import ServedRequests
from infercast.shown import ReprMixin
from infercast.units import MICRO, MILLI

Array = npt.NDArray[Any]

QUANTITIES = {"ttft": "ttft", "tpot": "tpot", "e2e": "end_to_end"}  # What may be promised, by the fields of `Outcome`
UNITS = {"us": MICRO, "ms": MILLI, "s": 1.0, "min": 60.0}
EXAMPLE = "ttft_p99<1s,tpot_p95<40ms,e2e_mean<8s"
FRACTIONS = (0.5, 0.9, 0.95, 0.99)
NAMES = ("mean", "p50", "p90", "p95", "p99")  # What is said of every latency, in the order of `Percentiles`


@dataclass(frozen=True, slots=True)
class Limit:
    """What a mean or a percentile of one latency must stay below."""

    quantity: str  # One of `QUANTITIES`
    percentile: float | None  # Above 0 and up to 100; None: the mean
    seconds: float

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise InputError(f"slo: unknown quantity {self.quantity!r}; known: {', '.join(QUANTITIES)}")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise InputError(f"slo: a percentile is above p0 and up to p100, not p{self.percentile:g}")
        if not 0 < self.seconds < inf:
            raise InputError(f"slo: a limit must be a time above 0, not {self.seconds:g} s")

    @property
    def name(self) -> str:
        """``ttft_p99``."""
        return f"{self.quantity}_{'mean' if self.percentile is None else f'p{self.percentile:g}'}"

    def __str__(self) -> str:
        unit = "s" if self.seconds >= 1.0 else "ms" if self.seconds >= MILLI else "us"
        return f"{self.name}<{self.seconds / UNITS[unit]:.12g}{unit}"


@dataclass(frozen=True, slots=True, repr=False)
class Slo(ReprMixin):
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
        """Seconds that each request should stay below: the loosest, as ``ttft_p50<200ms`` lets half take longer."""
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
    if unit not in UNITS:
        raise InputError(f"slo {text!r}: the time needs a unit, one of {', '.join(UNITS)}, not {unit!r}")
    return Limit(quantity, None if which == "mean" else float(which[1:]), float(number) * UNITS[unit])


def attainment(served: Record | ServedRequests, slo: Slo, which: Array | None = None) -> float:
    """The share of requests below every limit; an answer of one token has no TPOT and keeps any."""
    kept = keeps(served, slo)
    return float((kept if which is None else kept[which]).mean())


def keeps(served: Record | ServedRequests, slo: Slo) -> Array:
    within = ~served.failed
    for quantity, seconds in slo.of_a_request.items():
        within &= ~(latency_of(served, quantity) >= seconds)
    return within


def latency_of(served: Record | ServedRequests, quantity: str) -> Array:
    """Of every request, in seconds; not a number where an answer of one token has no TPOT."""
    values: Array = getattr(served, QUANTITIES[quantity])
    if quantity != "tpot":
        return values
    of_all = np.full(served.num_output.size, np.nan)
    of_all[served.num_output > 1] = values
    return of_all


def served_headroom(served: Any, slo: Slo) -> tuple[float, str]:
    """The smallest limit / what requests saw, and the name of that limit; ``served`` has an array for each latency."""
    rooms = []
    for limit in slo.limits:
        values: Array = getattr(served, QUANTITIES[limit.quantity])
        if values.size:
            value = float(values.mean()) if limit.percentile is None else quantile(values, limit.percentile / 100)
            rooms.append((limit.seconds / max(value, 1e-12), limit.name))
    return min(rooms, default=(inf, ""))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A latency over all requests, or over all tokens, in seconds."""

    mean: float  # Seconds on average
    p50: float  # Seconds that half of them stay below, the median
    p90: float  # Seconds that 90 % stay below
    p95: float  # Seconds that 95 % stay below
    p99: float  # Seconds that 99 % stay below

    @property
    def values(self) -> tuple[float, ...]:
        """All of them in seconds, in the order of `NAMES`."""
        return self.mean, self.p50, self.p90, self.p95, self.p99


def quantile(values: Array, fraction: float) -> float:
    """The same as `np.quantile`, which loads half of numpy first and takes ten times as long."""
    position = fraction * (values.size - 1)
    rank = min(int(position), values.size - 1)
    after, share = min(rank + 1, values.size - 1), position - rank
    in_place = np.partition(values, (rank, after))
    below, above = in_place[rank], in_place[after]
    step = above - below
    return float(below + step * share if share < 0.5 else above - step * (1 - share))


def percentiles(values: Array, counts: Array | None = None) -> Percentiles:
    """Mean and percentiles, each value counted ``counts`` times."""
    if counts is None:
        counts = np.ones(values.size, dtype=np.int64)
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    cumulated = np.cumsum(counts)
    # The same percentiles as of the values written out: interpolated between two neighbouring ranks.
    positions = np.array(FRACTIONS) * (cumulated[-1] - 1)
    ranks = np.floor(positions)
    below = values[np.searchsorted(cumulated, ranks, side="right")]
    above = values[np.searchsorted(cumulated, np.ceil(positions), side="right")]
    between = (below + (above - below) * (positions - ranks)).tolist()
    return Percentiles(float((values * counts).sum() / cumulated[-1]), *between)
