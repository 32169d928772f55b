"""Where the time of a run went: kernels, communication, the host, and nothing to do. The parts add up to the run.

Replicas, and the stages of a pipeline, work side by side: their seconds are added up, so that the parts of a run on
two replicas of two stages add up to four times its duration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from infercast.forecast.asking import Asked, Deployable, Servable, asked_run
from infercast.forecast.deploy import GpuSource
from infercast.forecast.explain.composition import Composition, compose, pooled
from infercast.forecast.explain.request_parts import (
    RequestParts,
    first_token_parts,
    joined,
    later_token_parts,
    taken_in_parts,
    through_both,
)
from infercast.forecast.explain.step_log import KINDS, Array, EngineRun, StagedLog, kernels_of
from infercast.forecast.explain.watched import Watched, watch_run
from infercast.forecast.result import Forecast
from infercast.forecast.system import DECODE, system_of
from infercast.forecast.telling import told_progress
from infercast.serve import Record
from infercast.serve.watching import Progress
from infercast.shown import Answer
from infercast.units import format_seconds

WAITS = ("GPU waits for host", "GPU waits for host or other stages")
"""Without and with a pipeline."""


@dataclass(frozen=True, slots=True)
class KernelPart:
    """One kernel, or what all steps have beside their kernels."""

    name: str
    family: str
    seconds: dict[str, float]
    """In steps of each kind."""

    @property
    def total(self) -> float:
        """In all steps."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True, repr=False)
class Breakdown(Answer):
    """A run from the first request sent to the last token received, second by second."""

    duration: float
    """Seconds from the first request sent to the last token received."""
    side_by_side: int
    """Number of replicas times stages: the parts add up to so many durations."""
    steps: dict[str, int]
    """Number of steps of each kind."""
    kernels: tuple[KernelPart, ...]
    """Largest first."""
    host: KernelPart
    """A GPU stood still although its replica had requests: it waited for its host or another stage, or tokens were on
    their way."""
    idle_seconds: float
    """Seconds in which no request was on the replica."""
    first_tokens: RequestParts
    later_tokens: RequestParts | None
    """None where no request has a second token."""
    composition: Composition | None
    """None where no request has a second token, and for pipelines: tokens of a request are steps apart there."""

    def _words(self) -> str:
        steps = ", ".join(f"{count:,} {kind}" for kind, count in self.steps.items())
        return f"{format_seconds(self.duration)}: steps {steps}"

    @property
    def whole(self) -> float:
        """The seconds of all that works side by side."""
        return self.side_by_side * self.duration

    @property
    def parts_sum(self) -> float:
        """Seconds of all parts together; the same as the whole, but for rounding."""
        return sum(kernel.total for kernel in self.kernels) + self.host.total + self.idle_seconds


def explain_run(
    deployment: Deployable,
    workload: Servable = None,
    *,
    gpu: GpuSource | None = None,
    router: str | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[Asked],
) -> tuple[Forecast, Breakdown]:
    """Simulate a workload and say where every second of it went; names do as in `simulate`."""
    found, load = asked_run(deployment, workload, gpu, options)
    with told_progress(progress, len(load.requests)) as tell:
        run = watch_run(system_of(found, router), load, progress=tell)
    return run.forecast, break_down(run)


def break_down(run: Watched) -> Breakdown:
    """What the logs of a run say."""
    forecast, engines = run.forecast, run.engines
    stages = [pool.deployment.layout.pipeline for pool in forecast.pools]
    start = min(float(np.nanmin(engine.record.sent_at)) for engine in engines)
    end = max(float(np.nanmax(engine.record.last_token)) for engine in engines)
    idle = [_idle_spans(engine.record, start, end) for engine in engines]
    idle_seconds = 0.0
    for pool, count in zip(forecast.pools, stages, strict=True):
        used = [spans for engine, spans in zip(engines, idle, strict=True) if engine.pool is pool.pool]
        unused = (len(pool.records) - len(used)) * (end - start)
        idle_seconds += count * (sum(float((spans[:, 1] - spans[:, 0]).sum()) for spans in used) + unused)
    kinds = [engine.log.steps.kind for engine in engines]
    laters = [each for engine in engines if (each := later_token_parts(engine.record, engine.log)) is not None]
    one_stage = [engine for engine in engines if engine.pool.deployment.layout.pipeline == 1]
    composed = [compose(engine.record, engine.log, engine.timer) for engine in one_stage]
    known = [each for each in composed if each is not None]
    hosts = [_waits(engine, start, end, spans) for engine, spans in zip(engines, idle, strict=True)]
    return Breakdown(
        duration=forecast.duration,
        side_by_side=sum(count * len(pool.records) for count, pool in zip(stages, forecast.pools, strict=True)),
        steps={kind: sum(int((each == number).sum()) for each in kinds) for number, kind in enumerate(KINDS)},
        kernels=_kernels(engines),
        host=KernelPart(WAITS[max(stages) > 1], "host", {kind: sum(each[kind] for each in hosts) for kind in KINDS}),
        idle_seconds=idle_seconds,
        first_tokens=_first_tokens(run),
        later_tokens=joined(laters) if laters else None,
        composition=(known[0] if len(known) == 1 else pooled(known)) if known else None,
    )


def _first_tokens(run: Watched) -> RequestParts:
    """Where the time to first token went, through all pools."""
    workload, link = run.forecast.workload, run.forecast.link
    parts = joined([first_token_parts(engine, workload) for engine in run.engines if engine.pool.role != DECODE])
    if link is None:
        return parts
    taken_in = joined([taken_in_parts(engine) for engine in run.engines if engine.pool.role == DECODE])
    return through_both(parts, taken_in, link.handover)


def _kernels(engines: Iterable[EngineRun]) -> tuple[KernelPart, ...]:
    """Seconds of each kernel in steps of each kind; kernels of one name in several tables are one."""
    found: dict[tuple[str, str], Array] = {}
    for engine in engines:
        steps, names = engine.log.steps, kernels_of(engine.timer)
        sums = np.zeros((len(KINDS), len(names)))
        for part, seconds in steps.kernels(engine.timer):
            for number in range(len(KINDS)):
                sums[number] += seconds[steps.kind[part] == number].sum(axis=0)
        for kernel, seconds in zip(names, sums.T, strict=True):
            found[kernel] = found.get(kernel, 0.0) + seconds
    parts = [
        KernelPart(name, family, dict(zip(KINDS, seconds.tolist(), strict=True)))
        for (name, family), seconds in found.items()
        if seconds.sum() > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.total))


def _waits(engine: EngineRun, start: float, end: float, idle: Array) -> dict[str, float]:
    """Seconds before each step's kernels in which a GPU stood still though there were requests, on every stage.

    What comes after the last step is its tokens' way to their clients, and belongs to it.
    """
    steps = engine.log.steps
    waits = np.zeros(steps.ends.size)
    for begins, ends in np.moveaxis(steps.by_stage, 1, 0).transpose(0, 2, 1):
        before = np.concatenate([[start], ends[:-1]])
        waits += np.maximum(begins - before, 0.0) - _overlap(before, begins, idle)
        last, run_end = ends[-1:], np.array([end])
        waits[-1] += float((run_end - last - _overlap(last, run_end, idle))[0])
    if isinstance(engine.log, StagedLog):  # a stage may hold a step longer than its kernels take
        waits += (steps.by_stage[:, :, 1] - steps.by_stage[:, :, 0]).sum(axis=1) - steps.gpu_seconds
    return {kind: float(waits[steps.kind == number].sum()) for number, kind in enumerate(KINDS)}


def _idle_spans(record: Record, start: float, end: float) -> Array:
    """(from, to) of the stretches of the run in which no request was on the replica."""
    served = np.flatnonzero(~np.isnan(record.last_token))
    order = served[np.argsort(record.sent_at[served], kind="stable")]
    sent = np.append(record.sent_at[order], end)
    answered = np.concatenate([[start], np.maximum.accumulate(record.last_token[order])])
    gaps = sent > answered
    return np.stack([answered[gaps], sent[gaps]], axis=1)


def _overlap(starts: Array, ends: Array, spans: Array) -> Array:
    """How much of each interval lies in any of the spans, which are apart and in order."""
    lengths = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def covered(times: Array) -> Array:
        position = np.searchsorted(spans[:, 0], times)
        before = np.maximum(position - 1, 0)
        beyond = np.maximum(spans[before, 1] - times, 0.0) if len(spans) else np.zeros(times.size)
        return np.asarray(lengths[position] - np.where(position > 0, beyond, 0.0))

    return covered(np.maximum(ends, starts)) - covered(starts)
