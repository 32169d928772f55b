"""Distributions of prompt and output lengths, of think times, and of arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError, UnknownNameError, require

# Length distributions: token counts, written as short strings.

LONGEST = 2**31 - 1  # upper limit of any length; keeps a heavy tail within integers
LENGTH_FORMS = (
    "512",
    "uniform:LOW:HIGH",
    "normal:MEAN:STD",
    "normal:MEAN:STD:MIN:MAX",
    "lognormal:MEAN:SIGMA",
    "lognormal:MEAN:SIGMA:MIN:MAX",
    "lognormal:MEAN:SIGMA,cap=MOST",
    "quantiles:LEAST:P1:P5:P10:P20:P30:P40:P50:P60:P70:P80:P90:P95:P99:P99.9:MOST",
)  # Forms accepted by `parse_lengths`

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)

# Above this, one request in millions dominates the mean; a larger number is a standard deviation in tokens by mistake.
_LARGEST_SIGMA = 5.0
INPUT_LEN, OUTPUT_LEN = "lognormal:700:0.9:16:8000", "lognormal:180:0.8:4:1000"  # Default prompt and output tokens
PAUSE_FORMS = ("8", "uniform:LOW:HIGH", "exponential:MEAN", "lognormal:MEAN:SIGMA")
"""Forms accepted by `parse_pauses`; all in seconds except SIGMA, the standard deviation of the logarithm."""
LONGEST_PAUSE = 1e7  # seconds, about four months
ARRIVAL_KINDS = ("poisson", "gamma", "constant", "burst")
LATEST = 1e10  # seconds, about three hundred years: beyond it a clock cannot resolve microseconds
MOST_REQUESTS = 100_000_000  # More than a hundred million are a typing error: a million take over a gigabyte


class LengthDistribution(NamedTuple):
    """A distribution of token counts (`parse_lengths`), rounded and clipped to ``minimum`` and ``maximum``."""

    kind: Literal["fixed", "uniform", "normal", "lognormal", "quantiles"]
    minimum: int
    maximum: int
    center: float = 0.0  # The mean before clipping; normal and lognormal only
    spread: float = 0.0  # Standard deviation: of the tokens for normal, of their logarithm for lognormal
    cap: int | None = None  # Where longer answers are cut (``max_tokens``); shorter ones end by EOS
    points: tuple[int, ...] = ()  # Lengths at `QUANTILES`, between which logarithms are uniform; of no other kind

    @property
    def mean(self) -> float:
        """The mean of the samples, including clipping but not rounding."""
        if self.kind in ("fixed", "uniform"):
            return (self.minimum + self.maximum) / 2
        if self.points:
            low, high = np.array(self.points[:-1], dtype=float), np.array(self.points[1:]) * (1 + 1e-9)
            return float((np.diff(QUANTILES) * (high - low) / np.log(high / low)).sum())
        if self.spread == 0:
            return min(max(self.center, self.minimum), self.maximum)
        return self._clipped_normal_mean() if self.kind == "normal" else self._clipped_lognormal_mean()

    def capped(self, most: int) -> LengthDistribution:
        """The same with longer samples cut to ``most``."""
        if self.kind == "uniform" and self.minimum < most < self.maximum:
            raise InputError(f"lengths {self} cut to {most} are not uniform; give lengths up to {most}")
        points = tuple(min(each, most) for each in self.points)
        return self._replace(minimum=min(self.minimum, most), maximum=min(self.maximum, most), points=points)

    def sample(self, count: int, rng: np.random.Generator, *, spread_out: bool = False) -> NDArray[np.int64]:
        """``count`` lengths of at least 1; ``spread_out``: stratified, so that together they have its percentiles."""
        if spread_out:
            return self._spread_out(count, rng)
        if self.kind == "fixed":
            return np.full(count, self.minimum, dtype=np.int64)
        if self.kind == "uniform":
            return rng.integers(self.minimum, self.maximum, size=count, endpoint=True)
        if self.points:
            return self._between_points(rng.random(count))
        if self.kind == "normal":
            values = rng.normal(self.center, self.spread, count)
        else:
            values = rng.lognormal(self._log_mean, self.spread, count)
        return np.clip(np.rint(values), self.minimum, self.maximum).astype(np.int64)

    def _spread_out(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        shares = (rng.permutation(count) + rng.random(count)) / count
        if self.kind in ("fixed", "uniform"):
            return self.minimum + np.floor(shares * (self.maximum - self.minimum + 1)).astype(np.int64)
        if self.points:
            return self._between_points(shares)
        normal = self.spread * _normal_quantiles(np.clip(shares, 1e-12, 1 - 1e-12).tolist())
        values = self.center + normal if self.kind == "normal" else np.exp(self._log_mean + normal)
        return np.clip(np.rint(values), self.minimum, self.maximum).astype(np.int64)

    def _between_points(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(np.exp(np.interp(shares, QUANTILES, np.log(self.points)))).astype(np.int64)

    def __str__(self) -> str:
        """In plain words: ``lognormal mean 700``."""
        if self.kind == "fixed":
            return f"{self.minimum:,}"
        if self.kind == "uniform":
            return f"uniform {self.minimum:,} to {self.maximum:,}"
        if self.points:
            return f"mean {self.mean:,.0f} ({self.minimum:,} to {self.maximum:,}) by quantiles"
        clip = "" if (self.minimum, self.maximum) == (1, LONGEST) else f" ({self.minimum:,} to {self.maximum:,})"
        return f"{self.kind} mean {self.mean:,.0f}{clip}"

    @property
    def _log_mean(self) -> float:
        """The mean of the logarithm that makes ``center`` the mean of the lengths themselves."""
        return math.log(self.center) - self.spread**2 / 2

    def _clipped_normal_mean(self) -> float:
        low = (self.minimum - self.center) / self.spread
        high = (self.maximum - self.center) / self.spread
        inside = self.center * (_normal_cdf(high) - _normal_cdf(low))
        inside += self.spread * (_normal_density(low) - _normal_density(high))
        return self.minimum * _normal_cdf(low) + inside + self.maximum * _normal_cdf(-high)

    def _clipped_lognormal_mean(self) -> float:
        low = (math.log(self.minimum) - self._log_mean) / self.spread
        high = (math.log(self.maximum) - self._log_mean) / self.spread
        inside = self.center * (_normal_cdf(high - self.spread) - _normal_cdf(low - self.spread))
        return self.minimum * _normal_cdf(low) + inside + self.maximum * _normal_cdf(-high)


def parse_lengths(text: str, field: str) -> LengthDistribution:
    """Parse a distribution; ``field`` is the option it came from, named in errors.

    ``512`` is fixed, ``uniform:100:900`` includes both ends, ``lognormal:700:0.9`` has mean 700 and 0.9 as the standard
    deviation of the logarithm, ``normal:700:200`` has mean 700 and standard deviation 200. The last two take bounds
    that samples are clipped to: ``lognormal:700:0.9:16:8000``. A ``,cap=4096`` behind any is the ``max_tokens`` of
    answers.
    """
    uncut, comma, cap = text.replace(" ", "").lower().partition(",cap=")
    if comma:
        most = _tokens(text, field, "cap", cap)
        return parse_lengths(uncut, field).capped(most)._replace(cap=most)
    kind, *numbers = text.strip().lower().split(":")
    if kind == "uniform" and len(numbers) == 2:
        return LengthDistribution("uniform", *_bounds(text, field, *numbers))
    if kind in ("normal", "lognormal") and len(numbers) in (2, 4):
        minimum, maximum = _bounds(text, field, *numbers[2:]) if numbers[2:] else (1, LONGEST)
        center = _number(text, field, "mean", numbers[0], 1, LONGEST)
        if kind == "normal":
            return LengthDistribution(
                "normal", minimum, maximum, center, _number(text, field, "standard deviation", numbers[1], 0, LONGEST)
            )
        sigma = _number(text, field, "standard deviation of the logarithm", numbers[1], 0, _LARGEST_SIGMA)
        return LengthDistribution("lognormal", minimum, maximum, center, sigma)
    if kind == "quantiles" and len(numbers) == len(QUANTILES):
        points = tuple(_tokens(text, field, "quantile", each) for each in numbers)
        if sorted(points) != [*points]:
            raise InputError(f"{field} {text!r} has quantiles that fall: a higher share needs at least as many tokens")
        return LengthDistribution("quantiles", points[0], points[-1], points=points)
    if not numbers and kind.removeprefix("-").isdigit():
        length = _tokens(text, field, "length", kind)
        return LengthDistribution("fixed", length, length)
    raise InputError(f"{field} {text!r} is not a length distribution; known forms: {', '.join(LENGTH_FORMS)}")


def _bounds(text: str, field: str, low: str, high: str) -> tuple[int, int]:
    minimum, maximum = _tokens(text, field, "lower bound", low), _tokens(text, field, "upper bound", high)
    if minimum > maximum:
        raise InputError(f"{field} {text!r}: the lower bound {minimum} is above the upper bound {maximum}")
    return minimum, maximum


def _tokens(text: str, field: str, role: str, number: str) -> int:
    is_whole = number.isdecimal() and len(number) <= 10 and 1 <= int(number) <= LONGEST
    require(is_whole, f"{field} {text!r}: the {role}", f"be a whole number from 1 to {LONGEST}", repr(number))
    return int(number)


def _number(text: str, field: str, role: str, number: str, least: float, most: float) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    wanted = f"be a number from {least:g} to {most:.10g}"
    require(least <= value <= most, f"{field} {text!r}: the {role}", wanted, repr(number))
    return value


def _normal_quantiles(shares: list[float]) -> NDArray[np.float64]:
    try:
        from _statistics import _normal_dist_inv_cdf as inverse  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError:
        from statistics import NormalDist  # noqa: PLC0415 - the same, but it loads decimals and fractions

        return np.array([NormalDist().inv_cdf(share) for share in shares])
    return np.array([inverse(share, 0.0, 1.0) for share in shares])


def _normal_cdf(value: float) -> float:
    return math.erfc(-value / math.sqrt(2)) / 2


def _normal_density(value: float) -> float:
    return math.exp(-value * value / 2) / math.sqrt(2 * math.pi)


# Pauses of people and tools between two turns of a session: distributions of seconds, written as short strings.


class Pauses(NamedTuple):
    """A distribution of seconds, made and checked by `parse_pauses`."""

    kind: Literal["fixed", "uniform", "exponential", "lognormal"]
    first: float  # The only value, the lower bound or the mean
    second: float = 0.0  # The upper bound, or the standard deviation of the logarithm

    @property
    def mean(self) -> float:
        """Mean in seconds."""
        return (self.first + self.second) / 2 if self.kind == "uniform" else self.first

    def sample(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """``count`` independent pauses."""
        if self.kind == "uniform":
            return rng.uniform(self.first, self.second, count)
        if self.kind == "exponential":
            return rng.exponential(self.first, count)
        if self.kind == "lognormal":
            return rng.lognormal(math.log(self.first) - self.second**2 / 2, self.second, count)
        return np.full(count, self.first)

    def __str__(self) -> str:
        """In plain words: ``exponential mean 10 s``."""
        if self.kind == "fixed":
            return f"{self.first:g} s"
        if self.kind == "uniform":
            return f"uniform {self.first:g} to {self.second:g} s"
        return f"{self.kind} mean {self.first:g} s"


def parse_pauses(text: str | float, field: str) -> Pauses:
    """Parse a distribution; ``field`` is the option it came from, named in errors."""
    kind, *numbers = str(text).strip().lower().split(":")
    values = [_pause_number(str(text), field, number) for number in numbers]
    if kind == "uniform" and len(values) == 2:
        if values[0] > values[1]:
            raise InputError(f"{field} {text!r}: the lower bound {values[0]:g} is above the upper bound {values[1]:g}")
        return Pauses("uniform", values[0], values[1])
    if kind == "exponential" and len(values) == 1:
        return Pauses("exponential", values[0])
    if kind == "lognormal" and len(values) == 2:
        if not (values[0] > 0 and values[1] <= _LARGEST_SIGMA):
            raise InputError(
                f"{field} {text!r}: the mean must be above 0, and the standard deviation of the logarithm at most "
                f"{_LARGEST_SIGMA:g}"
            )
        return Pauses("lognormal", values[0], values[1])
    if not values:
        return Pauses("fixed", _pause_number(str(text), field, kind))
    raise InputError(f"{field} {text!r} is not a distribution of seconds; known forms: {', '.join(PAUSE_FORMS)}")


def _pause_number(text: str, field: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value <= LONGEST_PAUSE:
        raise InputError(
            f"{field} {text!r}: {number!r} is not a number of seconds from 0 to {LONGEST_PAUSE:g}; "
            f"known forms: {', '.join(PAUSE_FORMS)}"
        )
    return value


# When requests arrive, as arrays of seconds: ``poisson`` (independent users, exponential gaps with a coefficient of
# variation of 1), ``gamma`` (gaps of a chosen burstiness, with one of 1 / sqrt(burstiness)), ``constant`` (a metronome:
# the first request at 0, then one every 1 / rate seconds) or ``burst`` (everything at 0; it has no rate).


def arrival_times(
    kind: str, rate: float | None, count: int, rng: np.random.Generator, burstiness: float = 1.0, *,
    spread_out: bool = False, recorded: tuple[float, ...] = (),
) -> NDArray[np.float64]:  # fmt: skip
    """``count`` arrival times in seconds, ascending.

    ``rate`` is the mean number of requests per second, None for a burst. ``burstiness`` is the shape of the gamma
    distribution of the gaps, as in vLLM's serving benchmark: 1 is Poisson, below 1 is burstier, above 1 more regular.
    Under poisson and gamma the first gap is drawn like every other, so the first request arrives after 0.
    ``spread_out``: scale the times to the expected span, so that the rate is exact; Poisson arrivals become those
    conditioned on their number in that span. ``recorded``: minutes of these times in random order instead.
    """
    check_arrivals(kind, rate, count, burstiness)
    if rate is None:
        return np.zeros(count)
    if recorded:
        return _minutes_of(np.array(recorded), rate, count, rng)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes the error below, not a warning
        if kind == "constant":
            times = np.arange(count) / rate
        else:
            times = np.cumsum(rng.gamma(burstiness, 1.0 / rate / burstiness, count))
            if spread_out:
                times *= count / rate / times[-1]
    if not times[-1] < LATEST:
        raise InputError(f"rate {rate!r} with burstiness {burstiness!r} gives arrival times too large for a clock")
    return times


def rate_of(recorded: Sequence[float]) -> float:
    """Requests per second of recorded arrivals."""
    if len(recorded) < 2 or not recorded[-1] > recorded[0]:
        raise InputError("recorded arrivals need at least two requests that do not come at once")
    return (len(recorded) - 1) / (recorded[-1] - recorded[0])


def _minutes_of(
    recorded: NDArray[np.float64], rate: float, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """All recorded minutes once in random order, and so again; at another rate they last longer or less long."""
    times, own = recorded - recorded[0], rate_of(recorded.tolist())
    minute = max(60.0, (span := len(recorded) / own) / 10_000)  # A trace of more than a week is in longer parts
    starts = np.arange(0.0, span, minute)
    bounds = np.searchsorted(times, [*starts, np.inf])
    found: list[NDArray[np.float64]] = []
    begin = num_found = 0.0
    while num_found < count:
        for part in rng.permutation(starts.size).tolist():
            found.append(times[bounds[part] : bounds[part + 1]] - starts[part] + begin)
            begin, num_found = begin + min(minute, span - starts[part]), num_found + found[-1].size
    return np.concatenate(found)[:count] * (own / rate)


def check_arrivals(kind: str, rate: float | None, count: int, burstiness: float = 1.0) -> None:
    """Raise InputError unless the four describe an arrival process."""
    if kind not in ARRIVAL_KINDS:
        raise UnknownNameError("arrival kind", kind, ARRIVAL_KINDS)
    require(count >= 1, "count", "be at least 1 request", count)
    require(count <= MOST_REQUESTS, "count", f"be at most {MOST_REQUESTS} requests", count)
    if kind == "burst" and rate is not None:
        raise InputError(f"rate {rate!r} was given, but a burst has none; use poisson, gamma or constant for a rate")
    if kind != "burst" and rate is None:
        raise InputError(f"rate is missing: {kind} arrivals need requests per second; only burst goes without")
    is_usable = rate is None or (rate > 0 and math.isfinite(1.0 / rate) and math.isfinite(rate))
    require(is_usable, "rate", "be a positive, finite number of requests per second", repr(rate))
    is_usable = burstiness > 0 and math.isfinite(burstiness)
    require(is_usable, "burstiness", "be a positive, finite number (1 is Poisson)", repr(burstiness))
    if kind != "gamma" and burstiness != 1.0:
        raise InputError(f"burstiness {burstiness!r} has no meaning for {kind} arrivals; use gamma, or leave it at 1")
