"""Forecasts compared with measured runs: same requests and settings; errors by metric, load and limiting part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heapreplace
from math import exp, inf, log
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from infercast.engines.base import Deployment, engine_of
from infercast.engines.settings import Settings, changed
from infercast.engines.timer import KernelTimer
from infercast.errors import FileFormatError, UnknownNameError
from infercast.forecast.deploy import ModelOptions, deploy, load_model
from infercast.forecast.energy import Energy, energy_of_pools
from infercast.forecast.intervals import half_widths
from infercast.forecast.slo import FRACTIONS, NAMES
from infercast.forecast.uncertainty import (
    EIGHTY,
    chance_in,
    is_at_once,
    slower_by,
    smoothed_of,
    uncertainty_of,
    with_pauses,
)
from infercast.hardware import Gpu, gpu_from_driver_name
from infercast.lab.validate.measured import WARM_UP, MeasuredFile, MeasuredRun, with_images_of
from infercast.models.feed_forward import ExpertFeedForward
from infercast.models.mixers.mixer import Mixer
from infercast.models.mixers.sparse import CompressedAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops import Collective, Op
from infercast.ops.op import Quantity
from infercast.predict.estimate import Estimate
from infercast.predict.roofline import Adjusted, Predictor
from infercast.serve import Record, Replica, Workload, simulate

HOST, SCHEDULER, COMMUNICATION, OVERLAP = "host", "scheduler", "communication", "overlap"
PARTS = {
    HOST: "the CPU takes no time", SCHEDULER: "each request is served as if it were alone: no queue and no batch",
    COMMUNICATION: "collectives take no time", OVERLAP: "a step is planned when the one before it has ended",
}  # fmt: skip


def settings_without(part: str | None, settings: Settings) -> Settings:
    if part != OVERLAP:
        return settings
    if engine_of(settings).family == "sglang":
        return changed(settings, disable_overlap_schedule=True)
    return changed(settings, async_scheduling=False)


def deployment_without(part: str | None, deployment: Deployment) -> Deployment:
    if part == HOST:
        times: dict[str, Any] = dict.fromkeys(deployment.host.seconds, 0.0)
        return replace(deployment, host=replace(deployment.host, **times))
    if part == COMMUNICATION:
        return replace(deployment, predictor=FreeCollectives(deployment.predictor))
    return deployment


class FreeCollectives(Adjusted):
    """Another predictor with collectives that take no time."""

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        known = self._predictor.estimate(op, gpu)
        if not isinstance(op, Collective):
            return known
        return replace(known, **{end: 0.0 * getattr(known, end) for end in ("seconds", "low", "high")})

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        return self._predictor.seconds(op, gpu) * (0.0 if isinstance(op, Collective) else 1.0)


def served_alone(replica: Replica, workload: Workload) -> Record:
    """Requests that do not meet: served hours apart, then put back; prompts still share what the prefix cache holds."""
    apart = 1e4  # seconds, longer than any answer takes
    spaced = (replace(request, arrival=place * apart) for place, request in enumerate(workload.requests))
    record = simulate(replica, Workload(tuple(spaced), description=workload.description))
    sent = np.array([request.arrival for request in workload.requests])
    if workload.concurrency is not None:
        free = [0.0] * workload.concurrency
        heapify(free)
        for place, seconds in enumerate((record.last_token - record.sent_at).tolist()):
            sent[place] = free[0]
            heapreplace(free, free[0] + seconds)
    shift = record.sent_at - sent
    for name in ("sent_at", "started_at", "first_token", "last_token"):
        setattr(record, name, getattr(record, name) - shift)
    return record


# Engines that were measured with dummy weights: what an untrained router does to experts, and an untrained indexer.
#
# vLLM's dummy weights are about 1e-3 in size, so scores of a router are nearly equal. Ranked in single precision (as
# SGLang's groups are) they still spread tokens evenly. Ranked by groups in bf16, ties go to the same few experts for
# every token (12 of 64 in DeepSeek-V2-Lite, twice its topk); with a correction bias, to the same topk. Since vLLM 0.33
# norms are filled with ones, and no scores tie. Equal scores of an indexer are counted one after the other.


def with_dummy_weights(model: ModelConfig, tied_routers: Collection[str] = ("grouped", "biased")) -> ModelConfig:
    """The model as an engine with untrained weights runs it; ``tied_routers`` as `Engine` has them."""
    return model.with_mixers(_searching).with_experts(partial(_tied, routers=tied_routers))


def _searching(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, SparseLatentAttention | CompressedAttention) or mixer.indexer is None:
        return mixer
    return replace(mixer, indexer=replace(mixer.indexer, tied=True))


def _tied(spec: ExpertFeedForward, *, routers: Collection[str]) -> ExpertFeedForward:
    if not ((spec.grouped_choice and "grouped" in routers) or (spec.router_bias and "biased" in routers)):
        return spec
    return replace(spec, reached=min(spec.experts, spec.topk * (1 if spec.router_bias else 2)))


# Which part of a forecast is off: runs in which one of host, kernels and queue decides.
#
# A request alone on an idle engine shows the host, a static batch the kernels of its prompts and of decoding. What is
# left to go wrong under load is the queue.


@dataclass(frozen=True, slots=True)
class Comparison:
    measured: float
    predicted: float
    half_width: float | None = None
    """Half the width of the prediction's 80 % interval, as a logarithm, where there is one ..."""
    middle: float = 0.0  # ... and how far its middle is above the prediction, as `simulate` shows for the same run

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.half_width is None:
            return None
        low, high = self.middle - self.half_width, self.middle + self.half_width
        return self.predicted * exp(min(low, 0.0)), self.predicted * exp(max(high, 0.0))

    @property
    def is_inside(self) -> bool | None:
        ends = self.interval
        return None if ends is None else ends[0] <= self.measured <= ends[1]

    @property
    def width(self) -> float | None:
        """Half the width of the interval, as a fraction of the prediction."""
        ends = self.interval
        return None if ends is None else (ends[1] - ends[0]) / 2 / self.predicted

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.measured

    @property
    def ape(self) -> float:
        return abs(self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Parts:
    is_static: bool
    num_input: int
    idle_ttft: Comparison | None = None
    prompts: Comparison | None = None  # A static batch: from the first request sent to the last first token
    decode_step: Comparison | None = None  # A static batch: the median time between two tokens


def parts_of(run: MeasuredRun, record: Record) -> Parts:
    arrivals = np.array([request.arrival for request in run.workload.requests])
    num_input = sum(request.num_input for request in run.workload.requests)
    if not is_at_once(run.workload):
        return Parts(is_static=False, num_input=num_input)
    measured = float((arrivals + run.ttft).max() - arrivals.min())
    predicted = float(record.first_token.max() - record.sent_at.min())
    gaps, counts = record.gaps
    step = None
    if run.token_gap is not None and gaps.size:
        step = Comparison(run.token_gap, float(np.median(np.repeat(gaps, counts))))
    least_prompts = 1024  # with fewer prompt tokens in all, launching them takes longer than computing them on any GPU
    return Parts(
        is_static=True, num_input=num_input,
        idle_ttft=Comparison(float(run.ttft[0]), float(record.ttft[0])) if arrivals.size == 1 else None,
        prompts=Comparison(measured, predicted) if num_input >= least_prompts else None, decode_step=step,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileParts:
    """The parts of one file: median signed errors as fractions, None if no run shows it."""

    file: str
    idle_ttft: float | None  # Of its shortest prompt: the host
    decode_step: float | None  # Kernels of decoding, or the host of a small model
    prompts: float | None  # Kernels of prompts, or launching them
    loaded_ttft: float | None  # Of runs with arrivals over time: all of the above, and the queue


# Request by request: how far each one is off, and whether they come out in the right order.

FEWEST_RANKED = 5  # an order of fewer requests says nothing


@dataclass(frozen=True, slots=True)
class Scatter:
    """Absolute errors of single requests as fractions of what was measured."""

    ttft_median: float
    ttft_p90: float
    tpot_median: float | None  # None where no request has a second token
    tpot_p90: float | None
    start_order: float | None  # Spearman's rank correlation of the moments of first tokens; None for few requests
    ttft_order: float | None  # The same of the times to first token: which requests wait long


def rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float | None:
    """Spearman's; equal values share their mean rank. None for too few, or where one side is all the same."""
    if first.size < FEWEST_RANKED:
        return None
    ranks = [_ranks(values) for values in (first, second)]
    spread = [float(np.std(each)) for each in ranks]
    if 0.0 in spread:
        return None
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spread[0] * spread[1]))


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


TTFT_FRACTIONS, TPOT_FRACTIONS = (0.5, 0.95, 0.99), (0.5, 0.95)
IN_RESULTS = (
    *(1 + FRACTIONS.index(each) for each in TTFT_FRACTIONS),
    *(len(NAMES) + 1 + FRACTIONS.index(each) for each in TPOT_FRACTIONS),
    -1,
)  # Where a run's summary stands among all results that have intervals (`forecast.intervals.results`)


def quantile(values: npt.NDArray[Any], fraction: float) -> float:
    """The value at that rank without interpolation, as the measured summaries have it."""
    ranked = np.sort(values)
    return float(ranked[min(ranked.size - 1, int(ranked.size * fraction))])


def summary_of(record: Record) -> npt.NDArray[Any]:
    """TTFT p50, p95 and p99, TPOT p50 and p95 (not a number without second tokens), and output tokens a second."""
    duration = float(record.last_token.max() - record.sent_at.min())
    return _summary(record.ttft, record.tpot, record.num_output.sum() / duration)


def measured_summary(run: MeasuredRun) -> npt.NDArray[Any]:
    return _summary(run.ttft, run.tpot, run.output_tokens_per_second)


def _summary(ttft: npt.NDArray[Any], tpot: npt.NDArray[Any], rate: float) -> npt.NDArray[Any]:
    first = [quantile(ttft, fraction) for fraction in TTFT_FRACTIONS]
    later = [quantile(tpot, fraction) if tpot.size else np.nan for fraction in TPOT_FRACTIONS]
    return np.array([*first, *later, rate])


def energy_of_record(deployment: Deployment, timer: KernelTimer, run: MeasuredRun, record: Record) -> Energy | None:
    duration = float(np.nanmax(record.last_token) - np.nanmin(record.sent_at))
    return energy_of_pools([(deployment, timer, [record])], run.workload, record, duration)


def compare_joules(run: MeasuredRun, energy: Energy | None) -> Comparison | None:
    """Joules of an output token; None where the file has none, or the run was too short for the counter."""
    least_seconds = 1.0  # shorter runs show little: the counter moves ten times a second
    if energy is None or run.joules is None or not run.mean_watts or run.joules / run.mean_watts < least_seconds:
        return None
    tokens = sum(request.num_output for request in run.workload.requests)
    before_seconds = 0.05  # the counter is read this long before the clock of a run starts
    before = (before_seconds + run.workload.requests[0].arrival) * energy.idle_watts
    predicted = (energy.joules + before) / tokens
    return Comparison(run.joules / tokens, predicted, log((energy.high + before) / tokens / predicted))


# Errors by how much was asked of an engine.

CLASSES = ((8.0, "up to 8/s"), (16.0, "9 to 16/s"), (30.0, "17 to 30/s"), (inf, "above 30/s"))
"""Arrivals a second up to which a run belongs to a class."""
STATIC, PREFIX = "static", "prefix"
"""Batches sent at once are no load over time; runs with shared prefixes are a class of their own at any rate."""


class Errors(NamedTuple):
    """Of one quantity over some runs, as fractions of what was measured."""

    median: float
    mean: float
    p90: float
    bias: float  # The median with its sign: below 0, forecasts are too fast


@dataclass(frozen=True, slots=True)
class LoadErrors:
    name: str
    num_runs: int
    ttft_p50: Errors | None
    tpot_p50: Errors | None


def load_class(run: MeasuredRun) -> str | None:
    if run.kind == STATIC or is_at_once(run.workload):
        return None
    if run.kind == PREFIX:
        return PREFIX
    return next(name for most, name in CLASSES if run.rate <= most)


def errors_of(pairs: Iterable[Comparison | None]) -> Errors | None:
    errors = np.array([pair.error for pair in pairs if pair is not None])
    if not errors.size:
        return None
    sizes = np.abs(errors)
    return Errors(*map(float, (np.median(sizes), sizes.mean(), np.quantile(sizes, 0.9), np.median(errors))))


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run; times in seconds."""

    file: str
    kind: str
    label: str
    ttft_p50: Comparison
    ttft_p99: Comparison
    tpot_p50: Comparison | None
    output_tokens_per_second: Comparison
    ttft_p95: Comparison | None = None
    tpot_p95: Comparison | None = None
    slower: float = 0.0  # How much slower than forecast the middle of what such a run shows is (`slower_by`)
    scatter: Scatter | None = None
    parts: Parts | None = None
    cached_tokens: Comparison | None = None  # Prompt tokens that were found in a cache, where the file has them ...
    loaded_tokens: Comparison | None = None  # ... and those of them from the host's memory, where there is such a tier
    joules_per_output_token: Comparison | None = None
    load: str | None = None  # The class of load, where requests arrive over time


@dataclass(frozen=True, slots=True)
class Validation:
    runs: tuple[RunComparison, ...]
    kv_blocks: tuple[tuple[str, Comparison | None], ...]  # Of each file; None where the number was set, not forecast
    num_stalled: int
    hosts: dict[str, str] = field(default_factory=dict)  # Of files whose machine was probed or named: its host times

    def median_ape(self, quantity: str, kind: str | None = None) -> float | None:
        """Median error of one quantity over the runs, or over those of one kind."""
        return _median("ape", (getattr(run, quantity) for run in self.runs if kind in (None, run.kind)))

    def coverage(self, *quantities: str, kind: str | None = None, file: str | None = None) -> float | None:
        """Fraction of the measured values in the 80 % intervals that `simulate` shows of the same runs."""
        return self._mean_of("is_inside", quantities, kind, file)

    def width(self, *quantities: str, kind: str | None = None, file: str | None = None) -> float | None:
        """The mean half width of these intervals, as a fraction of the forecast: the narrower, the sharper."""
        return self._mean_of("width", quantities, kind, file)

    def _mean_of(self, name: str, quantities: Iterable[str], kind: str | None, file: str | None) -> float | None:
        chosen = [run for run in self.runs if kind in (None, run.kind) and file in (None, run.file)]
        pairs = (getattr(run, quantity) for run in chosen for quantity in quantities)
        values = [value for pair in pairs if pair is not None and (value := getattr(pair, name)) is not None]
        return float(np.mean(values)) if values else None

    def median_loaded(self, quantity: str) -> float | None:
        loaded = (run for run in self.runs if run.parts is not None and not run.parts.is_static)
        return _median("ape", (getattr(run, quantity) for run in loaded))

    def by_load(self) -> tuple[LoadErrors, ...]:
        """Errors under load, from light to heavy, and of shared prefixes."""
        classes = [*(name for _, name in CLASSES), PREFIX]
        of_class = {name: [run for run in self.runs if run.load == name] for name in classes}
        return tuple(
            LoadErrors(
                name, len(runs), errors_of(run.ttft_p50 for run in runs), errors_of(run.tpot_p50 for run in runs)
            )
            for name, runs in of_class.items()
        )

    def median_part(self, part: str) -> float | None:
        return _median("ape", (getattr(run.parts, part) for run in self.runs if run.parts is not None))

    def file_parts(self) -> tuple[FileParts, ...]:
        return tuple(_file_parts(name, [run for run in self.runs if run.file == name]) for name, _ in self.kv_blocks)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.kind for run in self.runs))


def _file_parts(name: str, runs: list[RunComparison]) -> FileParts:
    parts = [(run, run.parts) for run in runs if run.parts is not None]
    idle = [(each.num_input, each.idle_ttft) for _, each in parts if each.idle_ttft is not None]
    shortest = min((tokens for tokens, _ in idle), default=0)
    return FileParts(
        file=name,
        idle_ttft=_median("error", (pair for tokens, pair in idle if tokens == shortest)),
        decode_step=_median("error", (each.decode_step for _, each in parts)),
        prompts=_median("error", (each.prompts for _, each in parts)),
        loaded_ttft=_median("error", (run.ttft_p50 for run, each in parts if not each.is_static)),
    )


def _median(error: str, pairs: Iterable[Comparison | None]) -> float | None:
    errors = [getattr(pair, error) for pair in pairs if pair is not None]
    return float(np.median(errors)) if errors else None


def validate(
    files: Iterable[MeasuredFile], *, model_config: Path | None = None, gpu: str | None = None,
    predictor: str | Predictor = "learned", host: str | Path | None = None, warmed_up: bool = False,
    real_weights: bool = False, without: str | None = None, progress: Callable[[str], None] | None = None,
) -> Validation:  # fmt: skip
    """Re-run every measured run; ``model_config`` is a folder of ``<name>.json``, bundled models serve otherwise. Runs
    of a file follow each other on one engine, cold unless ``warmed_up``, with dummy weights unless ``real_weights``.
    The host is ``host``, or as a probe with the file says, or the bundled one. ``without`` turns a part of the forecast
    off (`PARTS`); such forecasts have no intervals.
    """
    if without is not None and without not in PARTS:
        raise UnknownNameError("part to leave out", without, PARTS)
    runs: list[RunComparison] = []
    kv_blocks: list[tuple[str, Comparison | None]] = []
    num_stalled = 0
    hosts: dict[str, str] = {}
    for measured in files:
        deployment, is_set = _started(
            measured, model_config, gpu, predictor, host, real_weights=real_weights, without=without
        )
        num_blocks = None if is_set else measured.setup.num_gpu_blocks
        blocks = None if num_blocks is None else Comparison(num_blocks, deployment.memory.num_blocks)
        kv_blocks.append((measured.path.name, blocks))
        num_stalled += measured.num_stalled
        if deployment.host.is_measured or host is not None:
            hosts[measured.path.name] = deployment.host.title
        replica = deployment.replica(warmed_up=warmed_up or measured.is_warm)
        for run in (with_images_of(each, deployment.model) for each in measured.runs):
            if progress is not None:
                progress(f"{measured.path.name}: {run.label}")
            before = replace(replica, first_uses=None if replica.first_uses is None else replica.first_uses.copy())
            record = (served_alone if without == SCHEDULER else simulate)(replica, run.workload)
            if run.kind == WARM_UP:
                continue
            if without is not None:
                runs.append(_compare(measured.path.name, run, record, None, 0.0, None))
                continue
            widths = _half_widths(before, deployment, run, record)
            joules = _joules(deployment, replica, run, record)
            slower = slower_by([deployment], run.workload)
            runs.append(_compare(measured.path.name, run, record, widths, slower, joules))
    return Validation(tuple(runs), tuple(kv_blocks), num_stalled, hosts)


def _joules(deployment: Deployment, replica: Replica, run: MeasuredRun, record: Record) -> Comparison | None:
    if run.joules is None or not isinstance(replica.timer, KernelTimer):
        return None
    return compare_joules(run, energy_of_record(deployment, replica.timer, run, record))


def deployment_of(
    measured: MeasuredFile, model_config: Path | None, gpu: str | None, predictor: str | Predictor = "learned", *,
    real_weights: bool = False,
) -> Deployment:  # fmt: skip
    return _started(measured, model_config, gpu, predictor, None, real_weights=real_weights)[0]


def _started(
    measured: MeasuredFile, model_config: Path | None, gpu: str | None, predictor: str | Predictor,
    host: str | Path | None, *, real_weights: bool, without: str | None = None,
) -> tuple[Deployment, bool]:  # fmt: skip
    source: str | Path = measured.model
    if model_config is not None and (model_config / f"{measured.model}.json").is_file():
        source = model_config / f"{measured.model}.json"
    setup = measured.setup
    if not (gpu or measured.gpu):
        raise FileFormatError(measured.path, "config.gpu is missing; name the GPU there, or with --gpu")
    engine = engine_of(setup.settings)
    model = load_model(source, engine=engine, **cast("ModelOptions", setup.model))

    def start(settings: Settings) -> Deployment:
        deployment = deploy(
            model if real_weights else with_dummy_weights(model, engine.tied_routers),
            gpu or gpu_from_driver_name(measured.gpu), settings_without(without, settings),
            tensor_parallel_size=setup.tensor_parallel_size, api_server=setup.over_http, predictor=predictor,
            host=host or measured.probe,
        )  # fmt: skip
        return deployment_without(without, deployment)

    deployment = start(setup.settings)
    if (blocks := setup.num_gpu_blocks) is None:
        return deployment, True
    if blocks < 0.8 * deployment.memory.num_blocks:  # they were set, though the file may not say so
        return start(setup.with_those_blocks), True
    return deployment, setup.blocks_were_set


def _half_widths(replica: Replica, deployment: Deployment, run: MeasuredRun, record: Record) -> list[float]:
    uncertainty = uncertainty_of(deployment, record)
    luck = with_pauses(chance_in(record), deployment)
    widths = half_widths(replica, uncertainty, lambda engine: smoothed_of(simulate(engine, run.workload)), luck)
    return [float(widths.combined[each]) for each in IN_RESULTS]


def _compare(
    file: str, run: MeasuredRun, record: Record, widths: list[float] | None, slower: float, joules: Comparison | None
) -> RunComparison:
    both = zip(measured_summary(run).tolist(), summary_of(record).tolist(), strict=True)
    pairs = [Comparison(*each) for each in both]
    if widths is not None:
        halves = zip(pairs, widths, strict=True)
        pairs = [replace(pair, half_width=half, middle=half * slower / EIGHTY) for pair, half in halves]
    pairs[-1] = replace(pairs[-1], middle=-pairs[-1].middle)  # what is slower has a lower rate
    names = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "output_tokens_per_second")
    latencies: dict[str, Any] = dict(zip(names, pairs, strict=True))
    if not record.tpot.size:
        latencies |= {"tpot_p50": None, "tpot_p95": None}
    cached_tokens, loaded_tokens = _hits(run, record)
    # Both sides are in order of arrival, so requests face each other
    ttft = np.abs(record.ttft / run.ttft - 1)
    tpot = np.abs(record.tpot / run.tpot - 1) if run.tpot.size else None
    first_measured = run.ttft + np.array([request.arrival for request in run.workload.requests])
    return RunComparison(
        file=file, kind=run.kind, label=run.label, **latencies, slower=slower,
        scatter=Scatter(
            ttft_median=float(np.median(ttft)),
            ttft_p90=float(np.quantile(ttft, 0.9)),
            tpot_median=None if tpot is None else float(np.median(tpot)),
            tpot_p90=None if tpot is None else float(np.quantile(tpot, 0.9)),
            start_order=rank_correlation(first_measured, record.first_token),
            ttft_order=rank_correlation(run.ttft, record.ttft),
        ),
        parts=parts_of(run, record), cached_tokens=cached_tokens, loaded_tokens=loaded_tokens,
        joules_per_output_token=joules, load=load_class(run),
    )  # fmt: skip


def _hits(run: MeasuredRun, record: Record) -> tuple[Comparison | None, Comparison | None]:
    """Tokens from either tier and from the second one, where anything was found."""
    if run.hits is None or not run.hits.cached:
        return None, None
    cached = Comparison(run.hits.cached, float(record.num_cached.sum()))
    if record.tier is None or not run.hits.loaded:
        return cached, None
    return cached, Comparison(run.hits.loaded, float(record.tier.num_loaded.sum()))
