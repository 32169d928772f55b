"""Where the time of a run went, in parts that add up to it; seconds of replicas and stages are added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Unpack

import numpy as np

from infercast.engines.timer import KernelTimer
from infercast.forecast.deploy import Deployable, GpuSource, RunOptions, Servable, resolve_run
from infercast.forecast.explain import step_log
from infercast.forecast.progress import request_progress
from infercast.forecast.result import Forecast
from infercast.forecast.slo import Array
from infercast.forecast.system import DECODE, system_of
from infercast.lazy_classes import dataclass
from infercast.serve import Record, Workload
from infercast.serve.loop import Progress
from infercast.shown import PlottableResult
from infercast.units import format_seconds


@dataclass(frozen=True, slots=True)
class Range:
    """The tokens ``first`` to ``last`` of all requests that got so far."""

    first: int
    last: int
    requests: int
    tokens: int
    seconds: float  # A token, on average
    families: dict[str, float]  # The part of each kernel family in it, and of waiting for the host


def compose(record: Record, log: step_log.StepLog, timer: KernelTimer) -> tuple[Range, ...]:
    """Kernel families per token in each range of tokens; none without second tokens."""
    several = np.flatnonzero(record.num_output > 1)
    if not several.size:
        return ()
    names, cumulated = _cumulated(log, timer)
    ends, tokens = log.steps.ends, record.num_output[several] - 1
    first = np.searchsorted(ends, log.prompt_end[several])
    spanned = tokens
    if record.drafts.num_drafts:
        # Some steps yield several tokens.
        spanned = np.maximum(np.searchsorted(ends, record.last_token[several], side="right") - 1 - first, 1)
    elif record.num_preemptions:
        # A result may be taken in when later steps have ended already; one or two more in a long stretch do not show.
        spanned = np.maximum(np.searchsorted(ends, record.last_token[several], side="right") - 1 - first, tokens)
    a_token = np.minimum(spanned, ends.size - 1 - first) / tokens
    ranges = []
    # Tokens that a request has been given: 1, 16, 32 and so on to 65,536
    for low, high in pairwise((1, *(2**power for power in range(4, 17)))):
        reached = tokens >= low
        if not reached.any():
            break
        begin, stop = (np.minimum(edge, tokens[reached]) for edge in (low - 1, high - 1))
        start, end = (first[reached] + np.rint(edge * a_token[reached]).astype(np.int64) for edge in (begin, stop))
        count = int((stop - begin).sum())
        if not count:
            continue
        seconds = (cumulated[end] - cumulated[start]).sum(axis=0) / count
        families = dict(zip(names, seconds.tolist(), strict=True))
        most = int(stop.max()) + 1
        ranges.append(Range(low + 1, most, int(np.count_nonzero(stop > begin)), count, sum(seconds.tolist()), families))
    return tuple(ranges)


def _cumulated(log: step_log.StepLog, timer: KernelTimer) -> tuple[list[str], Array]:
    """Families, and their seconds in all steps up to and with each one; the wait before a step is the host's."""
    steps = log.steps
    kernels_in = step_log.kernels_of(timer)
    names = [*dict.fromkeys(family for _, family in kernels_in), "host"]
    belongs = np.array([[family == name for name in names] for _, family in kernels_in], dtype=np.float64)
    seconds = np.concatenate([kernels @ belongs for _, kernels in steps.kernels(timer)])
    waits = np.maximum(np.diff(steps.ends, prepend=steps.ends[0] - steps.gpu_seconds[0]) - steps.gpu_seconds, 0.0)
    seconds[:, -1] = waits
    return names, np.cumsum(seconds, axis=0)


def pooled(several: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges of several engines as those of one: every token counts as much as any other."""
    ranges = []
    for first in sorted({each.first for each in several}):
        same = [each for each in several if each.first == first]
        tokens = sum(each.tokens for each in same)

        def mean(values: Iterable[float], counted: int = tokens, weights: Sequence[Range] = same) -> float:
            return sum(value * each.tokens for value, each in zip(values, weights, strict=True)) / counted

        families = {name: mean(each.families[name] for each in same) for name in same[0].families}
        requests, last = sum(each.requests for each in same), max(each.last for each in same)
        ranges.append(Range(first, last, requests, tokens, mean(each.seconds for each in same), families))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class RequestParts:
    """A latency of every request as a sum of parts, in seconds."""

    requests: Array
    sent_at: Array
    total: Array
    parts: dict[str, Array]

    @property
    def slowest(self) -> Array:
        slow_share = 0.01  # The slowest requests that are looked at by themselves, as a share of all
        count = max(1, round(slow_share * self.total.size))
        return np.argsort(-self.total, kind="stable")[:count]

    def mean(self, chosen: Array | None = None) -> dict[str, float]:
        return {name: float((part if chosen is None else part[chosen]).mean()) for name, part in self.parts.items()}


def first_token_parts(engine: step_log.EngineRun, workload: Workload) -> RequestParts:
    """Of the requests that this replica served: on their way, queued, computed, on their way back."""
    record, log = engine.record, engine.log
    host, served = engine.pool.deployment.host, np.flatnonzero(~np.isnan(record.last_token))
    num_input = np.array([request.num_input for request in workload.requests])[served]
    sent_at, first_token, prompt_end = record.sent_at[served], record.first_token[served], log.prompt_end[served]
    queued_at = sent_at + host.request_path + host.request_token * num_input
    started_at = np.maximum(record.started_at[served], queued_at)
    loaded_from = started_at
    if record.tier is not None:
        began = record.tier.load_began[served]
        loaded_from = np.where(np.isnan(began), started_at, np.clip(began, queued_at, started_at))
    queued = _window(log, queued_at, loaded_from)
    computed = _window(log, started_at, prompt_end)
    own = np.minimum(log.own_seconds[served], computed["prompts"])
    parts = {
        "way in": queued_at - sent_at, "queue: prompts of others": queued["prompts"],
        "queue: decoding of others": queued["decoding"], "queue: host": queued["host"],
        **({} if record.tier is None else {"KV from host memory": started_at - loaded_from}), "own prompt": own,
        "beside it: prompts of others": computed["prompts"] - own,
        "beside it: decoding of others": computed["decoding"], "beside it: host": computed["host"],
        "way out": first_token - prompt_end,
    }  # fmt: skip
    return RequestParts(served, sent_at, first_token - sent_at, parts)


def received_parts(engine: step_log.EngineRun) -> RequestParts:
    """From the arrival of keys and values on a decode pool to the first token: queued, computed, on its way back."""
    record, served = engine.record, np.flatnonzero(~np.isnan(engine.record.last_token))
    sent_at, first_token, prompt_end = record.sent_at[served], record.first_token[served], engine.log.prompt_end[served]
    started_at = np.maximum(record.started_at[served], sent_at)
    parts = {
        "decode pool: queue": started_at - sent_at,
        "decode pool: first step": prompt_end - started_at,
        "decode pool: way out": first_token - prompt_end,
    }
    return RequestParts(served, sent_at, first_token - sent_at, parts)


def later_token_parts(record: Record, log: step_log.StepLog) -> RequestParts | None:
    """Between a request's first token and its last, a token: decoding, prompts of others in between, the host."""
    several = np.flatnonzero(record.num_output > 1)
    if not several.size:
        return None
    tokens = record.num_output[several] - 1
    first, last = record.first_token[several], record.last_token[several]
    window = _window(log, first, last)
    names = {"decoding": "decoding", "prompts": "prompts of others", "host": "host"}
    parts = {shown: window[name] / tokens for name, shown in names.items()}
    return RequestParts(several, record.sent_at[several], (last - first) / tokens, parts)


def _window(log: step_log.StepLog, start: Array, end: Array) -> dict[str, Array]:
    """What the GPU did between two moments of each request; the three add up to the time between them."""
    steps = log.steps
    busy = steps.until(end, steps.gpu_seconds) - steps.until(start, steps.gpu_seconds)
    prompts = steps.until(end, steps.prompt_seconds) - steps.until(start, steps.prompt_seconds)
    return {"prompts": prompts, "decoding": busy - prompts, "host": (end - start) - busy}


def joined(several: Sequence[RequestParts]) -> RequestParts:
    if len(several) == 1:
        return several[0]
    order = np.argsort(np.concatenate([each.requests for each in several]), kind="stable")

    def ordered(arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)[order]

    parts = {name: ordered([each.parts[name] for each in several]) for name in several[0].parts}
    of_all = {name: ordered([getattr(each, name) for each in several]) for name in ("requests", "sent_at", "total")}
    return RequestParts(**of_all, parts=parts)


@dataclass(frozen=True, slots=True)
class KernelPart:
    name: str
    family: str
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True, repr=False)
class Breakdown(PlottableResult):
    """A run from the first request sent to the last token received, second by second."""

    forecast: Forecast  # Of the same run
    side_by_side: int  # Number of replicas times stages: the parts add up to this many durations
    steps: dict[str, int]  # Number of steps of each kind
    kernels: tuple[KernelPart, ...]  # Largest first
    host: KernelPart  # A GPU with requests stood still: it waited for host or stage, or tokens were on their way
    idle_seconds: float  # Seconds in which no request was on the replica
    first_tokens: RequestParts
    later_tokens: RequestParts | None  # None where no request has a second token
    composition: tuple[Range, ...]  # Empty without second tokens, and in pipelines: tokens are steps apart there

    def _words(self) -> str:
        steps = ", ".join(f"{count:,} {kind}" for kind, count in self.steps.items())
        return f"{format_seconds(self.duration)}: steps {steps}"

    @property
    def duration(self) -> float:
        """Seconds from the first request sent to the last token received."""
        return self.forecast.duration

    @property
    def whole(self) -> float:
        """The seconds of all that works side by side."""
        return self.side_by_side * self.duration


def explain(
    deployment: Deployable, workload: Servable = None, *, gpu: GpuSource | None = None, router: str | None = None,
    progress: Progress | bool | None = None, **options: Unpack[RunOptions],
) -> Breakdown:  # fmt: skip
    """Simulate a workload and say where every second of it went; names do as in `simulate`."""
    found, load = resolve_run(deployment, workload, gpu, options)
    with request_progress(progress, len(load.requests)) as on_progress:
        run = step_log.watch_run(system_of(found, router), load, progress=on_progress)
    return break_down(run)


def break_down(run: step_log.Watched) -> Breakdown:
    forecast, engines = run.forecast, run.engines
    stages = [pool.deployment.layout.pipeline for pool in forecast.pools]
    start, end = run.start, max(float(np.nanmax(engine.record.last_token)) for engine in engines)
    idle = [_idle_spans(engine.record, start, end) for engine in engines]
    idle_seconds = 0.0
    for pool, count in zip(forecast.pools, stages, strict=True):
        used = [spans for engine, spans in zip(engines, idle, strict=True) if engine.pool is pool.pool]
        unused = (len(pool.records) - len(used)) * (end - start)
        idle_seconds += count * (sum(float((spans[:, 1] - spans[:, 0]).sum()) for spans in used) + unused)
    for engine, spans in zip(engines, idle, strict=True):  # less steps whose results nobody waited for any more
        stages_of = np.moveaxis(engine.log.steps.by_stage, 1, 0).transpose(0, 2, 1)
        idle_seconds -= sum(float(_overlap(begins, ends, spans).sum()) for begins, ends in stages_of)
    kinds = [engine.log.steps.kind for engine in engines]
    laters = [each for engine in engines if (each := later_token_parts(engine.record, engine.log)) is not None]
    one_stage = [engine for engine in engines if engine.pool.deployment.layout.pipeline == 1]
    composed = [compose(engine.record, engine.log, engine.timer) for engine in one_stage]
    hosts = [_waits(engine, start, end, spans) for engine, spans in zip(engines, idle, strict=True)]
    return Breakdown(
        forecast=forecast,
        side_by_side=sum(count * len(pool.records) for count, pool in zip(stages, forecast.pools, strict=True)),
        steps={kind: sum(int((each == number).sum()) for each in kinds) for number, kind in enumerate(step_log.KINDS)},
        kernels=_kernels(engines),
        host=KernelPart(
            f"GPU waits for host{' or other stages' if max(stages) > 1 else ''}",
            "host",
            {kind: sum(each[kind] for each in hosts) for kind in step_log.KINDS},
        ),
        idle_seconds=idle_seconds, first_tokens=_first_tokens(run), later_tokens=joined(laters) if laters else None,
        composition=composed[0] if len(composed) == 1 else pooled([*chain.from_iterable(composed)]),
    )  # fmt: skip


def _first_tokens(run: step_log.Watched) -> RequestParts:
    workload, link = run.forecast.workload, run.forecast.link
    parts = joined([first_token_parts(engine, workload) for engine in run.engines if engine.pool.role != DECODE])
    if link is None:
        return parts
    received = joined([received_parts(engine) for engine in run.engines if engine.pool.role == DECODE])
    # The whole way to the first token: the prefill pool, the link and the decode pool
    done = link.handover
    hops = {"link: waiting": done.began - done.ready, "link: transfer": done.received - done.began}
    total = parts.total + sum(hops.values()) + received.total
    return RequestParts(parts.requests, parts.sent_at, total, {**parts.parts, **hops, **received.parts})


def _kernels(engines: Iterable[step_log.EngineRun]) -> tuple[KernelPart, ...]:
    """Seconds of each kernel in steps of each kind; kernels of one name in several tables are one."""
    found: dict[tuple[str, str], Array] = {}
    for engine in engines:
        steps, names = engine.log.steps, step_log.kernels_of(engine.timer)
        sums = np.zeros((len(step_log.KINDS), len(names)))
        for part, seconds in steps.kernels(engine.timer):
            for number in range(len(step_log.KINDS)):
                sums[number] += seconds[steps.kind[part] == number].sum(axis=0)
        for kernel, seconds in zip(names, sums.T, strict=True):
            found[kernel] = found.get(kernel, 0.0) + seconds
    parts = [
        KernelPart(name, family, dict(zip(step_log.KINDS, seconds.tolist(), strict=True)))
        for (name, family), seconds in found.items()
        if seconds.sum() > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.total))


def _waits(engine: step_log.EngineRun, start: float, end: float, idle: Array) -> dict[str, float]:
    """Seconds before each step's kernels (of the last one, also after) in which a GPU with requests stood still."""
    steps = engine.log.steps
    waits = np.zeros(steps.ends.size)
    for begins, ends in np.moveaxis(steps.by_stage, 1, 0).transpose(0, 2, 1):
        before = np.concatenate([[start], ends[:-1]])
        waits += np.maximum(begins - before, 0.0) - _overlap(before, begins, idle)
        last, run_end = ends[-1:], np.array([end])
        waits[-1] += float((run_end - last - _overlap(last, run_end, idle))[0])
    if engine.log.spans:  # a stage may hold a step longer than its kernels take
        waits += (steps.by_stage[:, :, 1] - steps.by_stage[:, :, 0]).sum(axis=1) - steps.gpu_seconds
    return {kind: float(waits[steps.kind == number].sum()) for number, kind in enumerate(step_log.KINDS)}


def _idle_spans(record: Record, start: float, end: float) -> Array:
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
