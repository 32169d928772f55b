"""The data of a run's charts: distributions, load over time, kernels on the roofline, the slowest requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.engines.base import Deployment
from infercast.forecast.explain.breakdown import Breakdown, break_down
from infercast.forecast.explain.step_log import EngineRun, Watched
from infercast.forecast.intervals import Intervals
from infercast.forecast.kernels import Phase, StepCost, estimate_shape, step_calls, typical_shape
from infercast.forecast.result import Forecast
from infercast.forecast.run import PoolRun
from infercast.forecast.slo import Array
from infercast.forecast.steady import mean_in_system
from infercast.forecast.system import DECODE, PREFILL, busiest
from infercast.ops.op import tensor_rate_of
from infercast.serve.step import StepShape

NARROWEST = 1.2  # A histogram reaches at least from its middle over this to its middle times this


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    name: str
    family: str
    share: float  # Of the time of all steps of the phase, as in its table of kernel families
    intensity: float  # Operations a byte that must be moved
    flops_per_second: float
    limit: float  # What a kernel of this intensity and format could reach on this GPU
    dtype: str


@dataclass(frozen=True, slots=True)
class StepRoofline:
    phase: str
    num_prompts: int
    prompt_tokens: int  # Of each prompt, that are computed in the step
    num_decodes: int
    context: int  # Tokens before, of each sequence that decodes
    points: tuple[RooflinePoint, ...]  # Largest first; kernels that only move data have no place on it
    share: float  # Of the time of all steps that the points have together
    bandwidth: float
    peaks: dict[str, float]


def step_rooflines(pool: PoolRun) -> tuple[StepRoofline, ...]:
    """One for each phase of the busiest replica of a pool; a decode pool computes no prompts."""
    record, phases = busiest(pool.records), pool.phases
    return tuple(
        _roofline(phase, pool.deployment, typical_shape(record, record.phases[phase.name], pool.deployment.drafting))
        for phase in phases
        if pool.role != DECODE or phase.name == "decode"
    )


def _roofline(phase: Phase, deployment: Deployment, shape: StepShape) -> StepRoofline:
    gpu, cost = deployment.gpu, estimate_shape(deployment, shape)
    points, peaks = [], {}
    for call, kernel, share in zip(step_calls(deployment, shape).all, cost.kernels, _shares(phase, cost), strict=True):
        flops, moved = float(call.op.flops), float(call.op.bytes_read + call.op.bytes_written)
        if not flops:
            continue
        dtype = tensor_rate_of(call.op.compute_dtype)
        peaks[dtype] = gpu.dense_flops(dtype)
        intensity = flops / moved
        points.append(
            RooflinePoint(
                name=call.name, family=call.op.family, share=share, intensity=intensity,
                flops_per_second=flops / float(kernel.estimate.seconds),
                limit=min(peaks[dtype], intensity * gpu.dram_bandwidth), dtype=dtype,
            )
        )  # fmt: skip
    num_prompts = 0 if phase.name == "decode" else sum(tokens > 1 for tokens in shape.new_tokens)
    points.sort(key=lambda point: -point.share)
    return StepRoofline(
        phase=phase.name, num_prompts=num_prompts, prompt_tokens=shape.new_tokens[0] if num_prompts else 0,
        num_decodes=len(shape.new_tokens) - num_prompts, context=int(shape.computed[-1]), points=tuple(points),
        share=sum(point.share for point in points), bandwidth=gpu.dram_bandwidth, peaks=peaks,
    )  # fmt: skip


def _shares(phase: Phase, cost: StepCost) -> list[float]:
    """The share of each kernel of a step in the time of all steps; those of one name divide it as in this step."""
    spent = {name: seconds for family in phase.families for name, seconds in family.kernels}
    together: dict[str, float] = {}
    for kernel in cost.kernels:
        together[kernel.name] = together.get(kernel.name, 0.0) + kernel.seconds
    return [
        spent.get(kernel.name, 0.0) / phase.whole * kernel.seconds / together[kernel.name] if kernel.seconds else 0.0
        for kernel in cost.kernels
    ]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many requests had a latency between each edge and the next; edges are evenly apart in logarithms."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class LoadCurves:
    width: float
    times: list[float]  # The middle of each, in seconds after the first request was sent
    running: list[float]
    waiting: list[float]  # Requests that were sent and have not been started, on average
    output_tokens: list[float]
    kv_usage: list[float]  # Share of the KV blocks that sequences hold, at most


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One of the slowest first tokens, and where its time went."""

    number: int
    sent_at: float
    num_input: int
    num_cached: int
    ttft: float
    parts: dict[str, float]  # Seconds; they add up to the TTFT


@dataclass(frozen=True, slots=True)
class Overview:
    forecast: Forecast
    intervals: Intervals
    breakdown: Breakdown
    ttft: Histogram
    tpot: Histogram | None
    load: LoadCurves
    rooflines: tuple[tuple[StepRoofline, ...], ...]
    slowest: tuple[SlowRequest, ...]


def look_over(run: Watched) -> Overview:
    forecast, served = run.forecast, run.forecast.clients
    breakdown = break_down(run)
    return Overview(
        forecast=forecast, intervals=forecast.intervals, breakdown=breakdown, ttft=_histogram(served.ttft),
        tpot=_histogram(served.tpot) if served.tpot.size else None, load=load_curves(run),
        rooflines=tuple(map(step_rooflines, forecast.pools)), slowest=slowest_requests(breakdown),
    )  # fmt: skip


def _histogram(values: Array) -> Histogram:
    # Where all are much the same, bins are still wide enough to be seen.
    middle = float(np.sqrt(values.min() * values.max()))
    low = min(0.97 * float(values.min()), middle / NARROWEST)
    high = max(1.03 * float(values.max()), middle * NARROWEST)
    histogram_bins = 48
    edges = np.geomspace(low, high, histogram_bins + 1)
    return Histogram(edges.tolist(), np.histogram(values, edges)[0].tolist())


def load_curves(run: Watched, most_bins: int = 240) -> LoadCurves:
    """Averages over stretches; a request that is in the system for a part of one counts for that part."""
    engines, served = run.engines, run.forecast.clients
    start, most_steps = float(served.sent_at.min()), max(engine.log.num_steps for engine in engines)
    bins = int(min(most_bins, max(10, most_steps // 4)))
    edges = np.linspace(0.0, run.forecast.duration, bins + 1)
    width = float(edges[1])
    started = np.fmin(np.maximum(served.started_at, served.sent_at), served.first_token) - start
    sent, done = served.sent_at - start, served.last_token - start
    running = mean_in_system(started, done, edges)
    tokens, held = zip(*(_engine_curves(engine, start, edges, running) for engine in engines), strict=True)
    return LoadCurves(
        width=width, times=((edges[1:] + edges[:-1]) / 2).tolist(), running=running.tolist(),
        waiting=mean_in_system(sent, started, edges).tolist(), output_tokens=(sum(tokens) / width).tolist(),
        kv_usage=np.maximum.reduce(held).tolist(),
    )  # fmt: skip


def _engine_curves(engine: EngineRun, start: float, edges: Array, running: Array) -> tuple[Array, Array]:
    """Tokens of each stretch (none of a prefill pool: they are computed again), and the most blocks held."""
    steps, bins = engine.log.steps, edges.size - 1
    place = np.clip(np.searchsorted(edges, steps.ends - start, side="left") - 1, 0, bins - 1)
    held = np.zeros(bins)
    np.maximum.at(held, place, steps.held_blocks)
    # A step that is longer than a stretch ends in a later one: what it holds is held before, too.
    busy, seen = running > 0, np.bincount(place, minlength=bins) > 0
    following = np.minimum.accumulate(np.where(seen, np.arange(bins), bins)[::-1])[::-1]
    held = np.where(busy & ~seen & (following < bins), held[np.minimum(following, bins - 1)], held)
    sampled = steps.sampled * (engine.pool.role != PREFILL)
    return np.bincount(place, sampled, minlength=bins), held / engine.replica.num_blocks


def slowest_requests(breakdown: Breakdown) -> tuple[SlowRequest, ...]:
    parts, forecast = breakdown.first_tokens, breakdown.forecast
    requests, served = forecast.workload.requests, forecast.per_request()
    sent_at, num_cached = served["sent_s"], served["cached_tokens"]
    return tuple(
        SlowRequest(
            number=index, sent_at=float(sent_at[index] - sent_at.min()), num_input=requests[index].num_input,
            num_cached=int(num_cached[index]), ttft=float(parts.total[position]),
            parts={name: float(part[position]) for name, part in parts.parts.items()},
        )
        for position in np.argsort(-parts.total, kind="stable")[:10].tolist()
        for index in (int(parts.requests[position]),)
    )  # fmt: skip
