"""How long prompts and answers are: distributions of token counts, written as short strings."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError

LONGEST = 2**31 - 1
"""No request is longer than this; it keeps a heavy tail inside the integers."""

LENGTH_FORMS = (
    "512",
    "uniform:LOW:HIGH",
    "normal:MEAN:STD",
    "normal:MEAN:STD:MIN:MAX",
    "lognormal:MEAN:SIGMA",
    "lognormal:MEAN:SIGMA:MIN:MAX",
)
"""What `parse_lengths` understands."""

# Beyond this one request in millions makes the mean; a larger number is a standard deviation in tokens by mistake.
_LARGEST_SIGMA = 5.0


INPUT_LEN, OUTPUT_LEN = "lognormal:700:0.9:16:8000", "lognormal:180:0.8:4:1000"
"""Tokens of prompts and answers where nobody says."""


class LengthDistribution(NamedTuple):
    """A distribution of token counts; `parse_lengths` makes and checks one.

    Samples are rounded to whole tokens and clipped to ``minimum`` and ``maximum``.
    """

    kind: Literal["fixed", "uniform", "normal", "lognormal"]
    minimum: int
    maximum: int
    center: float = 0.0
    """The mean before clipping; normal and lognormal only."""
    spread: float = 0.0
    """Standard deviation: of the tokens for normal, of their logarithm for lognormal."""

    @property
    def mean(self) -> float:
        """The mean of what is sampled, clipping included and rounding left aside."""
        if self.kind in ("fixed", "uniform"):
            return (self.minimum + self.maximum) / 2
        if self.spread == 0:
            return min(max(self.center, self.minimum), self.maximum)
        return self._clipped_normal_mean() if self.kind == "normal" else self._clipped_lognormal_mean()

    def sample(self, count: int, rng: np.random.Generator, *, spread_out: bool = False) -> NDArray[np.int64]:
        """``count`` independent lengths, each at least 1.

        ``spread_out``: in random order one from each of as many equally likely parts of the distribution. Any few of
        them are as good as independent; all together have the mean and the percentiles of what they are drawn from.
        """
        if spread_out:
            return self._spread_out(count, rng)
        if self.kind == "fixed":
            return np.full(count, self.minimum, dtype=np.int64)
        if self.kind == "uniform":
            return rng.integers(self.minimum, self.maximum, size=count, endpoint=True)
        if self.kind == "normal":
            values = rng.normal(self.center, self.spread, count)
        else:
            values = rng.lognormal(self._log_mean, self.spread, count)
        return np.clip(np.rint(values), self.minimum, self.maximum).astype(np.int64)

    def _spread_out(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        shares = (rng.permutation(count) + rng.random(count)) / count
        if self.kind in ("fixed", "uniform"):
            return self.minimum + np.floor(shares * (self.maximum - self.minimum + 1)).astype(np.int64)
        inverse = NormalDist().inv_cdf
        normal = self.spread * np.array([inverse(share) for share in np.clip(shares, 1e-12, 1 - 1e-12).tolist()])
        values = self.center + normal if self.kind == "normal" else np.exp(self._log_mean + normal)
        return np.clip(np.rint(values), self.minimum, self.maximum).astype(np.int64)

    def __str__(self) -> str:
        """In plain words: ``lognormal mean 700``."""
        if self.kind == "fixed":
            return f"{self.minimum:,}"
        if self.kind == "uniform":
            return f"uniform {self.minimum:,} to {self.maximum:,}"
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
    """The distribution that ``text`` describes; ``field`` is the option it came from, named in errors.

    ``512`` is fixed, ``uniform:100:900`` includes both ends, ``lognormal:700:0.9`` has mean 700 and 0.9 as the standard
    deviation of the logarithm, ``normal:700:200`` has mean 700 and standard deviation 200. The last two take bounds
    that samples are clipped to: ``lognormal:700:0.9:16:8000``.
    """
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
    if not (number.isdecimal() and len(number) <= 10 and 1 <= int(number) <= LONGEST):
        raise InputError(f"{field} {text!r}: the {role} must be a whole number from 1 to {LONGEST}, not {number!r}")
    return int(number)


def _number(text: str, field: str, role: str, number: str, least: float, most: float) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InputError(f"{field} {text!r}: the {role} must be a number from {least:g} to {most:.10g}, not {number!r}")
    return value


def _normal_cdf(value: float) -> float:
    return math.erfc(-value / math.sqrt(2)) / 2


def _normal_density(value: float) -> float:
    return math.exp(-value * value / 2) / math.sqrt(2 * math.pi)
