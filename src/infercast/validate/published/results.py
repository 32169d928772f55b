"""What a simulated run is summed up to, as its source did: means or medians, over all of it or while it was full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.latency import percentiles
from infercast.serve.fleet.served import Served
from infercast.validate.published.run import PublishedRun

Array = npt.NDArray[Any]
SETTLED = 0.5
"""An open loop without an end is looked at from this share of its time on."""
LEAST_STEADY = 0.1
"""A run that was full for a smaller share of its time is summed up as a whole."""


def results_of(run: PublishedRun) -> Callable[[Served], Array]:
    """TTFT, TPOT, time to the last token and output tokens a second, as the source of a run has them."""

    def summed_up(served: Served) -> Array:
        found = _summed_up(served, np.median if run.median else np.mean)
        clients = run.workload.concurrency or 0
        if run.stand_for and served.sent_at.size > clients:
            found = _all_of_them(served, clients, run.stand_for, median=run.median)
        window = None
        if run.steady and (last := float(served.sent_at.max())) > float(served.sent_at.min()):
            window = SETTLED * last, last
            found = _summed_up(served, np.median if run.median else np.mean, served.sent_at >= window[0])
        elif run.steady:
            window = _full_from_to(served)
        if run.gaps:
            found[1] = _median_gap(served, window)
        if window is not None:
            found[3] = _tokens_between(served, *window) / (window[1] - window[0])
        found[3] *= run.copies
        return found

    return summed_up


def means_of(served: Served) -> Array:
    """Mean TTFT, TPOT and time to the last token, and output tokens a second."""
    return _summed_up(served, np.mean)


def _summed_up(served: Served, middle: Callable[..., Any], chosen: Array | None = None) -> Array:
    duration = float(served.last_token.max() - served.sent_at.min())
    every = [served.ttft, served.tpot, served.end_to_end]
    if chosen is not None:
        every = [served.ttft[chosen], served.tpot[chosen[served.num_output > 1]], served.end_to_end[chosen]]
    latencies = [float(middle(values)) if values.size else np.nan for values in every]  # one token has no second one
    return np.array([*latencies, float(served.num_output.sum()) / duration])


def _all_of_them(served: Served, clients: int, count: int, *, median: bool) -> Array:
    """What all requests of a closed loop show, of which the first are simulated: those that come after the first of
    each client stand for the rest.
    """
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
    tokens = float(np.sum(served.num_output * weights))
    return np.array([*latencies, tokens / duration])


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])


def _full_from_to(served: Served) -> tuple[float, float] | None:
    """From when on all that can run at once did until nobody waits: the last of the first prompts to the last start."""
    begin, last = float(served.sent_at.min()), float(served.last_token.max())
    until = float(served.started_at.max())
    ended = float(served.last_token.min())
    first = served.first_token[served.started_at <= ended]
    since = min(float(first.max()), ended) if first.size else begin
    return (since, until) if until - since > LEAST_STEADY * (last - begin) else None


def _tokens_between(served: Served, since: float, until: float) -> float:
    """Tokens that came in that time."""
    ended, _, counts = served.timed_gaps
    within = (ended > since) & (ended <= until)
    first = (served.first_token > since) & (served.first_token <= until)
    return float(counts[within].sum() + np.count_nonzero(first))


def _median_gap(served: Served, window: tuple[float, float] | None) -> float:
    """The median of all times between tokens, of those in a time where one is given."""
    ended, gaps, counts = served.timed_gaps
    if window is not None and np.any(within := (ended > window[0]) & (ended <= window[1])):
        gaps, counts = gaps[within], counts[within]
    return float(percentiles(gaps, counts).p50) if gaps.size else np.nan
