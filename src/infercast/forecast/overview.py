"""A run as a picture would show it: distributions, load over time, kernels on the roofline, the slowest requests."""

from __future__ import annotations

import numpy as np

from infercast.forecast.breakdown import Breakdown, WatchedRun, break_down
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.rooflines import StepRoofline, step_rooflines
from infercast.forecast.serving import Forecast
from infercast.forecast.step_log import Array
from infercast.records import dataclass

MOST_BINS = 240
"""Moments at which load is shown."""
HISTOGRAM_BINS = 48
SHOWN_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many requests had a latency between each edge and the next; edges are evenly apart in logarithms."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class LoadCurves:
    """What went on in each of many equal stretches of the run; lists of equal length."""

    width: float
    """Seconds of one stretch."""
    times: list[float]
    """The middle of each, in seconds after the first request was sent."""
    running: list[float]
    """Requests that are being computed, on average."""
    waiting: list[float]
    """Requests that were sent and have not been started, on average."""
    arrivals: list[float]
    """Requests sent a second."""
    output_tokens: list[float]
    """Tokens produced a second."""
    kv_usage: list[float]
    """Share of the KV blocks that sequences hold, at most."""


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One of the slowest first tokens, and where its time went."""

    number: int
    sent_at: float
    num_input: int
    num_cached: int
    ttft: float
    parts: dict[str, float]
    """Seconds; they add up to the TTFT."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All that a report of one run shows."""

    forecast: Forecast
    intervals: Intervals
    breakdown: Breakdown
    ttft: Histogram
    tpot: Histogram | None
    load: LoadCurves
    rooflines: tuple[StepRoofline, ...]
    slowest: tuple[SlowRequest, ...]


def look_over(run: WatchedRun, intervals: Intervals | None = None) -> Overview:
    """Everything that is worth showing of a run."""
    forecast = run.forecast
    breakdown = break_down(run)
    return Overview(
        forecast=forecast,
        intervals=intervals or forecast_intervals(forecast),
        breakdown=breakdown,
        ttft=_histogram(forecast.record.ttft),
        tpot=_histogram(forecast.record.tpot) if forecast.record.tpot.size else None,
        load=_load_curves(run),
        rooflines=step_rooflines(forecast),
        slowest=_slowest(forecast, breakdown),
    )


def _histogram(values: Array) -> Histogram:
    low, high = 0.97 * float(values.min()), 1.03 * float(values.max())
    edges = np.geomspace(low, high, HISTOGRAM_BINS + 1)
    return Histogram(edges.tolist(), np.histogram(values, edges)[0].tolist())


def _load_curves(run: WatchedRun) -> LoadCurves:
    """Averages over stretches; a request that is in the system for a part of one counts for that part."""
    forecast, record, steps = run.forecast, run.forecast.record, run.log.steps
    start = float(record.sent_at.min())
    bins = int(min(MOST_BINS, max(10, steps.ends.size // 4)))
    edges = np.linspace(0.0, forecast.duration, bins + 1)
    width = float(edges[1])
    started = np.fmin(np.maximum(record.started_at, record.sent_at), record.first_token) - start
    sent, done = record.sent_at - start, record.last_token - start
    ends = steps.ends - start
    place = np.clip(np.searchsorted(edges, ends, side="left") - 1, 0, bins - 1)
    held = np.zeros(bins)
    np.maximum.at(held, place, steps.held_blocks)
    running = _mean_count(started, done, edges)
    # A step that is longer than a stretch ends in a later one: what it holds is held before, too.
    busy, seen = running > 0, np.bincount(place, minlength=bins) > 0
    following = np.minimum.accumulate(np.where(seen, np.arange(bins), bins)[::-1])[::-1]
    held = np.where(busy & ~seen & (following < bins), held[np.minimum(following, bins - 1)], held)
    return LoadCurves(
        width=width,
        times=((edges[1:] + edges[:-1]) / 2).tolist(),
        running=running.tolist(),
        waiting=_mean_count(sent, started, edges).tolist(),
        arrivals=(np.histogram(sent, edges)[0] / width).tolist(),
        output_tokens=(np.bincount(place, steps.sampled, minlength=bins) / width).tolist(),
        kv_usage=(held / forecast.replica.num_blocks).tolist(),
    )


def _mean_count(begin: Array, end: Array, edges: Array) -> Array:
    """How many of the intervals cover each stretch between two edges, on average."""
    begins, ends = np.sort(begin), np.sort(end)
    return np.asarray(np.diff(_covered(begins, edges) - _covered(ends, edges)) / np.diff(edges))


def _covered(moments: Array, edges: Array) -> Array:
    """The sum over all moments (in order) of the time from each to each edge, where it is later."""
    sums = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, edges, side="right")
    return np.asarray(count * edges - sums[count])


def _slowest(forecast: Forecast, breakdown: Breakdown) -> tuple[SlowRequest, ...]:
    parts, record = breakdown.first_tokens, forecast.record
    return tuple(
        SlowRequest(
            number=index,
            sent_at=float(record.sent_at[index] - record.sent_at.min()),
            num_input=forecast.workload.requests[index].num_input,
            num_cached=int(record.num_cached[index]),
            ttft=float(parts.total[position]),
            parts={name: float(part[position]) for name, part in parts.parts.items()},
        )
        for position in np.argsort(-parts.total, kind="stable")[:SHOWN_REQUESTS].tolist()
        for index in (int(parts.requests[position]),)
    )
