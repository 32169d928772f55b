"""How long people and tools take between two turns of a session: distributions of seconds, written as short strings."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError

PAUSE_FORMS = ("8", "uniform:LOW:HIGH", "exponential:MEAN", "lognormal:MEAN:SIGMA")
"""What `parse_pauses` understands; all in seconds but SIGMA, the standard deviation of the logarithm."""
LONGEST_PAUSE = 1e7
"""Seconds, some four months."""
_LARGEST_SIGMA = 5.0


class Pauses(NamedTuple):
    """A distribution of seconds; `parse_pauses` makes and checks one."""

    kind: Literal["fixed", "uniform", "exponential", "lognormal"]
    first: float
    """The only value, the lower bound or the mean."""
    second: float = 0.0
    """The upper bound, or the standard deviation of the logarithm."""

    @property
    def mean(self) -> float:
        """Seconds on average."""
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
    """The distribution that ``text`` describes; ``field`` is the option it came from, named in errors."""
    kind, *numbers = str(text).strip().lower().split(":")
    values = [_number(str(text), field, number) for number in numbers]
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
        return Pauses("fixed", _number(str(text), field, kind))
    raise InputError(f"{field} {text!r} is not a distribution of seconds; known forms: {', '.join(PAUSE_FORMS)}")


def _number(text: str, field: str, number: str) -> float:
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
