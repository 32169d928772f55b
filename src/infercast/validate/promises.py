"""Promises held against measured runs: how often what was said to be so likely came true.

Of every quantity of a run many promises are made, "TTFT p95 stays below so many times its forecast", each with its
odds. Those of about the same odds form a bucket; of promises that are 90 % sure nine out of ten have to hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.intervals.odds import odds_within
from infercast.validate.parts import Comparison

Array = npt.NDArray[Any]

LIMITS = np.linspace(0.6, 1.7, 45)
"""What is promised, as multiples of the forecast: of a latency to stay below, of a rate to stay above."""
BUCKETS = 10
FEWEST = 20
"""Of fewer promises the share that held says nothing."""


@dataclass(frozen=True, slots=True)
class Promises:
    """The odds of each promise, and whether it held."""

    odds: Array
    held: Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Promises whose odds lie between two tenths."""

    low: float
    high: float
    count: int
    odds: float | None
    """The mean of what was said; None where there is no promise."""
    held: float | None
    """The share that held."""

    @property
    def off(self) -> float | None:
        """How much more often promises held than was said; None where they are too few."""
        if self.odds is None or self.held is None or self.count < FEWEST:
            return None
        return self.held - self.odds


def promises_of(pair: Comparison, slower: float, *, is_rate: bool = False) -> Promises:
    """Promises about one number, at all limits."""
    assert pair.half_width is not None
    rooms, error = np.log(LIMITS), float(np.log(pair.measured / pair.predicted))
    if is_rate:
        return Promises(odds_within(-rooms, pair.half_width, slower), error >= rooms)
    return Promises(odds_within(rooms, pair.half_width, slower), error <= rooms)


def together(promises: Iterable[Promises]) -> Promises:
    """All of them as one."""
    every = list(promises)
    if not every:
        return Promises(np.empty(0), np.empty(0, dtype=bool))
    return Promises(np.concatenate([each.odds for each in every]), np.concatenate([each.held for each in every]))


def both(first: Promises, second: Promises) -> Promises:
    """The promise that two limits hold, any with any: as likely as the less likely one, for what slows a run slows all.

    So `odds` takes the limits of an SLO.
    """
    odds = np.minimum(first.odds[:, None], second.odds[None, :])
    return Promises(odds.ravel(), (first.held[:, None] & second.held[None, :]).ravel())


def reliability(promises: Promises) -> tuple[Bucket, ...]:
    """What was said and what came true, by tenths of the odds."""
    numbers = np.minimum((promises.odds * BUCKETS).astype(int), BUCKETS - 1)
    buckets = []
    for number in range(BUCKETS):
        chosen = numbers == number
        count = int(chosen.sum())
        odds, held = (float(values[chosen].mean()) if count else None for values in (promises.odds, promises.held))
        buckets.append(Bucket(number / BUCKETS, (number + 1) / BUCKETS, count, odds, held))
    return tuple(buckets)


def worst_of(buckets: Iterable[Bucket]) -> float | None:
    """The largest distance between what was said and what came true; None where no bucket has enough promises."""
    return max((abs(bucket.off) for bucket in buckets if bucket.off is not None), default=None)
