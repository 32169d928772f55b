"""Who decides how many replicas there are: nobody, a timetable, or an autoscaler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from infercast.errors import InputError
from infercast.forecast.day.fleet import Scaler

HOUR = 3600.0
MEASURES = ("utilization", "queue")


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Rules like those of Kubernetes' HorizontalPodAutoscaler; times in seconds."""

    measure: str = "utilization"
    """``utilization``: requests that arrive, as a share of what replicas serve at most.
    ``queue``: requests in a replica, running or waiting."""
    target: float | None = None
    """What one replica should have; None: a share of what it has where the SLO just holds (`SAFETIES`)."""
    interval: float = 30.0
    """From one decision to the next."""
    up_delay: float = 0.0
    """So long more replicas must have been needed before they are started."""
    down_delay: float = 300.0
    """So long fewer must have been enough before some are stopped."""
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise InputError(f"autoscale-on must be {' or '.join(MEASURES)}, not {self.measure!r}")
        if self.target is not None and not 0 < self.target < 1e9:
            raise InputError(f"autoscaler target must be above 0, not {self.target:g}")
        if not (self.interval > 0 and self.up_delay >= 0 and self.down_delay >= 0):
            raise InputError("the interval of an autoscaler must be above 0 s, and its delays at least 0 s")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise InputError(f"replicas must be at least 1 and from few to many, not {self.least} to {self.most}")


SAFETIES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""Shares of the load with which the SLO just holds that an autoscaler may aim at by default."""


def scheduled(hours: Sequence[int], step: float, lag: float) -> Scaler:
    """So many in each hour; those that an hour needs are started ahead, to be ready when it begins."""

    def decide(place: int, rate: float, total: float) -> tuple[int, int]:
        del rate, total
        now = place * step
        ready = hours[min(int(now / HOUR), len(hours) - 1)]
        ahead = hours[min(int((now + lag) / HOUR), len(hours) - 1)]
        return ready, max(ready, ahead)

    return decide


class Autoscaling:
    """An autoscaler at work: decisions every interval, replicas that serve a start-up lag after they are asked for."""

    def __init__(self, rules: Autoscaler, target: float, full_rate: float, step: float, lag: float, first: int) -> None:
        self._rules, self._target, self._full_rate, self._step, self._lag = rules, target, full_rate, step, lag
        self._ready = max(first, rules.least)
        self._starting: deque[tuple[float, int]] = deque()
        """When each lot is ready, and how many they are."""
        self._wanted: deque[tuple[float, int]] = deque()
        """What was needed at each decision, for as long as the longer delay."""
        self._next = 0.0
        self._interval_rates: list[float] = []

    def __call__(self, place: int, rate: float, total: float) -> tuple[int, int]:
        """Replicas that serve in this step, and those that are paid for."""
        now = place * self._step
        self._interval_rates.append(rate)
        while self._starting and self._starting[0][0] <= now:
            self._ready += self._starting.popleft()[1]
        if now >= self._next:
            self._decide(now, sum(self._interval_rates) / len(self._interval_rates), total)
            self._next, self._interval_rates = now + self._rules.interval, []
        return self._ready, self._ready + self._coming

    @property
    def _coming(self) -> int:
        return sum(count for _, count in self._starting)

    def _decide(self, now: float, rate: float, total: float) -> None:
        rules = self._rules
        needed = rate / self._full_rate if rules.measure == "utilization" else total
        wanted = max(rules.least, ceil(needed / self._target - 1e-9))
        wanted = wanted if rules.most is None else min(wanted, rules.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - max(rules.up_delay, rules.down_delay):
            self._wanted.popleft()
        have = self._ready + self._coming
        at_least = min(count for since, count in self._wanted if since >= now - rules.up_delay)
        at_most = max(count for since, count in self._wanted if since >= now - rules.down_delay)
        if at_least > have:
            self._starting.append((now + self._lag, at_least - have))
        elif at_most < have:
            self._stop(have - at_most)

    def _stop(self, count: int) -> None:
        """Those that have not started yet go first."""
        while count and self._starting:
            when, coming = self._starting.pop()
            fewer = min(count, coming)
            count -= fewer
            if coming > fewer:
                self._starting.append((when, coming - fewer))
        self._ready -= count
