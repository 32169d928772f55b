"""Fewer requests of a long closed loop: the first of each client, and enough of the rest to show how it goes on."""

from __future__ import annotations

from dataclasses import replace

from infercast.forecast.system import System
from infercast.validate.published.run import PublishedRun

TURNS, LEAST = 5, 64
"""So many requests of each client are simulated, and so many in all, of a loop that has more ..."""
TURNS_STEP_BY_STEP, LEAST_STEP_BY_STEP = 2, 32
"""... and where no stretch of steps can be jumped over, which takes ten times as long."""


def shortened(run: PublishedRun, system: System) -> PublishedRun:
    """The run with the first requests of a closed loop, which are then weighed to stand for all of them."""
    pool, clients, count = system.pools[0], run.workload.concurrency, len(run.workload.requests)
    if clients is None:
        return run
    plain = pool.replica.stages is None and pool.replica.policy.repeats and not pool.engines.lockstep
    most = max(TURNS * clients, LEAST) if plain else max(TURNS_STEP_BY_STEP * clients, LEAST_STEP_BY_STEP)
    if count <= most:
        return run
    assumed = f"the first {most:,} of {count:,} requests are simulated, and the rest is like the last of them"
    workload = replace(run.workload, requests=run.workload.requests[:most])
    return replace(run, workload=workload, stand_for=count, assumptions=(*run.assumptions, assumed))
