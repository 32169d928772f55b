"""Whether odds mean what they say, and whether configurations come out in the right order: over all runs at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from infercast.validate.compare import RunComparison
from infercast.validate.parts import Comparison
from infercast.validate.promises import Bucket, Promises, both, promises_of, reliability, together, worst_of
from infercast.validate.published.compare import PublishedComparison
from infercast.validate.scatter import FEWEST, rank_correlation

LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95")
RATE = "output_tokens_per_second"
PUBLISHED = ("ttft", "tpot", "end_to_end")
RANKED = (RATE, "ttft_p50", "ttft_p99", "tpot_p50")
"""By what configurations are ranked."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """What was said and what came true, of some promises."""

    about: str
    values: int
    """Measured numbers that promises were made about."""
    buckets: tuple[Bucket, ...]

    @property
    def worst(self) -> float | None:
        """The largest distance in a bucket with enough promises."""
        return worst_of(self.buckets)


class Order(NamedTuple):
    """Spearman's rank correlations of measured and forecast values of one quantity."""

    quantity: str
    of_one_load: float | None
    """Engines that had the same requests: the mean over loads, weighted by engines."""
    loads: int
    of_all: float | None
    """All runs on one GPU, whatever they served."""


def reliability_of(runs: Sequence[RunComparison]) -> tuple[Reliability, ...]:
    """Of all promises, those of static batches, those under load, and those of two limits that must hold together."""
    static = [run for run in runs if run.parts is not None and run.parts.is_static]
    loaded = [run for run in runs if run.parts is not None and not run.parts.is_static]
    groups = (("all", runs), ("static", static), ("under load", loaded))
    pairs = [_both_limits(run) for run in runs if run.tpot_p95 is not None]
    found = [_of([each for run in members for each in _promises(run)], name) for name, members in groups]
    return (*found, _of(pairs, "two limits"))


def reliability_of_published(compared: Iterable[PublishedComparison]) -> Reliability:
    """The same of published runs, of which means are known."""
    promises = [
        promises_of(pair, each.slower, is_rate=name == RATE)
        for each in compared
        for name in (*PUBLISHED, RATE)
        if (pair := getattr(each, name)) is not None and pair.half_width is not None
    ]
    return _of(promises, "all")


def _of(promises: list[Promises], name: str) -> Reliability:
    return Reliability(name, len(promises), reliability(together(promises)))


def _promises(run: RunComparison) -> list[Promises]:
    pairs = ((name, getattr(run, name)) for name in (*LATENCIES, RATE))
    return [
        promises_of(pair, run.slower, is_rate=name == RATE)
        for name, pair in pairs
        if pair is not None and pair.half_width is not None
    ]


def _both_limits(run: RunComparison) -> Promises:
    """TTFT p99 and TPOT p95, which most SLOs limit."""
    assert run.tpot_p95 is not None
    return both(promises_of(run.ttft_p99, run.slower), promises_of(run.tpot_p95, run.slower))


def orders_of(runs: Sequence[RunComparison]) -> tuple[Order, ...]:
    """Whether what is measured to be better is forecast to be, by each quantity."""
    return tuple(_order(runs, name) for name in RANKED)


def _order(runs: Sequence[RunComparison], name: str) -> Order:
    by_load: dict[str, list[Comparison]] = {}
    pairs = [(run.label, pair) for run in runs if (pair := getattr(run, name)) is not None]
    for label, pair in pairs:
        by_load.setdefault(label, []).append(pair)
    ranked = [(len(members), _correlation(members)) for members in by_load.values() if len(members) >= FEWEST]
    known = [(count, order) for count, order in ranked if order is not None]
    mean = float(np.average([order for _, order in known], weights=[count for count, _ in known])) if known else None
    return Order(name, mean, len(known), _correlation([pair for _, pair in pairs]))


def _correlation(pairs: Sequence[Comparison]) -> float | None:
    measured, predicted = (np.array([getattr(pair, side) for pair in pairs]) for side in ("measured", "predicted"))
    return rank_correlation(measured, predicted)
