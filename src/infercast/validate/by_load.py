"""Errors by how much was asked of an engine, and what of them is the machine's.

A busy engine waits for the thread that plans and launches its steps, and machines of one kind differ in how fast that
thread is. So the speed that the lightest load of a file shows is also tried on its other loads: what is left then is
not the machine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from infercast.forecast.intervals.odds import is_at_once
from infercast.forecast.intervals.slowed import slowed
from infercast.serve import Replica, simulate
from infercast.validate.measured import MeasuredRun
from infercast.validate.parts import Comparison
from infercast.validate.summaries import measured_summary, summary_of

CLASSES = ((8.0, "up to 8/s"), (16.0, "9 to 16/s"), (30.0, "17 to 30/s"), (inf, "above 30/s"))
"""Arrivals a second up to which a run belongs to a class."""
STATIC, PREFIX = "static", "prefix"
"""Batches that were sent at once, as fast as their client could, are no load over time; runs whose prompts share
prefixes are a class of their own, whatever their rate."""
FACTORS: tuple[float, ...] = tuple(np.geomspace(0.6, 1.8, 12).tolist())
"""How many times longer than on the bundled host everything may take on a machine; ours differ by less."""
TTFT_P50, TPOT_P50 = 0, 3
"""Where these are in a summary."""


class Errors(NamedTuple):
    """Of one quantity over some runs, as fractions of what was measured."""

    median: float
    mean: float
    p90: float
    bias: float
    """The median with its sign: below 0, forecasts are too fast."""


@dataclass(frozen=True, slots=True)
class OnOwnHost:
    """A run where the host's speed is known from another run of its file."""

    ttft_p50: Comparison
    tpot_p50: Comparison


@dataclass(frozen=True, slots=True)
class LoadErrors:
    """A class of load."""

    name: str
    num_runs: int
    ttft_p50: Errors | None
    tpot_p50: Errors | None
    num_known: int
    """Runs of files with a lighter load to take the host's speed from ..."""
    ttft_p50_known: Errors | None
    """... and their errors with that speed."""
    tpot_p50_known: Errors | None


def load_class(run: MeasuredRun) -> str | None:
    """The class of a run whose requests arrive over time."""
    if run.kind == STATIC or is_at_once(run.workload):
        return None
    if run.kind == PREFIX:
        return PREFIX
    return next(name for most, name in CLASSES if run.rate <= most)


def errors_of(pairs: Iterable[Comparison | None]) -> Errors | None:
    """Over those that are known."""
    errors = np.array([pair.error for pair in pairs if pair is not None])
    if not errors.size:
        return None
    sizes = np.abs(errors)
    return Errors(*map(float, (np.median(sizes), sizes.mean(), np.quantile(sizes, 0.9), np.median(errors))))


def on_own_host(runs: Sequence[tuple[Replica, MeasuredRun]]) -> list[OnOwnHost | None]:
    """Runs of one file with arrivals over time, each with its engine as it was before it, at the speed of the lightest.

    The lightest itself, and a file with a single load, tell nothing.
    """
    if len(runs) < 2:
        return [None] * len(runs)
    lightest = min(range(len(runs)), key=lambda index: (runs[index][1].kind == PREFIX, runs[index][1].rate))
    factor = _host_factor(*runs[lightest])
    return [None if index == lightest else _compare(factor, *each) for index, each in enumerate(runs)]


def _host_factor(replica: Replica, run: MeasuredRun) -> float:
    """How many times longer the host takes for the medians of a run to come out as they were measured."""

    def distance(factor: float) -> float:
        pair = _compare(factor, replica, run)
        return abs(float(np.log1p(pair.ttft_p50.error))) + abs(float(np.log1p(pair.tpot_p50.error)))

    return min(FACTORS, key=distance)


def _compare(factor: float, replica: Replica, run: MeasuredRun) -> OnOwnHost:
    measured, predicted = measured_summary(run), summary_of(simulate(slowed(replica, host=factor), run.workload))
    return OnOwnHost(*(Comparison(float(measured[at]), float(predicted[at])) for at in (TTFT_P50, TPOT_P50)))
