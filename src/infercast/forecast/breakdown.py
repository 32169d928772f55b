"""Where the time of a run went: kernels, communication, the host, and nothing to do. The parts add up to the run."""

from __future__ import annotations

import numpy as np

from infercast.engine.deployment import Deployment
from infercast.engine.timer import KernelTimer
from infercast.errors import InputError
from infercast.forecast.composition import Composition, compose
from infercast.forecast.request_parts import RequestParts, first_token_parts, later_token_parts
from infercast.forecast.serving import Forecast, simulate
from infercast.forecast.step_log import KINDS, Array, EngineRun, StepLog, Steps, new_log
from infercast.records import dataclass
from infercast.serve import Record, Workload
from infercast.serve.state import Progress


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run, and what is needed to say where its time went."""

    forecast: Forecast
    timer: KernelTimer
    log: StepLog

    @property
    def engines(self) -> tuple[EngineRun, ...]:
        """The one engine of the run."""
        return (EngineRun(self.forecast.record, self.forecast.replica, self.timer, self.log),)


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


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A run from the first request sent to the last token received, second by second."""

    duration: float
    steps: dict[str, int]
    """Of each kind."""
    kernels: tuple[KernelPart, ...]
    """Largest first."""
    host: KernelPart
    """The GPU stood still although there were requests: it waited for its host, or tokens were on their way."""
    idle_seconds: float
    """No request was in the system."""
    first_tokens: RequestParts
    later_tokens: RequestParts | None
    """None where no request has a second token."""
    composition: Composition | None

    @property
    def parts_sum(self) -> float:
        """All parts together; the same as the duration, but for rounding."""
        return sum(kernel.total for kernel in self.kernels) + self.host.total + self.idle_seconds


def explain_run(
    deployment: Deployment, workload: Workload, *, progress: Progress | None = None
) -> tuple[Forecast, Breakdown]:
    """Simulate a workload and say where every second of it went."""
    check_in_order(deployment)
    run = watch_run(deployment, workload, progress=progress)
    return run.forecast, break_down(run)


def check_in_order(deployment: Deployment) -> None:
    """Refuse what a breakdown cannot follow."""
    layout = deployment.layout
    if layout.pipeline > 1 or layout.data > 1:
        raise InputError(
            f"a breakdown follows one engine whose steps come one after the other, not layout {layout}; use one copy "
            "and one stage"
        )


def watch_run(
    deployment: Deployment, workload: Workload, *, progress: Progress | None = None, steady: bool = False
) -> WatchedRun:
    """Simulate a workload and note its steps."""
    if deployment.layout.data > 1:
        check_in_order(deployment)
    timer, log = deployment.timer(), new_log(deployment, len(workload.requests))
    forecast = simulate(deployment, workload, progress=progress, timer=timer, watch=log, steady=steady)
    return WatchedRun(forecast, timer, log)


def break_down(run: WatchedRun) -> Breakdown:
    """What the log of a run says."""
    check_in_order(run.forecast.deployment)
    forecast, timer, log = run.forecast, run.timer, run.log
    record, steps = forecast.record, log.steps
    idle = _idle_seconds(record)
    return Breakdown(
        duration=forecast.duration,
        steps={kind: int(np.count_nonzero(steps.kind == number)) for number, kind in enumerate(KINDS)},
        kernels=_kernels(steps, timer),
        host=_host(steps, record, idle),
        idle_seconds=float(idle[:, 1].sum() - idle[:, 0].sum()),
        first_tokens=first_token_parts(forecast.deployment, forecast.workload, record, log),
        later_tokens=later_token_parts(record, log),
        composition=compose(record, log, timer),
    )


def _kernels(steps: Steps, timer: KernelTimer) -> tuple[KernelPart, ...]:
    """Seconds of each kernel in steps of each kind; kernels of one name in several tables are one."""
    sums = np.zeros((len(KINDS), len(timer.kernels)))
    for part, seconds in steps.kernels(timer):
        for number in range(len(KINDS)):
            sums[number] += seconds[steps.kind[part] == number].sum(axis=0)
    found: dict[tuple[str, str], Array] = {}
    for kernel, seconds in zip(timer.kernels, sums.T, strict=True):
        found[kernel] = found.get(kernel, 0.0) + seconds
    parts = [
        KernelPart(name, family, dict(zip(KINDS, seconds.tolist(), strict=True)))
        for (name, family), seconds in found.items()
        if seconds.sum() > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.total))


def _host(steps: Steps, record: Record, idle: Array) -> KernelPart:
    """Seconds before each step's kernels in which the GPU stood still though there were requests.

    What comes after the last step is its tokens' way to their clients, and belongs to it.
    """
    begins = steps.ends - steps.gpu_seconds
    starts = np.concatenate([[record.sent_at.min()], steps.ends[:-1]])
    waits = np.maximum(begins - starts, 0.0) - _overlap(starts, begins, idle)
    waits[-1] += record.last_token.max() - steps.ends[-1]
    seconds = {kind: float(waits[steps.kind == number].sum()) for number, kind in enumerate(KINDS)}
    return KernelPart("GPU waits for host", "host", seconds)


def _idle_seconds(record: Record) -> Array:
    """(from, to) of the stretches of the run in which no request was in the system."""
    order = np.argsort(record.sent_at, kind="stable")
    sent = record.sent_at[order]
    answered = np.maximum.accumulate(record.last_token[order])
    gaps = sent[1:] > answered[:-1]
    return np.stack([answered[:-1][gaps], sent[1:][gaps]], axis=1)


def _overlap(starts: Array, ends: Array, spans: Array) -> Array:
    """How much of each interval lies in any of the spans, which are apart and in order."""
    lengths = np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])])

    def covered(times: Array) -> Array:
        position = np.searchsorted(spans[:, 0], times)
        before = np.maximum(position - 1, 0)
        beyond = np.maximum(spans[before, 1] - times, 0.0) if len(spans) else np.zeros(times.size)
        return np.asarray(lengths[position] - np.where(position > 0, beyond, 0.0))

    return covered(np.maximum(ends, starts)) - covered(starts)
