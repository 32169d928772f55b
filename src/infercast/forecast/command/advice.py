"""Advice on a command: nearby settings tried with the same requests, ranked by what users would gain.

A change counts if it exceeds chance (the same draws of requests before and after) and, where other kernels run, the
error of their estimates. Changes of the model's answers or of the number of GPUs are shown and never put into the
recommended command. Requests of all draws are pooled; the noise of a ratio is estimated by leaving out one draw after
the other (the jackknife), which also works where a queue builds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InfercastError
from infercast.forecast.command.flags import Point, Timers
from infercast.forecast.memory import Fit
from infercast.forecast.slo import Array, Slo, served_headroom
from infercast.forecast.system import System, busiest
from infercast.forecast.uncertainty import APART, Uncertainty, chance_of, kernel_widths, redraw
from infercast.serve import Replica, Workload
from infercast.serve.record import Served

FACTORS = (0.25, 0.5, 2.0, 4.0)
STEPS = (256, 65_536)  # tokens of the smallest and the largest step that is tried
SEQUENCES = (8, 4096)
UTILIZATION = 0.95
PIECES = (1024, 4096)  # most tokens of one prompt in a step, where it is not limited
BLOCKS = (16, 32, 64)
EITHER = ("enable_prefix_caching", "disable_radix_cache", "enable_mixed_chunk")
"""Switches of engines that may help in either position."""
ONE_WAY = {
    "enable_chunked_prefill": True, "async_scheduling": True, "disable_overlap_schedule": False,
    "enforce_eager": False, "disable_cuda_graph": False,
}  # fmt: skip
"""Switches that help in one position."""
WITHOUT_GRAPHS = ("enforce_eager", "disable_cuda_graph")
CHOICES: dict[str, tuple[Any, ...]] = {"schedule_policy": ("fcfs", "lpm"), "schedule_conservativeness": (0.3, 1.0)}
NARROW = ("fp8", "int4")  # formats of weights to try; the second needs a checkpoint of its own


class Change(NamedTuple):
    """Other values of one axis."""

    axis: str
    values: dict[str, Any]  # By the names of flags; None leaves the flag out
    label: str
    kernels: bool = False  # Whether other kernels run, with independent errors of their estimates
    answers: bool = False  # Whether the model's numeric formats, and so its answers, change
    gpus: float = 1.0  # Times as many GPUs


def changes_around(point: Point, fit: Fit) -> Iterator[Change]:
    yield from _settings(point, fit)
    yield from _formats(point, fit)
    if point.engine.shares_copies or fit.layout.sharing == 1:  # groups of one server are left as they are
        yield from _layouts(point, fit)


def _settings(point: Point, fit: Fit) -> Iterator[Change]:
    """Other values of one setting of the engine."""
    tokens, sequences, _ = point.engine.bounds
    sizes = {tokens: (fit.settings.max_num_batched_tokens, STEPS), sequences: (fit.settings.max_num_seqs, SEQUENCES)}
    for name, (size, (least, most)) in sizes.items():
        for value in (int(size * factor) for factor in FACTORS):
            if least <= value <= most:
                yield Change(name, {name: value}, f"{name} {value}")
    cached = "block_size" in point.settings or point.settings.get("enable_prefix_caching")
    tried: dict[str, tuple[Any, ...]] = {
        "gpu_memory_utilization": (UTILIZATION,),
        **dict.fromkeys(EITHER, (True, False)),
        **{name: (better,) for name, better in ONE_WAY.items()},
        **CHOICES,
        "long_prefill_token_threshold": (0, *PIECES),
        "block_size": BLOCKS if cached else (),
    }
    for name, values in tried.items():
        now = getattr(fit.settings, name, None)
        if now is None or (name == "gpu_memory_utilization" and now >= UTILIZATION):
            continue
        for value in values:
            # A threshold is dropped or added, not moved.
            if value != now and not (name == "long_prefill_token_threshold" and now and value):
                word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
                yield Change(name, {name: value}, f"{name} {word}", kernels=name in WITHOUT_GRAPHS)


def _formats(point: Point, fit: Fit) -> Iterator[Change]:
    name = "kv_cache_dtype"
    other = None if fit.model.cache_dtype == "fp8" and name in point.options else "fp8"
    if other != fit.model.cache_dtype:
        yield Change(name, {name: other}, f"{name} {other or 'auto'}", kernels=True, answers=True)
    name = "quantization"
    if point.options.get(name):
        yield Change(name, {name: None}, "no quantization", kernels=True, answers=True)
    elif fit.model.weights.name in ("bf16", "fp16"):
        for value in NARROW:
            yield Change(name, {name: value}, f"{name} {value}", kernels=True, answers=True)


def _layouts(point: Point, fit: Fit) -> Iterator[Change]:
    layout = fit.layout
    tensor, data, pipeline = layout.tensor, layout.data, layout.pipeline
    t, d, p = "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size"
    choices: list[tuple[dict[str, Any], float]] = []
    if tensor > 1 and tensor % 2 == 0:
        choices += [({t: tensor // 2, d: 2 * data}, 1.0), ({t: tensor // 2}, 0.5)]
    if data > 1 and data % 2 == 0:
        choices.append(({t: 2 * tensor, d: data // 2}, 1.0))
    if pipeline > 1 and pipeline % 2 == 0:
        choices.append(({t: 2 * tensor, p: pipeline // 2}, 1.0))
    if 2 * tensor * pipeline <= fit.gpu.gpus_per_node:
        choices.append(({t: 2 * tensor}, 2.0))
    choices.append(({d: 2 * data}, 2.0))
    for values, gpus in choices:
        label = ", ".join(f"{name} {value}" for name, value in values.items())
        yield Change("layout", values, label, kernels=t in values or p in values, gpus=gpus)
    if fit.model.has_experts and layout.tensor * layout.data > 1:
        spread = point.engine.sizes_for(replace(layout, experts=True))
        for name in [name for name in spread if name not in (t, d, p)]:
            label = f"{name} {'off' if layout.experts else 'on' if spread[name] is True else spread[name]}"
            yield Change(name, {name: None if layout.experts else spread[name]}, label, kernels=True)


DRAWS, REQUESTS = 4, 300  # draws of each point, and requests of a draw
STUDENT = 2.353  # standard errors on either side that hold 90 %, where the error is known from four draws
LEAST = 0.02  # smaller changes are not worth a setting
PERCENTILES = {
    "TTFT p50": ("ttft", 0.5),
    "TTFT p99": ("ttft", 0.99),
    "TPOT p50": ("tpot", 0.5),
    "TPOT p99": ("tpot", 0.99),
}  # What two points are compared by
THROUGHPUT, HEADROOM = "output tokens/s", "SLO headroom"  # In closed loops, and with an SLO: smallest limit / forecast


class TrialResult(NamedTuple):
    """What the requests of one draw saw, or those of several."""

    ttft: Array
    tpot: Array
    end_to_end: Array
    rate: float  # Output tokens a second

    @staticmethod
    def of(served: Served) -> TrialResult:
        duration = float(served.last_token.max() - served.sent_at.min())
        return TrialResult(served.ttft, served.tpot, served.end_to_end, float(served.num_output.sum()) / duration)

    @staticmethod
    def together(draws: Sequence[TrialResult]) -> TrialResult:
        ttft, tpot, whole = (np.concatenate(values) for values in zip(*(each[:3] for each in draws), strict=True))
        return TrialResult(ttft, tpot, whole, sum(each.rate for each in draws) / len(draws))


class Load(NamedTuple):
    name: str
    workload: Workload
    slo: Slo | None = None

    def numbers(self, seen: TrialResult) -> dict[str, float]:
        """What points are compared by; without TPOT where no request has a second token."""
        found = {
            name: float(np.percentile(values, 100 * fraction))
            for name, (kind, fraction) in PERCENTILES.items()
            if (values := getattr(seen, kind)).size
        }
        if self.workload.concurrency is not None:
            found[THROUGHPUT] = seen.rate
        if self.slo is not None:
            found[HEADROOM], _ = served_headroom(seen, self.slo)
        return found

    def draws(self, replica: Replica) -> list[Workload]:
        """Further draws of the same requests; of requests that are given, the first ones."""
        seed = 0 if self.workload.drawn is None else self.workload.drawn.seed
        count = min(len(self.workload.requests), REQUESTS)
        seeds = [seed + APART * number for number in range(DRAWS)]
        found = [redraw(self.workload, replica, seed=each, count=count) for each in seeds]
        given = replace(self.workload, requests=self.workload.requests[: DRAWS * REQUESTS])
        return [each for each in found if each is not None] or [given]


class MetricDelta(NamedTuple):
    load: str
    name: str
    change: float  # The logarithm of the ratio of after to before
    noise: float  # What chance and estimates alone could do

    @property
    def is_real(self) -> bool:
        """Whether it is more than noise, and worth a word."""
        return abs(self.change) > max(self.noise, LEAST)

    @property
    def gain(self) -> float:
        """Positive where it is better; nothing where it may be noise."""
        if not self.is_real:
            return 0.0
        return self.change if self.name in (THROUGHPUT, HEADROOM) else -self.change


@dataclass(slots=True)
class Trial:
    """One point, and what requests saw of it in each draw of each load."""

    system: System
    seen: list[list[TrialResult]]
    uncertainty: Uncertainty  # How far its kernels may be off


def try_point(deployment: Deployment, draws: Sequence[Sequence[Workload]], timers: Timers, most: int = 1) -> Trial:
    """Serve the first draws of each load, ``most`` of them."""
    system = timers.system(deployment)
    seen: list[list[TrialResult]] = []
    uncertainty = Uncertainty(0.0, 0.0)
    for of_load in draws:
        runs = [system.serve(each) for each in of_load[:most]]
        seen.append([TrialResult.of(run.clients) for run in runs])
        uncertainty = Uncertainty(*kernel_widths(deployment, busiest(runs[0].records[0])))
    return Trial(system, seen, uncertainty)


def effects(before: Trial, after: Trial, loads: Sequence[Load], *, kernels: bool) -> list[MetricDelta]:
    """What differs between two points; ``kernels``: whether they run different ones."""
    found = []
    for load, first, second in zip(loads, before.seen, after.seen, strict=True):
        whole = _ratios(load, first, second)
        count = len(first)
        left_out = [
            _ratios(load, first[:at] + first[at + 1 :], second[:at] + second[at + 1 :]) for at in range(count)
        ] if count > 1 else []  # fmt: skip
        for name, change in whole.items():
            if left_out:
                parts = np.array([each[name] for each in left_out])
                noise = STUDENT * sqrt((count - 1) / count * float(np.square(parts - parts.mean()).sum()))
            else:
                # The sampling error of a percentile of given requests, which have no other draws.
                kind, fraction = PERCENTILES.get(name, ("ttft", 0.99))
                noise = 0.0 if name == THROUGHPUT else chance_of(getattr(first[0], kind), fraction)
            if kernels:
                noise = hypot(noise, _estimates(before, name), _estimates(after, name))
            found.append(MetricDelta(load.name, name, change, noise))
    return found


def differs(before: Trial, after: Trial, loads: Sequence[Load]) -> bool:
    pairs = zip(loads, before.seen, after.seen, strict=True)
    return any(
        abs(change) > LEAST / 2
        for load, first, second in pairs
        for change in _ratios(load, first[:1], second[:1]).values()
    )


def _ratios(load: Load, before: Sequence[TrialResult], after: Sequence[TrialResult]) -> dict[str, float]:
    first, second = (load.numbers(TrialResult.together(each)) for each in (before, after))
    return {name: log(second[name] / first[name]) for name in first if 0 < first[name] < inf}


def _estimates(trial: Trial, name: str) -> float:
    prompts, decodes = trial.uncertainty.prompts, trial.uncertainty.decodes
    return prompts if name.startswith("TTFT") else max(prompts, decodes) if name == HEADROOM else decodes


LEAST_GAIN = 0.002  # of the mean over all numbers, below which a change is not worth its place in a command
TRADE = 0.05  # the recommended command makes no number worse by more than this, or than what is gained on average


@dataclass(frozen=True, slots=True)
class Advice:
    change: Change
    effects: tuple[MetricDelta, ...]  # All that were watched; those that may be noise gain nothing

    @property
    def real(self) -> list[MetricDelta]:
        return sorted((each for each in self.effects if each.is_real), key=lambda each: -abs(each.change))

    @property
    def gain(self) -> float:
        """The mean gain over all numbers, as a logarithm; the headroom of a promise counts as much as all others."""
        rooms, others = (
            [each.gain for each in self.effects if (each.name == HEADROOM) is which] for which in (True, False)
        )
        means = [sum(gains) / len(gains) for gains in (rooms, others) if gains]
        return sum(means) / max(1, len(means))

    @property
    def worst(self) -> float:
        """The largest loss: of the headroom of what is promised, or of any number where nothing is."""
        judged = [each.gain for each in self.effects if each.name == HEADROOM] or [each.gain for each in self.effects]
        return min(judged, default=0.0)


@dataclass(frozen=True, slots=True)
class Advised:
    ranked: tuple[Advice, ...]  # What helps on the same GPUs, best first
    other_gpus: tuple[Advice, ...]  # The same with more or fewer GPUs, whatever it does
    worse: tuple[Advice, ...]
    without_effect: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]  # What the engine would not start with, and why
    applied: dict[str, Any]  # The values of the recommended command that differ from the given one ...
    together: Advice | None  # ... and what they do together.


def advise(
    point: Point, fit: Fit, loads: Sequence[Load], timers: Timers, tell: Callable[[str], None] = lambda _: None
) -> Advised:
    deployment = point.deploy()
    draws = [load.draws(timers.system(deployment).pools[0].replica) for load in loads]
    base = try_point(deployment, draws, timers, most=DRAWS)
    draws = _telling_first(draws, base)
    found: list[Advice] = []
    quiet: list[str] = []
    refused: list[tuple[str, str]] = []
    for change in changes_around(point, fit):
        tell(change.label)
        try:
            trial = try_point(point.changed(change.values).deploy(), draws, timers)
        except InfercastError as problem:
            refused.append((change.label, str(problem)))
            continue
        if not differs(base, trial, loads):
            quiet.append(change.label)
            continue
        for of_load, seen in zip(draws, trial.seen, strict=True):
            seen += [TrialResult.of(trial.system.serve(each).clients) for each in of_load[len(seen) :]]
        advice = Advice(change, tuple(effects(base, trial, loads, kernels=change.kernels)))
        if advice.real:
            found.append(advice)
        else:
            quiet.append(change.label)
    found.sort(key=lambda advice: -advice.gain)
    same = [each for each in found if each.change.gpus == 1.0]
    helpful = tuple(each for each in same if each.gain > LEAST_GAIN)
    applied, together = _combine(point, base, helpful, loads, draws, timers)
    return Advised(
        ranked=helpful,
        other_gpus=tuple(each for each in found if each.change.gpus != 1.0),
        worse=tuple(each for each in same if each.gain <= LEAST_GAIN),
        without_effect=tuple(quiet),
        refused=tuple(refused),
        applied=applied,
        together=together,
    )


def _telling_first(draws: Sequence[list[Workload]], base: Trial) -> list[list[Workload]]:
    """The draws of each load with the one first in which requests wait longest: what a limit does shows there."""
    ordered = []
    for number, of_load in enumerate(draws):
        longest = [float(seen.ttft.max()) for seen in base.seen[number]]
        order = sorted(range(len(of_load)), key=lambda at: -longest[at])
        base.seen[number] = [base.seen[number][at] for at in order]
        ordered.append([of_load[at] for at in order])
    return ordered


def _combine(
    point: Point,
    base: Trial,
    ranked: Sequence[Advice],
    loads: Sequence[Load],
    draws: Sequence[Sequence[Workload]],
    timers: Timers,
) -> tuple[dict[str, Any], Advice | None]:
    """Add one change after the other, best first, as long as users gain and nothing gets much worse."""
    applied: dict[str, Any] = {}
    best: Advice | None = None
    axes: set[str] = set()
    for advice in ranked:
        change = advice.change
        if change.answers or change.axis in axes:
            continue
        values = {**applied, **change.values}
        try:
            trial = try_point(point.changed(values).deploy(), draws, timers, most=DRAWS)
        except InfercastError:
            continue
        kernels = change.kernels or (best is not None and best.change.kernels)
        label = change.label if best is None else f"{best.change.label}, {change.label}"
        both = Change("together", values, label, kernels)
        now = Advice(both, tuple(effects(base, trial, loads, kernels=kernels)))
        if now.worst > -max(TRADE, now.gain) and now.gain > (0.0 if best is None else best.gain) + LEAST_GAIN:
            applied, best = values, now
            axes.add(change.axis)
    return applied, best
