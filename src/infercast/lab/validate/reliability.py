"""Calibration of stated probabilities, and the order of configurations, over all measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.forecast.uncertainty import odds_within
from infercast.lab.validate.compare import FEWEST_RANKED, Comparison, RunComparison, rank_correlation

# Promises ("TTFT p95 stays below 1.2 times its forecast") held against measured runs, in buckets of like odds.

Array = npt.NDArray[Any]
LIMITS = np.linspace(0.6, 1.7, 45)  # What is promised, as multiples of the forecast: latencies below, rates above
BUCKETS = 10
FEWEST = 20  # of fewer promises the share that held says nothing


@dataclass(frozen=True, slots=True)
class Promises:
    odds: Array
    held: Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Promises with odds between two tenths."""

    low: float
    high: float
    count: int
    odds: float | None  # The mean of what was said; None where there is no promise
    held: float | None

    @property
    def off(self) -> float | None:
        """How much more often promises held than was said; None where they are too few."""
        if self.odds is None or self.held is None or self.count < FEWEST:
            return None
        return self.held - self.odds


def promises_of(pair: Comparison, slower: float, *, is_rate: bool = False) -> Promises:
    assert pair.half_width is not None
    rooms, error = np.log(LIMITS), float(np.log(pair.measured / pair.predicted))
    if is_rate:
        return Promises(odds_within(-rooms, pair.half_width, slower), error >= rooms)
    return Promises(odds_within(rooms, pair.half_width, slower), error <= rooms)


def joined_promises(promises: Iterable[Promises]) -> Promises:
    every = list(promises)
    if not every:
        return Promises(np.empty(0), np.empty(0, dtype=bool))
    return Promises(np.concatenate([each.odds for each in every]), np.concatenate([each.held for each in every]))


def both(first: Promises, second: Promises) -> Promises:
    """The promise that two limits hold: as likely as the less likely one, for what slows a run slows all."""
    odds = np.minimum(first.odds[:, None], second.odds[None, :])
    return Promises(odds.ravel(), (first.held[:, None] & second.held[None, :]).ravel())


def reliability(promises: Promises) -> tuple[Bucket, ...]:
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


LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95")
RATE = "output_tokens_per_second"
RANKED = (RATE, "ttft_p50", "ttft_p99", "tpot_p50")


@dataclass(frozen=True, slots=True)
class Reliability:
    about: str
    values: int
    buckets: tuple[Bucket, ...]

    @property
    def worst(self) -> float | None:
        return worst_of(self.buckets)


class Order(NamedTuple):
    """Spearman's rank correlations of measured and forecast values of one quantity."""

    quantity: str
    of_one_load: float | None  # Engines that had the same requests: the mean over loads, weighted by engines
    loads: int
    of_all: float | None  # All runs on one GPU, whatever they served


def reliability_of(runs: Sequence[RunComparison]) -> tuple[Reliability, ...]:
    """Of all promises, those of static batches, those under load, and those of two limits that must hold together."""
    static = [run for run in runs if run.parts is not None and run.parts.is_static]
    loaded = [run for run in runs if run.parts is not None and not run.parts.is_static]
    groups = (("all", runs), ("static", static), ("under load", loaded))
    # Most SLOs limit these two.
    limits = [(run.ttft_p99, run.tpot_p95, run.slower) for run in runs if run.tpot_p95 is not None]
    pairs = [both(promises_of(first, slower), promises_of(later, slower)) for first, later, slower in limits]
    found = [reliability_in(promises_in(members, LATENCIES), name) for name, members in groups]
    return (*found, reliability_in(pairs, "two limits"))


def reliability_in(promises: Sequence[Promises], name: str) -> Reliability:
    return Reliability(name, len(promises), reliability(joined_promises(promises)))


def promises_in(runs: Iterable[Any], latencies: Sequence[str]) -> list[Promises]:
    """Of runs with a `Comparison` for each of these names, those about its interval."""
    return [
        promises_of(pair, run.slower, is_rate=name == RATE)
        for run in runs
        for name in (*latencies, RATE)
        if (pair := getattr(run, name)) is not None and pair.half_width is not None
    ]


def orders_of(runs: Sequence[RunComparison]) -> tuple[Order, ...]:
    """Whether what is measured to be better is forecast to be, by each quantity."""
    return tuple(_order(runs, name) for name in RANKED)


def _order(runs: Sequence[RunComparison], name: str) -> Order:
    by_load: dict[str, list[Comparison]] = {}
    pairs = [(run.label, pair) for run in runs if (pair := getattr(run, name)) is not None]
    for label, pair in pairs:
        by_load.setdefault(label, []).append(pair)
    ranked = [(len(members), _correlation(members)) for members in by_load.values() if len(members) >= FEWEST_RANKED]
    known = [(count, order) for count, order in ranked if order is not None]
    mean = float(np.average([order for _, order in known], weights=[count for count, _ in known])) if known else None
    return Order(name, mean, len(known), _correlation([pair for _, pair in pairs]))


def _correlation(pairs: Sequence[Comparison]) -> float | None:
    measured, predicted = (np.array([getattr(pair, side) for pair in pairs]) for side in ("measured", "predicted"))
    return rank_correlation(measured, predicted)
