"""A fleet through a day: the number of requests in its replicas, step by step.

All replicas have an equal share of the requests in the system, as a load balancer that looks at them makes it. In each
step, so many arrive and so many leave as replicas with that number in them serve; what does not leave is carried over.
The step is taken backwards (the rate of leaving is that of its end), so that long steps do not overshoot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.day.curve import LoadCurve

Array = npt.NDArray[Any]
POINTS = 400

Scaler = Callable[[int, float, float], tuple[int, int]]
"""Given the step, the typical requests a second that arrived and the requests in the system: (ready, paid for)."""


class Replica:
    """A load curve made ready for many steps of one length."""

    def __init__(self, curve: LoadCurve, step: float) -> None:
        self.curve, self.step = curve, step
        self._numbers = np.concatenate([[0.0], curve.in_system]).tolist()
        rates = np.concatenate([[0.0], curve.rates])
        self._reached = (np.array(self._numbers) + step * rates).tolist()
        longest = max(limit.seconds for limit in curve.slo.limits)
        most = self._numbers[-1] + 1.5 * curve.full_rate * longest
        self._grid = np.unique(np.concatenate([np.linspace(0.0, most, POINTS), curve.in_system]))
        self._attained = np.array([curve.attained(number) for number in self._grid.tolist()])
        self._use = np.array([curve.use_of_limits(number) for number in self._grid.tolist()])
        self._beyond = np.array([curve.beyond(number) for number in self._grid.tolist()])

    def after(self, in_system: float, rate: float) -> float:
        """The number in the system a step later, with so many typical requests a second."""
        end = in_system + self.step * rate
        if end >= self._reached[-1]:
            return float(self._numbers[-1] + end - self._reached[-1])
        return float(np.interp(end, self._reached, self._numbers))

    def attained(self, in_system: Array) -> Array:
        """Share of the requests within every limit, with so many in a replica."""
        return np.asarray(np.interp(in_system, self._grid, self._attained))

    def use_of_limits(self, in_system: Array) -> Array:
        """The largest latency over its limit."""
        return np.asarray(np.interp(in_system, self._grid, self._use))

    def beyond(self, in_system: Array) -> Array:
        """Share of the requests beyond each limit (columns)."""
        return np.stack([np.interp(in_system, self._grid, shares) for shares in self._beyond.T], axis=1)


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What a fleet did, by steps."""

    ready: Array
    """Replicas that serve."""
    paid: Array
    """Replicas that cost, those that are starting too."""
    in_system: Array
    """Requests in each replica."""
    attained: Array
    use_of_limits: Array
    beyond: Array
    """Share of the requests beyond each limit (columns)."""


class Replicas:
    """Replicas of fleets of several sizes: what one of many does is taken from the largest that was simulated."""

    def __init__(self, curves: Mapping[int, LoadCurve], step: float) -> None:
        self._by_size = [(size, Replica(curve, step)) for size, curve in sorted(curves.items())]

    def of(self, count: int) -> Replica:
        """One of so many."""
        return [replica for size, replica in self._by_size if size <= count][-1]

    def look(self, name: str, in_system: Array, counts: Array) -> Array:
        """``attained``, ``use_of_limits`` or ``beyond`` of many steps, each with so many replicas."""
        (_, found), *larger = [(size, getattr(replica, name)(in_system)) for size, replica in self._by_size]
        for size, others in larger:
            found[counts >= size] = others[counts >= size]
        return np.asarray(found)


def run_fleet(replicas: Replicas, load: Array, scaler: Scaler, first: float = 0.0) -> FleetRun:
    """Step through a day; ``first`` are requests in the system at its beginning."""
    ready: list[int] = []
    paid: list[int] = []
    numbers: list[float] = []
    total, arrived = first, float(load[0]) if load.size else 0.0
    for step, rate in enumerate(load.tolist()):
        serving, costing = scaler(step, arrived, total)
        number = replicas.of(serving).after(total / serving, rate / serving)
        total, arrived = serving * number, rate
        ready.append(serving)
        paid.append(costing)
        numbers.append(number)
    in_system, counts = np.array(numbers), np.array(ready)
    # Requests that arrive in a step meet what is there between its beginning and its end.
    met = (np.concatenate([[first / ready[0]], in_system[:-1]]) + in_system) / 2
    attained, use, beyond = (replicas.look(name, met, counts) for name in ("attained", "use_of_limits", "beyond"))
    return FleetRun(counts, np.array(paid), in_system, attained, use, beyond)


def fixed(count: int) -> Scaler:
    """Always as many."""
    return lambda step, rate, total: (count, count)
