"""What a sweep goes along: rates, numbers of clients, or the values of one setting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from infercast.errors import InputError
from infercast.serve import Workload
from infercast.serve.workload.redraw import redrawn_with, scaled

RATE, CONCURRENCY = "rate", "concurrency"
MOST_VALUES = 200
"""A longer list is a mistake more often than a question."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The name of what changes, and its values in the order of the question."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_load(self) -> bool:
        """Whether it says how much is asked of one deployment, which has a knee."""
        return self.name in (RATE, CONCURRENCY)

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as people write them."""
        return tuple(f"{value:g}" if isinstance(value, (int, float)) else str(value) for value in self.values)

    def number(self, place: int) -> float | None:
        """A value as a number, where it is one."""
        try:
            number = float(self.values[place])
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    def changes(self, place: int) -> str:
        """A value of a setting in the words of ``--what-if``."""
        return f"{self.name}={self.values[place]}"


def axis_of(
    rates: Iterable[float] | None = None,
    concurrencies: Iterable[int] | None = None,
    vary: tuple[str, Sequence[Any]] | None = None,
) -> Axis:
    """The one axis that is asked for; rates and clients in ascending order."""
    given = [(RATE, rates), (CONCURRENCY, concurrencies), vary or ("", None)]
    asked = [(name, tuple(values)) for name, values in given if values is not None]
    if len(asked) != 1:
        raise InputError("a sweep goes along one axis: give rates, concurrencies or the values of one setting")
    (name, values) = asked[0]
    if not 1 <= len(set(values)) == len(values) <= MOST_VALUES:
        raise InputError(f"{name} must be 1 to {MOST_VALUES} different values, not {', '.join(map(str, values[:9]))!r}")
    if name in (RATE, CONCURRENCY):
        for value in values:
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InputError(f"{name} must be a positive number, not {value!r}")
        values = tuple(sorted(values))
    return Axis(name, values)


def parse_numbers(text: str, option: str, *, whole: bool = False) -> tuple[float, ...]:
    """``1:40:8`` is eight values from 1 to 40 at even steps, ``1,2,4`` those three; rounded to three digits."""
    wrong = InputError(f"{option} must be FROM:TO:COUNT or numbers with commas between them, not {text!r}")
    try:
        if ":" in text:
            begin, end, count = text.split(":")
            low, high, number = float(begin), float(end), int(count)
            if not (0 < low < high < math.inf and 2 <= number <= MOST_VALUES):
                raise wrong
            values = [float(f"{value:.3g}") for value in np.linspace(low, high, number).tolist()]
        else:
            values = [float(part) for part in text.split(",")]
    except ValueError:
        raise wrong from None
    if whole:
        return tuple(dict.fromkeys(float(round(value)) for value in values if round(value) > 0))
    return tuple(values)


def at_load(workload: Workload, axis: str, value: float) -> Workload:
    """The same requests at another rate, or sent by another number of clients.

    Random requests are drawn as if that rate had been asked for from the start, so that each point of a sweep is what a
    simulation of it alone says. Requests of a trace keep their order, and their gaps in proportion.
    """
    if axis == CONCURRENCY:
        clients = round(value)
        drawn = redrawn_with(workload, rate=None, concurrency=clients, arrival="poisson", burstiness=1.0)
        if drawn is not None:
            return drawn
        requests = tuple(replace(request, arrival=0.0) for request in workload.requests)
        words = f"{workload.description}; sent by {clients:,} clients".removeprefix("; ")
        return replace(workload, requests=requests, concurrency=clients, rate=None, description=words, drawn=None)
    if workload.drawn is not None:
        arrival = "poisson" if workload.drawn.rate is None else workload.drawn.arrival
        drawn = redrawn_with(workload, rate=value, concurrency=None, arrival=arrival)
        if drawn is not None:
            return drawn
    if workload.concurrency is not None:
        raise InputError("rates have no meaning for clients that wait for their answers; sweep concurrencies")
    return scaled(workload, rate=value)
