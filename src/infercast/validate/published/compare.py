"""Forecasts held against published runs: the stated engine, the stated load, means against means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.errors import InfercastError, InputError
from infercast.forecast.intervals.intervals import system_half_widths
from infercast.forecast.intervals.odds import slower_by
from infercast.forecast.intervals.uncertainty import EIGHTY, uncertainty_of
from infercast.forecast.system import System, busiest, system_of
from infercast.validate.parts import Comparison
from infercast.validate.published.deployments import set_up
from infercast.validate.published.results import results_of
from infercast.validate.published.run import PublishedRun

QUANTITIES = ("ttft", "tpot", "end_to_end", "output_tokens_per_second")


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """One run; times in seconds. A quantity that was not published, or cannot be judged, is None."""

    run: PublishedRun
    ttft: Comparison | None = None
    tpot: Comparison | None = None
    end_to_end: Comparison | None = None
    output_tokens_per_second: Comparison | None = None
    problem: str = ""
    """Why there is no forecast."""
    slower: float = 0.0
    """How much slower than forecast the middle of what such a run shows is (`slower_by`)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of one quantity over some runs."""

    count: int
    median: float
    mean: float
    p90: float
    bias: float
    """Median of the signed errors."""
    inside: float
    """Share of the measured values in the 80 % intervals that `simulate` shows of the same runs ..."""
    width: float
    """... and their mean half width, as a fraction of the forecasts."""


def compare_published(
    runs: Iterable[PublishedRun],
    *,
    predictor: str = "learned",
    host: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[PublishedComparison, ...]:
    """Simulate every run; one that we refuse to simulate is kept with the reason."""
    compared = []
    for run in runs:
        if progress is not None:
            progress(run.run_id)
        try:
            if run.problem:
                raise InputError(run.problem)
            ready, deployment = set_up(run, predictor, host)
            compared.append(compare_run(ready, system_for(ready, deployment)))
        except InfercastError as problem:
            compared.append(PublishedComparison(run, problem=str(problem)))
    return tuple(compared)


def summarise(compared: Iterable[PublishedComparison], quantity: str) -> Summary | None:
    """Errors of one quantity; None where no run tells it."""
    pairs = [pair for each in compared if (pair := getattr(each, quantity)) is not None]
    errors = np.array([pair.error for pair in pairs])
    if not errors.size:
        return None
    sizes = np.abs(errors)
    return Summary(
        count=errors.size,
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(errors)),
        inside=float(np.mean([bool(pair.is_inside) for pair in pairs])),
        width=float(np.mean([pair.width or 0.0 for pair in pairs])),
    )


def system_for(run: PublishedRun, deployment: Deployment) -> System:
    """All servers of a run."""
    return system_of(deployment, instances=run.instances)


def compare_run(run: PublishedRun, system: System) -> PublishedComparison:
    """What a simulated run shows beside what was published."""
    deployment = system.pools[0].deployment
    served = system.serve(run.workload)
    uncertainty = uncertainty_of(deployment, busiest(served.records[0]), run.version)
    slower = slower_by([deployment], run.workload, run.version)
    summed_up = results_of(run)
    predicted = summed_up(served.clients)
    widths = system_half_widths(system, run.workload, [uncertainty], summed_up, np.zeros(predicted.size))
    slower_in = [slower, slower, slower, -slower]
    pairs = (
        None
        if (measured := getattr(run, name)) is None or np.isnan(value)
        else Comparison(measured, value, width, width * moved / EIGHTY)
        for name, value, width, moved in zip(
            QUANTITIES, predicted.tolist(), widths.together.tolist(), slower_in, strict=True
        )
    )
    ttft, tpot, end_to_end, rate = pairs
    return PublishedComparison(run, ttft, tpot, end_to_end, rate, slower=slower)
