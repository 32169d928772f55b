"""Forecasts held against published runs: the stated engine, the stated load, means against means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.engines.host import bundled_host, read_host
from infercast.engines.registry import engine_named
from infercast.engines.vllm.host import VllmHost
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED
from infercast.errors import InfercastError, InputError
from infercast.forecast.command.flags import Reading
from infercast.forecast.deploy import deploy, load_model
from infercast.forecast.intervals.intervals import system_half_widths
from infercast.forecast.intervals.odds import slower_by
from infercast.forecast.intervals.uncertainty import uncertainty_of
from infercast.forecast.system import busiest, system_of
from infercast.models.spec import ModelConfig
from infercast.serve.fleet.served import Served
from infercast.validate.parts import Comparison
from infercast.validate.published.flags import FIRST_V1
from infercast.validate.published.run import PublishedRun

QUANTITIES = ("ttft", "tpot", "end_to_end", "output_tokens_per_second")
FORMATS = {"bf16": "", "fp16": "", "bfloat16": "", "float16": "", "fp4": "nvfp4"}
"""Publishers' names of weight formats, where they are not ours; nothing for the checkpoint's own."""
TRAINED_ROUTING = "power_law_1.2"
"""Published runs have trained weights, whose routers prefer some experts."""
V0_SEQUENCE_SECONDS = 80e-6
"""What a token cost the one thread that both served and computed, before V1; fitted on published bursts."""
CONTEXT_MARGIN = 256
"""Publishers of closed loops set max_model_len a little above prompt and answer."""


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """One run; times in seconds. A quantity that was not published, or cannot be judged, is None."""

    run: PublishedRun
    ttft: Comparison | None = None
    tpot: Comparison | None = None
    end_to_end: Comparison | None = None
    output_tokens_per_second: Comparison | None = None
    problem: str = ""
    """Why there is no forecast."""
    slower: float = 0.0
    """How much slower than forecast the middle of what such a run shows is (`slower_by`)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of one quantity over some runs."""

    count: int
    median: float
    mean: float
    p90: float
    bias: float
    """Median of the signed errors."""
    inside: float
    """Share of the measured values in the 80 % intervals of forecasts."""


def compare_published(
    runs: Iterable[PublishedRun],
    *,
    predictor: str = "learned",
    host: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[PublishedComparison, ...]:
    """Simulate every run; one that we refuse to simulate is kept with the reason."""
    compared = []
    for run in runs:
        if progress is not None:
            progress(run.run_id)
        try:
            if run.problem:
                raise InputError(run.problem)
            compared.append(_compare(run, deployment_of(run, predictor, host)))
        except InfercastError as problem:
            compared.append(PublishedComparison(run, problem=str(problem)))
    return tuple(compared)


def summarise(compared: Iterable[PublishedComparison], quantity: str) -> Summary | None:
    """Errors of one quantity; None where no run tells it."""
    pairs = [pair for each in compared if (pair := getattr(each, quantity)) is not None]
    errors = np.array([pair.error for pair in pairs])
    if not errors.size:
        return None
    sizes = np.abs(errors)
    return Summary(
        count=errors.size,
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(errors)),
        inside=float(np.mean([bool(pair.is_inside) for pair in pairs])),
    )


def deployment_of(run: PublishedRun, predictor: str = "learned", host: Path | None = None) -> Deployment:
    """The engine of a run, as we would set it up."""
    if run.reading is not None:
        return _commanded(run, run.reading, predictor, host)
    flags = run.flags
    model = _model(run)
    longest = max(request.num_input + request.num_output for request in run.workload.requests)
    context = min(model.max_positions, run.max_model_len or longest + CONTEXT_MARGIN)
    settings = EngineSettings(**{**flags.settings, "max_model_len": context, "engine": MEASURED})
    if settings.max_num_batched_tokens is not None and not settings.enable_chunked_prefill:
        # Without chunks a prompt must fit in one step.
        settings = replace(settings, max_num_batched_tokens=max(settings.max_num_batched_tokens, context))
    return deploy(
        model,
        run.gpu,
        settings,
        tensor_parallel_size=run.tensor,
        data_parallel_size=run.data,
        enable_expert_parallel=run.expert_parallel,
        fuse_allreduce_rms=flags.fuse_allreduce_rms,
        api_server=True,
        predictor=predictor,
        host=_host(run, host),
    )


def _commanded(run: PublishedRun, reading: Reading, predictor: str, host: Path | None) -> Deployment:
    """The engine that a command starts."""
    engine = engine_named(run.engine)
    quantization = FORMATS.get(run.dtype, run.dtype) or None
    model = load_model(run.model, quantization=quantization)
    older_settings, older_options = engine.before(run.version, model)
    options = {"quantization": quantization, **older_options, **reading.options}
    options |= {"tensor_parallel_size": run.tensor, "data_parallel_size": run.data}
    return deploy(
        run.model,
        run.gpu,
        engine.settings({**older_settings, **reading.settings}),
        **{"enable_expert_parallel": run.expert_parallel, "expert_routing": TRAINED_ROUTING, **options},
        api_server=True,
        predictor=predictor,
        host=host,
    )


def _host(run: PublishedRun, path: Path | None) -> VllmHost:
    """The machine beside the GPUs; before vLLM's V1 engine the server shared its thread with the engine."""
    host = bundled_host(VllmHost, "vllm") if path is None else read_host(path, VllmHost)
    if run.version >= FIRST_V1:
        return host
    return replace(host, process_sequence=host.process_sequence + V0_SEQUENCE_SECONDS)


def _model(run: PublishedRun) -> ModelConfig:
    """The checkpoint: quantised while loading where the publisher states a format that the plain name does not have."""
    quantization = FORMATS.get(run.dtype, run.dtype)
    model = load_model(
        run.model,
        quantization=quantization or None,
        kv_cache_dtype=run.flags.kv_cache_dtype,
        expert_routing=TRAINED_ROUTING,
    )
    if model.weights.experts == "mxfp4":
        activations = "fp8" if run.flags.eight_bit_experts else model.weights.activation_experts
        kernel = "" if run.flags.moe_backend == "auto" else run.flags.moe_backend
        weights = replace(model.weights, activation_experts=activations, experts_kernel=kernel)
        return replace(model, weights=weights)
    return model


def means_of(served: Served) -> npt.NDArray[Any]:
    """Mean TTFT, TPOT and time to the last token, and output tokens a second."""
    return _summed_up(served, np.mean)


def medians_of(served: Served) -> npt.NDArray[Any]:
    """The same with medians over the requests."""
    return _summed_up(served, np.median)


def _summed_up(served: Served, middle: Callable[..., Any]) -> npt.NDArray[Any]:
    duration = float(served.last_token.max() - served.sent_at.min())
    every = (served.ttft, served.tpot, served.end_to_end)
    latencies = [float(middle(values)) if values.size else np.nan for values in every]  # one token has no second one
    return np.array([*latencies, float(served.num_output.sum()) / duration])


def _compare(run: PublishedRun, deployment: Deployment) -> PublishedComparison:
    """Means of one simulated run beside the published ones."""
    system = system_of(deployment)
    served = system.serve(run.workload)
    uncertainty = uncertainty_of(deployment, busiest(served.records[0]))
    summed_up = medians_of if run.median else means_of
    predicted = summed_up(served.clients)
    widths = system_half_widths(system, run.workload, [uncertainty], summed_up, np.zeros(predicted.size))
    pairs = (
        None if (measured := getattr(run, name)) is None or np.isnan(value) else Comparison(measured, value, width)
        for name, value, width in zip(QUANTITIES, predicted.tolist(), widths.tolist(), strict=True)
    )
    ttft, tpot, end_to_end, rate = pairs
    return PublishedComparison(run, ttft, tpot, end_to_end, rate, slower=slower_by([deployment], run.workload))
