"""Two runs or two steps side by side, and the kernels that explain the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.forecast.explain.kernels import StepCost
from infercast.forecast.explain.step_log import Array, EngineRun, kernels_of
from infercast.forecast.explain.watched import Watched
from infercast.forecast.system import PREFILL

HOST = "GPU waits for host"
ON_THE_WAY = "host and the way to it"
LINK = "link between the pools", "link"
Parts = dict[tuple[str, str], float]
"""Seconds by (kernel, family)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One kernel, before and after."""

    name: str
    family: str
    before: float
    """Seconds of a mean latency, or of a step; 0 where there is no such kernel."""
    after: float

    @property
    def change(self) -> float:
        """Seconds more than before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences add up to the difference of the two totals."""

    differences: tuple[Difference, ...]
    """Those that explain most first."""

    @property
    def before(self) -> float:
        """All parts together."""
        return sum(each.before for each in self.differences)

    @property
    def after(self) -> float:
        """All parts together."""
        return sum(each.after for each in self.differences)


def compare_runs(before: Watched, after: Watched) -> dict[str, Comparison]:
    """Mean TTFT and, where requests have several tokens, mean TPOT of two runs of one workload, kernel by kernel.

    A latency holds the kernels that the GPU of its replica ran for anybody while a request waited; the rest is the
    host's. In a pipeline a moment is divided among the stages that are at work.
    """
    first, second = _latencies(before), _latencies(after)
    return {name: _compare(parts, second[name]) for name, parts in first.items() if name in second}


def compare_steps(before: StepCost, after: StepCost) -> Comparison:
    """GPU time of one step, kernel by kernel; the host where it takes longer."""
    return _compare(_a_step(before), _a_step(after))


def _latencies(run: Watched) -> dict[str, Parts]:
    sums: dict[str, Parts] = {}
    link = run.forecast.link
    if link is not None:
        spent = link.handover.received - link.handover.ready
        sums["TTFT"] = {LINK: float(spent.sum())}
    counts = {"TTFT": 0, "TPOT": 0}
    for engine in run.engines:
        record = engine.record
        served = np.flatnonzero(~np.isnan(record.last_token))
        several = np.flatnonzero(record.num_output > 1)
        for name, chosen, start, end, tokens in (
            ("TTFT", served, record.sent_at, record.first_token, np.ones(served.size)),
            ("TPOT", several, record.first_token, record.last_token, record.num_output[several] - 1),
        ):
            if chosen.size:
                # On a prefill pool a request is on its way to its first token.
                counts[name] += chosen.size if engine.pool.role != PREFILL else 0
                found = sums.setdefault(name, {})
                for key, seconds in _window(engine, start[chosen], end[chosen], tokens).items():
                    found[key] = found.get(key, 0.0) + seconds
    return {name: {key: seconds / counts[name] for key, seconds in found.items()} for name, found in sums.items()}


def _window(engine: EngineRun, start: Array, end: Array, tokens: Array) -> Parts:
    """What the GPU did between two moments of each request, a token, added up over requests."""
    steps = engine.log.steps
    kernels = np.concatenate([seconds for _, seconds in steps.kernels(engine.timer)])
    found: Parts = {}
    for key, seconds in zip(kernels_of(engine.timer), kernels.T, strict=True):
        if seconds.any():
            spent = float(((steps.until(end, seconds) - steps.until(start, seconds)) / tokens).sum())
            found[key] = found.get(key, 0.0) + spent
    found[ON_THE_WAY, "host"] = float(((end - start) / tokens).sum()) - sum(found.values())
    return found


def _a_step(cost: StepCost) -> Parts:
    found: Parts = {}
    for kernel in cost.kernels:
        found[kernel.name, kernel.family] = found.get((kernel.name, kernel.family), 0.0) + kernel.seconds
    found[HOST, "host"] = cost.seconds - float(cost.gpu.seconds)
    return found


def _compare(before: Parts, after: Parts) -> Comparison:
    differences = [
        Difference(*key, before.get(key, 0.0), after.get(key, 0.0)) for key in dict.fromkeys((*before, *after))
    ]
    return Comparison(tuple(sorted(differences, key=lambda each: -abs(each.change))))
