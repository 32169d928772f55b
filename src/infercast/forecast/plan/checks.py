"""Points around a plan's winner that a benchmark can check: plain requests at several rates, and their forecasts.

A benchmark of an engine sends prompts of one length at a rate. So the forecast beside it is of such requests, as long
as those of the question are on average, and not of the question's own workload.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.errors import InfercastError
from infercast.forecast.intervals.intervals import Intervals, forecast_intervals
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import own_timer
from infercast.forecast.plan.evaluate import system_for
from infercast.forecast.plan.question import Question
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.serve.workload.redraw import dealt_out
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
    """Of one of ``times`` equal parts, each of which gets its share of the requests."""
    intervals: Intervals
    times: int = 1


def checks_of(question: Question, candidate: Candidate) -> list[Check]:
    """Benchmarks around the rate of a question; those that a candidate cannot serve are left out."""
    requests = question.workload.requests
    num_input, num_output = (
        max(1, round(sum(getattr(each, name) for each in requests) / len(requests)))
        for name in ("num_input", "num_output")
    )
    timers = [own_timer(question.site, pool.unit) for pool in candidate.pools]
    system, times = system_for(candidate, question, timers)
    found = []
    for share in SHARES:
        rate = float(f"{share * question.rate:.3g}")
        count = int(min(MOST, max(LEAST, SECONDS * rate)))
        workload = synthetic_workload(rate=rate, count=count, input_lengths=num_input, output_lengths=num_output)
        try:
            forecast = simulate_system(system, workload if times == 1 else dealt_out(workload, times))
        except InfercastError:
            continue
        found.append(Check(rate, count, num_input, num_output, forecast, forecast_intervals(forecast), times))
    return found
