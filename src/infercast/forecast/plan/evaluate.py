"""What users would see of one candidate: a pure function of the candidate and the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.timer import KernelTimer
from infercast.errors import InfercastError
from infercast.forecast.explain.phases import Phase, host_bound_share
from infercast.forecast.intervals.intervals import forecast_intervals
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.deployed import deployed, own_timer
from infercast.forecast.plan.power import beyond_budget, drawn_of
from infercast.forecast.plan.question import Question
from infercast.forecast.plan.result import Figures, Row, Stage
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import QUANTITIES, Slo, attainment, counted, odds, value_of
from infercast.forecast.system import System, system_of, two_pools
from infercast.serve.fleet.served import Served
from infercast.serve.workload.redraw import dealt_out
from infercast.units import format_percent

Array = npt.NDArray[Any]

CLEARLY = 0.75
"""A run that is to decide its own length is of no interest where its first requests keep so little of a limit."""
FULL = 0.95
"""Share of the KV cache from which on it is what limits."""


def evaluate(candidate: Candidate, question: Question, *, medians: bool = True) -> Row:
    """Simulate the whole workload on a candidate, without intervals; without ``medians`` just for what is promised."""
    return _row(candidate, question, intervals=False, medians=medians)


def evaluate_closely(candidate: Candidate, question: Question) -> Row:
    """The same with intervals and the odds that follow from them."""
    return _row(candidate, question, intervals=True)


def _row(candidate: Candidate, question: Question, *, intervals: bool, medians: bool = True) -> Row:
    cost = question.cost(candidate)
    try:
        timers = [own_timer(question.site, pool.unit) for pool in candidate.pools]
        system, times = system_for(candidate, question, timers)
        workload = question.workload if times == 1 else dealt_out(question.workload, times)
        run = system.serve(workload)
        room, tightest = served_headroom(run.clients, question.slo)
        if room <= (CLEARLY if workload.open_ended else 1.0) and not intervals:
            # Whether it could keep up in the long run, which takes as long again, no longer matters.
            return Row(
                candidate, Stage.SIMULATED, cost, headroom=room, reason=f"misses {tightest} by {100 / room - 100:.0f} %"
            )
        forecast = replace(
            simulate_system(system, workload, run=run, slo=question.slo, medians=medians), facility=question.facility
        )
    except InfercastError as problem:
        return Row(candidate, Stage.REFUSED, cost, reason=str(problem))
    figures = figures_of(forecast, question.slo, times, intervals=intervals)
    if question.least_odds:
        if figures.odds is None and figures.holds:
            figures = figures_of(forecast, question.slo, times, intervals=True)
        figures = replace(figures, asked_odds=question.least_odds)
    cost = question.whole_cost(candidate, figures.drawn)
    beyond = beyond_budget(question, cost, figures.drawn)
    return Row(candidate, Stage.SIMULATED, cost, replace(figures, beyond=beyond), figures.headroom, beyond)


def system_for(candidate: Candidate, question: Question, timers: Sequence[KernelTimer]) -> tuple[System, int]:
    """What is simulated of a candidate with these step timers, and how many of it there are.

    Replicas whose copies step together are too many to be simulated together: one of them gets its share of the
    requests. All others are simulated behind the engine's load balancer.
    """
    pools = candidate.pools
    units = [deployed(question.site, pool.unit) for pool in pools]
    if len(units) == 1:
        together = 1 if units[0].shares_experts else candidate.replicas
        return system_of(units[0], instances=together, timer=timers[0]), candidate.replicas // together
    instances = pools[0].replicas, pools[1].replicas
    return two_pools(*units, instances=instances, link=question.link, timers=(timers[0], timers[1])), 1


def short_headroom(question: Question, candidate: Candidate, timers: Sequence[KernelTimer], count: int) -> float:
    """The headroom that the first ``count`` requests see: quick, and mostly too good, as the queue begins empty."""
    system, times = system_for(candidate, question, timers)
    workload = question.workload if times == 1 else dealt_out(question.workload, times)
    served = system.serve(replace(workload, requests=workload.requests[:count], drawn=None)).clients
    return served_headroom(served, question.slo)[0]


def served_headroom(served: Served, slo: Slo) -> tuple[float, str]:
    """The smallest limit / what requests saw, and the name of that limit."""
    rooms = []
    for limit in slo.limits:
        values: Array = getattr(served, QUANTITIES[limit.quantity])
        if values.size:
            value = values.mean() if limit.percentile is None else np.percentile(values, limit.percentile)
            rooms.append((limit.seconds / max(float(value), 1e-12), limit.name))
    return min(rooms, default=(inf, ""))


def figures_of(forecast: Forecast, slo: Slo, times: int = 1, *, intervals: bool = False) -> Figures:
    """What a plan says of a forecast, of which there are so ``many`` side by side."""
    rooms = {limit.name: limit.seconds / max(value_of(forecast, limit), 1e-12) for limit in slo.limits}
    tightest = min(rooms, key=lambda name: rooms[name])
    bands = forecast_intervals(forecast) if intervals else None
    capacity, share = forecast.state.capacity, attainment(forecast.clients, slo, counted(forecast))
    return Figures(
        ttft=forecast.ttft,
        tpot=forecast.tpot,
        end_to_end=forecast.end_to_end,
        output_tokens_per_second=times * forecast.output_tokens_per_second,
        requests_per_second=times * forecast.requests_per_second,
        attainment=share,
        goodput=times * share * forecast.requests_per_second,
        headroom=rooms[tightest],
        tightest=tightest,
        state=forecast.state.word,
        capacity=None if capacity is None else times * capacity,
        busy=max(load.busy for load in forecast.engines),
        kv_peak=forecast.kv_usage.peak,
        bottleneck=bottleneck(forecast),
        source=forecast.source,
        intervals=bands,
        odds=None if bands is None else odds(forecast, slo, bands),
        drawn=drawn_of(forecast, times),
    )


def bottleneck(forecast: Forecast) -> str:
    """What limits a run, in a few words."""
    if forecast.saturation is not None:
        return f"more arrives than can be served: {forecast.saturation.capacity:.3g} requests/s"
    if forecast.kv_usage.peak >= FULL and forecast.waiting.peak > 0:
        return f"the KV cache: {format_percent(forecast.kv_usage.peak)} in use at most"
    share = host_bound_share(forecast.phases)
    if share > 0.5:
        return f"the host: GPUs wait for it in {format_percent(share)} of the time of steps"
    longest = max(forecast.phases, key=lambda phase: phase.whole)
    return _largest(longest)


def _largest(phase: Phase) -> str:
    family = max(phase.families, key=lambda each: each.seconds)
    steps = "steps with prompts" if phase.name == "prefill" else "steps that decode"
    held = f", bound by {family.bound}" if family.bound else ""
    return f"{family.family} in {steps}: {format_percent(family.share)} of their GPU time{held}"
