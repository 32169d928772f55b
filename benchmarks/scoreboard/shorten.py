"""Fewer requests of a long closed loop: the first of each client, and enough of the rest to show how it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.forecast.system import System
from infercast.serve.record import ServedRequests
from published.compare import results_of
from published.run import PublishedRun

Array = npt.NDArray[Any]
TURNS, LEAST = 5, 64
"""Requests of each client that are simulated, and in all, of a loop that has more ..."""
TURNS_STEP_BY_STEP, LEAST_STEP_BY_STEP = 2, 32
"""... and where no stretch of steps can be jumped over, which takes ten times as long."""


def shortened(run: PublishedRun, system: System) -> PublishedRun:
    """The run with the first requests of a closed loop, which `weighed` lets stand for all of them."""
    pool, clients, count = system.pools[0], run.workload.concurrency, len(run.workload.requests)
    if clients is None or any(request.prefix for request in run.workload.requests):
        return run  # prompts that come again are found in the cache later on
    plain = pool.replica.stages is None and pool.replica.policy.repeats and not pool.engines.lockstep
    most = max(TURNS * clients, LEAST) if plain else max(TURNS_STEP_BY_STEP * clients, LEAST_STEP_BY_STEP)
    if count <= most:
        return run
    assumed = f"the first {most:,} of {count:,} requests are simulated, and the rest is like the last of them"
    workload = replace(run.workload, requests=run.workload.requests[:most])
    return replace(run, workload=workload, assumptions=(*run.assumptions, assumed))


def weighed(run: PublishedRun, whole: PublishedRun) -> Callable[[ServedRequests], Array]:
    """What the ``whole`` run shows, as its source has it, from a simulation of the shortened one."""
    summed_up, clients, count = results_of(run), run.workload.concurrency, len(whole.workload.requests)
    if clients is None or count == len(run.workload.requests):
        return summed_up

    def of_all(served: ServedRequests) -> Array:
        found = summed_up(served)
        if served.sent_at.size <= clients:
            return found
        latencies, rate = _all_of_them(served, clients, count, median=run.median)
        if run.gaps:
            latencies[1] = found[1]
        return np.array([*latencies, rate * run.copies])

    return of_all


def _all_of_them(served: ServedRequests, clients: int, count: int, *, median: bool) -> tuple[list[float], float]:
    """Latencies and tokens a second of all requests: later ones of those simulated stand for the rest."""
    simulated = served.sent_at.size
    order = np.argsort(served.sent_at, kind="stable")
    weights = np.ones(simulated)
    weights[order[clients:]] = (count - clients) / (simulated - clients)
    several = served.num_output > 1
    every = ((served.ttft, weights), (served.tpot, weights[several]), (served.end_to_end, weights))
    middle = _weighted_median if median else np.average
    latencies = [float(middle(values, weights=each)) if values.size else np.nan for values, each in every]
    # Every client has a request under way at any time, until the last ones are alone.
    middle_ones = order[clients : simulated - clients] if simulated > 2 * clients else order[clients:]
    between = float(served.end_to_end[middle_ones].mean()) / clients
    duration = float(served.last_token.max() - served.sent_at.min()) + (count - simulated) * between
    return latencies, float(np.sum(served.num_output * weights)) / duration


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
