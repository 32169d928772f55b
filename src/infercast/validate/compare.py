"""Forecasts held against measured runs: same requests, same arrivals, same settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.registry import engine_of
from infercast.engines.settings import Settings
from infercast.engines.timer import KernelTimer
from infercast.forecast.deploy import ModelOptions, deploy, load_model
from infercast.forecast.intervals.intervals import half_widths
from infercast.forecast.intervals.odds import slower_by
from infercast.forecast.intervals.results import chance_in, smoothed_of
from infercast.forecast.intervals.uncertainty import EIGHTY, uncertainty_of
from infercast.hardware import gpu_from_driver_name
from infercast.serve import Record, Replica, simulate
from infercast.validate.by_load import CLASSES, PREFIX, LoadErrors, OnOwnHost, errors_of, load_class, on_own_host
from infercast.validate.dummy_weights import with_dummy_weights
from infercast.validate.joules import compare_joules, energy_of_record
from infercast.validate.measured import WARM_UP, MeasuredFile, MeasuredRun
from infercast.validate.parts import Comparison, FileParts, Parts, parts_of
from infercast.validate.scatter import Scatter, scatter_of
from infercast.validate.summaries import IN_RESULTS, measured_summary, summary_of

SET_BELOW = 0.8
"""An engine with fewer KV blocks than this share of what fits was told how many, though its file may not say so."""


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
    slower: float = 0.0
    """How much slower than forecast the middle of what such a run shows is (`slower_by`)."""
    scatter: Scatter | None = None
    """Request by request."""
    parts: Parts | None = None
    """What of the run can be told apart."""
    cached_tokens: Comparison | None = None
    """Prompt tokens that were found in a cache, where the file has them ..."""
    loaded_tokens: Comparison | None = None
    """... and those of them that came from the host's memory, where there is such a tier."""
    joules_per_output_token: Comparison | None = None
    """Of the GPU's board, where the file has them."""
    load: str | None = None
    """The class of load, where requests arrive over time ..."""
    own_host: OnOwnHost | None = None
    """... and the same run at the host's speed that the lightest load of its file shows."""


@dataclass(frozen=True, slots=True)
class Validation:
    """All runs of all files."""

    runs: tuple[RunComparison, ...]
    kv_blocks: tuple[tuple[str, Comparison | None], ...]
    """Of each file; None where the number was set and is no forecast."""
    num_stalled: int

    def median_ape(self, quantity: str, kind: str | None = None) -> float | None:
        """Median error of one quantity over the runs, or over those of one kind."""
        return _median("ape", (getattr(run, quantity) for run in self.runs if kind in (None, run.kind)))

    def coverage(self, *quantities: str, kind: str | None = None, file: str | None = None) -> float | None:
        """How many of the measured values lie in the 80 % intervals that `simulate` shows of the same runs, as a
        fraction; of some runs only if told so.
        """
        chosen = [run for run in self.runs if kind in (None, run.kind) and file in (None, run.file)]
        pairs = (getattr(run, quantity) for run in chosen for quantity in quantities)
        inside = [pair.is_inside for pair in pairs if pair is not None and pair.is_inside is not None]
        return float(np.mean(inside)) if inside else None

    def width(self, *quantities: str, kind: str | None = None, file: str | None = None) -> float | None:
        """The mean half width of these intervals, as a fraction of the forecast: the narrower, the sharper."""
        chosen = [run for run in self.runs if kind in (None, run.kind) and file in (None, run.file)]
        pairs = (getattr(run, quantity) for run in chosen for quantity in quantities)
        widths = [pair.width for pair in pairs if pair is not None and pair.width is not None]
        return float(np.mean(widths)) if widths else None

    def median_loaded(self, quantity: str) -> float | None:
        """Median error of one quantity over the runs whose requests arrive over time."""
        loaded = (run for run in self.runs if run.parts is not None and not run.parts.is_static)
        return _median("ape", (getattr(run, quantity) for run in loaded))

    def by_load(self) -> tuple[LoadErrors, ...]:
        """Errors under load, from light to heavy, and of shared prefixes."""
        classes = [*(name for _, name in CLASSES), PREFIX]
        return tuple(_load_errors(name, [run for run in self.runs if run.load == name]) for name in classes)

    def median_part(self, part: str) -> float | None:
        """Median error of one part over the runs that tell it."""
        return _median("ape", (getattr(run.parts, part) for run in self.runs if run.parts is not None))

    def file_parts(self) -> tuple[FileParts, ...]:
        """Where the errors of each file come from."""
        return tuple(_file_parts(name, [run for run in self.runs if run.file == name]) for name, _ in self.kv_blocks)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of runs, in order of appearance."""
        return tuple(dict.fromkeys(run.kind for run in self.runs))


def _load_errors(name: str, runs: list[RunComparison]) -> LoadErrors:
    known = [run.own_host for run in runs if run.own_host is not None]
    return LoadErrors(
        name=name,
        num_runs=len(runs),
        ttft_p50=errors_of(run.ttft_p50 for run in runs),
        tpot_p50=errors_of(run.tpot_p50 for run in runs),
        num_known=len(known),
        ttft_p50_known=errors_of(each.ttft_p50 for each in known),
        tpot_p50_known=errors_of(each.tpot_p50 for each in known),
    )


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
    """Of an error by its name, over those that are known."""
    errors = [getattr(pair, error) for pair in pairs if pair is not None]
    return float(np.median(errors)) if errors else None


def validate(
    files: Iterable[MeasuredFile],
    *,
    model_config: Path | None = None,
    gpu: str | None = None,
    predictor: str = "learned",
    host: Path | None = None,
    warmed_up: bool = False,
    real_weights: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """Re-run every measured run; ``model_config`` is a folder of ``<name>.json``, bundled models serve otherwise.

    The runs of a file follow each other on one engine, which starts cold unless it was ``warmed_up`` before,
    and had dummy weights unless they were ``real_weights``.
    """
    runs: list[RunComparison] = []
    kv_blocks: list[tuple[str, Comparison | None]] = []
    num_stalled = 0
    for measured in files:
        deployment, is_set = _started(measured, model_config, gpu, predictor, host, real_weights=real_weights)
        blocks = None if is_set else Comparison(measured.setup.num_gpu_blocks, deployment.memory.num_blocks)
        kv_blocks.append((measured.path.name, blocks))
        num_stalled += measured.num_stalled
        replica = deployment.replica(warmed_up=warmed_up)
        loaded: list[tuple[Replica, MeasuredRun]] = []
        first = len(runs)
        for run in measured.runs:
            if progress is not None:
                progress(f"{measured.path.name}: {run.label}")
            before = replace(replica, first_uses=deepcopy(replica.first_uses))
            record = simulate(replica, run.workload)
            if run.kind == WARM_UP:
                continue
            widths = _half_widths(before, deployment, run, record)
            compared = _compare(measured, run, record, widths, slower_by([deployment], run.workload))
            joules = _joules(deployment, replica, run, record)
            runs.append(replace(compared, joules_per_output_token=joules, load=load_class(run)))
            if runs[-1].load is not None:
                loaded.append((before, run))
        own_hosts = iter(on_own_host(loaded))
        runs[first:] = [run if run.load is None else replace(run, own_host=next(own_hosts)) for run in runs[first:]]
    return Validation(tuple(runs), tuple(kv_blocks), num_stalled)


def _joules(deployment: Deployment, replica: Replica, run: MeasuredRun, record: Record) -> Comparison | None:
    """Joules of an output token, of runs whose files have them."""
    if run.joules is None or not isinstance(replica.timer, KernelTimer):
        return None
    return compare_joules(run, energy_of_record(deployment, replica.timer, run, record))


def deployment_of(
    measured: MeasuredFile,
    model_config: Path | None,
    gpu: str | None,
    predictor: str = "learned",
    host: Path | None = None,
    *,
    real_weights: bool = False,
) -> Deployment:
    """The engine that a file was measured on, as we would set it up."""
    return _started(measured, model_config, gpu, predictor, host, real_weights=real_weights)[0]


def _started(
    measured: MeasuredFile,
    model_config: Path | None,
    gpu: str | None,
    predictor: str,
    host: Path | None,
    *,
    real_weights: bool,
) -> tuple[Deployment, bool]:
    """The engine of a file, and whether it was told how many KV blocks to have."""
    source: str | Path = measured.model
    if model_config is not None and (model_config / f"{measured.model}.json").is_file():
        source = model_config / f"{measured.model}.json"
    setup = measured.setup
    engine = engine_of(setup.settings)
    model = load_model(source, engine=engine, **cast("ModelOptions", setup.model))

    def start(settings: Settings) -> Deployment:
        return deploy(
            model if real_weights else with_dummy_weights(model, ties_groups=engine.ties_groups),
            gpu or gpu_from_driver_name(measured.gpu),
            settings,
            tensor_parallel_size=setup.tensor_parallel_size,
            api_server=False,  # measured from a program that holds the engine
            predictor=predictor,
            host=host,
        )

    deployment = start(setup.settings)
    if setup.num_gpu_blocks < SET_BELOW * deployment.memory.num_blocks:
        return start(setup.with_those_blocks), True
    return deployment, setup.blocks_were_set


def _half_widths(replica: Replica, deployment: Deployment, run: MeasuredRun, record: Record) -> list[float]:
    """How far each of these may be off; the engine is as it was before the run."""
    uncertainty = uncertainty_of(deployment, record)
    widths = half_widths(
        replica, uncertainty, lambda engine: smoothed_of(simulate(engine, run.workload)), chance_in(record)
    )
    return [float(widths.together[each]) for each in IN_RESULTS]


def _compare(
    measured: MeasuredFile, run: MeasuredRun, record: Record, widths: list[float], slower: float
) -> RunComparison:
    """Percentiles and throughput of one run, both sides by the same definitions."""
    both = zip(measured_summary(run).tolist(), summary_of(record).tolist(), widths, strict=True)
    pairs = [Comparison(*each, middle=each[2] * slower / EIGHTY) for each in both]
    pairs[-1] = replace(pairs[-1], middle=-pairs[-1].middle)  # what is slower has a lower rate
    cached_tokens, loaded_tokens = _hits(run, record)
    ttft_p50, ttft_p95, ttft_p99, tpot_p50, tpot_p95, rate = pairs
    return RunComparison(
        file=measured.path.name,
        kind=run.kind,
        label=run.label,
        ttft_p50=ttft_p50,
        ttft_p95=ttft_p95,
        ttft_p99=ttft_p99,
        tpot_p50=tpot_p50 if record.tpot.size else None,
        tpot_p95=tpot_p95 if record.tpot.size else None,
        output_tokens_per_second=rate,
        slower=slower,
        scatter=scatter_of(run, record),
        parts=parts_of(run, record),
        cached_tokens=cached_tokens,
        loaded_tokens=loaded_tokens,
    )


def _hits(run: MeasuredRun, record: Record) -> tuple[Comparison | None, Comparison | None]:
    """Tokens from either tier and from the second one, where anything was found."""
    if run.hits is None or not run.hits.cached:
        return None, None
    cached = Comparison(run.hits.cached, float(record.num_cached.sum()))
    if record.tier is None or not run.hits.loaded:
        return cached, None
    return cached, Comparison(run.hits.loaded, float(record.tier.num_loaded.sum()))
