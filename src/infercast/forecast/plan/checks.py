"""Points around a plan's winner that a benchmark can check: plain requests at several rates, and their forecasts.

A benchmark of an engine sends prompts of one length at a rate. So the forecast beside it is of such requests, as long
as those of the question are on average, and not of the question's own workload.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.errors import InfercastError
from infercast.forecast.intervals.intervals import Intervals, forecast_intervals
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import deployed, own_timer
from infercast.forecast.plan.question import Question
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.system import System, system_of, two_pools
from infercast.serve.workload.synthetic import synthetic_workload

SHARES = (0.5, 0.8, 1.0, 1.2)
"""Of the question's rate."""
SECONDS, LEAST, MOST = 60.0, 100, 1000
"""Each rate is held for so long, with so many requests at least and at most."""


class Check(NamedTuple):
    """One benchmark, and what it should measure."""

    rate: float
    requests: int
    num_input: int
    num_output: int
    forecast: Forecast
    intervals: Intervals


def checks_of(question: Question, candidate: Candidate) -> list[Check]:
    """Benchmarks around the rate of a question; those that a candidate cannot serve are left out."""
    requests = question.workload.requests
    num_input, num_output = (
        max(1, round(sum(getattr(each, name) for each in requests) / len(requests)))
        for name in ("num_input", "num_output")
    )
    system, found = system_for(question, candidate), []
    for share in SHARES:
        rate = float(f"{share * question.rate:.3g}")
        count = int(min(MOST, max(LEAST, SECONDS * rate)))
        workload = synthetic_workload(rate=rate, count=count, input_lengths=num_input, output_lengths=num_output)
        try:
            forecast = simulate_system(system, workload)
        except InfercastError:
            continue
        found.append(Check(rate, count, num_input, num_output, forecast, forecast_intervals(forecast)))
    return found


def system_for(question: Question, candidate: Candidate) -> System:
    """All replicas of a candidate."""
    pools = [pool.unit for pool in candidate.pools]
    deployments = [deployed(question.site, unit) for unit in pools]
    counts = [pool.replicas for pool in candidate.pools]
    if candidate.prefill is None:
        return system_of(deployments[0], instances=counts[0], timer=own_timer(question.site, pools[0]))
    return two_pools(deployments[0], deployments[1], instances=(counts[0], counts[1]), link=question.link)
