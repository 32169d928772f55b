"""Forecasts held against published runs: the stated engine, the stated load, means against means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engines.base import Deployment, Engine, engine_named
from infercast.engines.vllm.kv_cache import kv_layout
from infercast.errors import DoesNotFitError, InfercastError, InputError
from infercast.forecast.deploy import HostSource, deploy, load_device, load_model
from infercast.forecast.intervals import system_half_widths
from infercast.forecast.slo import percentiles
from infercast.forecast.system import System, busiest, system_of
from infercast.forecast.uncertainty import EIGHTY, slower_by, uncertainty_of
from infercast.lab.validate.compare import Comparison, errors_of
from infercast.models.spec import GREEDY, TOP_P, ModelConfig, weight_bytes
from infercast.serve.record import ServedRequests
from published.run import FORMATS, PublishedRun, ServerFlags

# What a simulated run is summed up to, as its source did: means or medians, over all of it or while it was full.

Array = npt.NDArray[Any]
SETTLED = 0.5  # an open loop without an end is looked at from this share of its time on
LEAST_STEADY = 0.1  # a run that was full for a smaller share of its time is summed up as a whole


def results_of(run: PublishedRun) -> Callable[[ServedRequests], Array]:
    """TTFT, TPOT, time to the last token and output tokens a second, as the source of a run has them."""

    def summed_up(served: ServedRequests) -> Array:
        found = _summed_up(served, np.median if run.median else np.mean)
        window = None
        if run.steady and (last := float(served.sent_at.max())) > float(served.sent_at.min()):
            window = SETTLED * last, last
            found = _summed_up(served, np.median if run.median else np.mean, served.sent_at >= window[0])
        elif run.steady:
            window = _full_from_to(served)
        if run.gaps:
            # The median of all times between tokens, of those in a time where one is given
            ended, gaps, counts = served.timed_gaps
            if window is not None and np.any(within := (ended > window[0]) & (ended <= window[1])):
                gaps, counts = gaps[within], counts[within]
            found[1] = float(percentiles(gaps, counts).p50) if gaps.size else np.nan
        if window is not None:
            found[3] = _tokens_between(served, *window) / (window[1] - window[0])
        found[3] *= run.copies
        return found

    return summed_up


def _summed_up(served: ServedRequests, middle: Callable[..., Any], chosen: Array | None = None) -> Array:
    duration = float(served.last_token.max() - served.sent_at.min())
    every = [served.ttft, served.tpot, served.end_to_end]
    if chosen is not None:
        every = [served.ttft[chosen], served.tpot[chosen[served.num_output > 1]], served.end_to_end[chosen]]
    latencies = [float(middle(values)) if values.size else np.nan for values in every]  # one token has no second one
    return np.array([*latencies, float(served.num_output.sum()) / duration])


def _full_from_to(served: ServedRequests) -> tuple[float, float] | None:
    """The time of full batches: from the last of the first prompts to the last start, when the queue is empty."""
    begin, last = float(served.sent_at.min()), float(served.last_token.max())
    until = float(served.started_at.max())
    ended = float(served.last_token.min())
    first = served.first_token[served.started_at <= ended]
    since = min(float(first.max()), ended) if first.size else begin
    return (since, until) if until - since > LEAST_STEADY * (last - begin) else None


def _tokens_between(served: ServedRequests, since: float, until: float) -> float:
    ended, _, counts = served.timed_gaps
    within = (ended > since) & (ended <= until)
    first = (served.first_token > since) & (served.first_token <= until)
    return float(counts[within].sum() + np.count_nonzero(first))


# The engine that a published command starts, and what must be assumed for it to start at all.

TRAINED_ROUTING = "power_law_1.2"  # published runs have trained weights: routers prefer some experts
CONTEXT_MARGIN = 256  # publishers of closed loops set max_model_len a little above prompt and answer
CONTEXTS = {"vllm": "max_model_len", "sglang": "context_length"}
WIDTHS = (1, 2, 4, 8)
MOST_WEIGHTS = 0.6  # Where the layout is not stated, weights take no more than this of the memory of a server's GPUs


def started(run: PublishedRun, predictor: str = "learned", host: HostSource = None) -> tuple[PublishedRun, Deployment]:
    """The engine of a run with a command; where that has no room, the run says what was assumed to give it some."""
    engine = engine_named(run.engine)
    model = load_model(run.model, quantization=run.dtype or None, engine=engine)
    problem: DoesNotFitError | None = None
    for each in _ways(run, engine, model):
        try:
            deployment = _start(each, engine, predictor, host)
            if each.cache_tokens:
                # The run with as many blocks as hold the stated tokens; each group of layers has blocks of its own
                size: int = getattr(deployment.settings, "block_size", 16)
                groups = len(kv_layout(deployment.model, deployment.layout, size, 0).shape.sizes)
                blocks = -(-each.cache_tokens // size) * groups
                each = replace(each, settings={**each.settings, "num_gpu_blocks_override": blocks})  # noqa: PLW2901 - the same run with what its source says
                deployment = _start(each, engine, predictor, host)
        except DoesNotFitError as refused:
            problem = problem or refused
        else:
            return _within(each, deployment), deployment
    assert problem is not None
    raise problem


def _ways(run: PublishedRun, engine: Engine, model: ModelConfig) -> Iterator[PublishedRun]:
    """The run as it is read, with a shorter context, and over all of its GPUs."""
    assert run.reading is not None
    layouts = [run] if run.layout_stated else [_smallest(run, model)]
    copies = run.pipeline * run.data * run.instances
    wide = run.gpus // copies
    if run.tensor < wide:
        assumed = f"the stated layout has no room for the weights: tensor parallelism over {wide} GPUs"
        layouts.append(replace(run, tensor=wide, assumptions=(*run.assumptions, assumed)))
    context = CONTEXTS[engine.family]
    longest = max(request.num_input + request.num_output for request in run.workload.requests) + CONTEXT_MARGIN
    for each in layouts:
        yield each
        if context not in run.reading.settings and longest < model.max_positions:
            assumed = f"the longest context has no room: {context} {longest}"
            settings = {**each.settings, context: longest}
            yield replace(each, settings=settings, assumptions=(*each.assumptions, assumed))


def _smallest(run: PublishedRun, model: ModelConfig) -> PublishedRun:
    """As many servers as there is room for, each on as few GPUs as hold the weights with some to spare."""
    room = MOST_WEIGHTS * load_device(run.gpu, None).dram_bytes
    fits = (tensor for tensor in WIDTHS if weight_bytes(model).total <= tensor * room and run.gpus % tensor == 0)
    tensor = next(fits, run.gpus)
    copies = run.gpus // tensor
    assumed = f"the layout is not stated: {copies} servers of {tensor} GPUs each, which take turns"
    requests = run.workload.requests
    if requests[-1].arrival > requests[0].arrival:
        requests = requests[::copies]
    return replace(
        run,
        tensor=tensor,
        pipeline=1,
        data=1,
        copies=copies,
        workload=replace(run.workload, requests=requests),
        assumptions=(*run.assumptions, assumed),
    )


def _start(run: PublishedRun, engine: Engine, predictor: str, host: HostSource) -> Deployment:
    assert run.reading is not None
    options = {"quantization": run.dtype or None, **run.reading.options}
    options |= {
        "sampling": TOP_P if run.top_p else GREEDY,
        "tensor_parallel_size": run.tensor,
        "pipeline_parallel_size": run.pipeline,
        "data_parallel_size": run.data,
    }
    return deploy(
        run.model,
        run.gpu,
        engine.settings({**run.reading.settings, **run.settings}),
        **{"enable_expert_parallel": run.expert_parallel, "expert_routing": TRAINED_ROUTING, **options},
        api_server=run.served,
        chat=run.chat,
        predictor=predictor,
        host=host,
    )


def _within(run: PublishedRun, deployment: Deployment) -> PublishedRun:
    """The run with answers that end where the longest context does."""
    longest: Any = getattr(deployment.settings, CONTEXTS[deployment.engine.family], None)
    if not isinstance(longest, int):
        return run
    long = [each for each in run.workload.requests if each.num_input + each.num_output > longest]
    if not long:
        return run
    prompts = (replace(each, num_input=min(each.num_input, longest - 1)) for each in run.workload.requests)
    requests = tuple(replace(each, num_output=min(each.num_output, longest - each.num_input)) for each in prompts)
    assumed = f"{len(long):,} requests end at the longest context of {longest:,} tokens"
    workload = replace(run.workload, requests=requests)
    return replace(run, workload=workload, assumptions=(*run.assumptions, assumed))


def set_up(run: PublishedRun, predictor: str = "learned", host: HostSource = None) -> tuple[PublishedRun, Deployment]:
    """The engine of a run, and the run with what had to be assumed for it to start."""
    return started(run, predictor, host) if run.flags is None else (run, _worded(run, run.flags, predictor, host))


def _worded(run: PublishedRun, flags: ServerFlags, predictor: str, host: HostSource) -> Deployment:
    model = _model(run, flags)
    longest = max(request.num_input + request.num_output for request in run.workload.requests)
    context = min(model.max_positions, run.max_model_len or longest + CONTEXT_MARGIN)
    engine = engine_named(run.engine)
    return deploy(
        model,
        run.gpu,
        engine.settings({**flags.settings, "max_model_len": context}),
        tensor_parallel_size=run.tensor,
        data_parallel_size=run.data,
        enable_expert_parallel=run.expert_parallel,
        fuse_allreduce_rms=flags.fuse_allreduce_rms,
        api_server=True,
        predictor=predictor,
        host=host,
    )


def _model(run: PublishedRun, flags: ServerFlags) -> ModelConfig:
    """The checkpoint: quantised while loading where the publisher states a format that the plain name does not have."""
    quantization = FORMATS.get(run.dtype, run.dtype)
    model = load_model(
        run.model,
        quantization=quantization or None,
        kv_cache_dtype=flags.kv_cache_dtype,
        expert_routing=TRAINED_ROUTING,
    )
    if model.weights.experts == "mxfp4":
        activations = "fp8" if flags.eight_bit_experts else model.weights.activation_experts
        kernel = "" if flags.moe_backend == "auto" else flags.moe_backend
        weights = replace(model.weights, activation_experts=activations, experts_kernel=kernel)
        return replace(model, weights=weights)
    return model


QUANTITIES = ("ttft", "tpot", "end_to_end", "output_tokens_per_second")


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """One run; times in seconds. A quantity that was not published, or cannot be judged, is None."""

    run: PublishedRun
    ttft: Comparison | None = None
    tpot: Comparison | None = None
    end_to_end: Comparison | None = None
    output_tokens_per_second: Comparison | None = None
    problem: str = ""
    slower: float = 0.0  # How much slower than forecast the middle of what such a run shows is (`slower_by`)


@dataclass(frozen=True, slots=True)
class Summary:
    count: int
    median: float
    mean: float
    p90: float
    bias: float
    inside: float  # Share of the measured values in the 80 % intervals that `simulate` shows of the same runs ...
    width: float  # ... and their mean half width, as a fraction of the forecasts.


def compare_published(
    runs: Iterable[PublishedRun],
    *,
    predictor: str = "learned",
    host: HostSource = None,
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
            ready, deployment = set_up(run, predictor, host)
            compared.append(compare_run(ready, system_for(ready, deployment)))
        except InfercastError as problem:
            compared.append(PublishedComparison(run, problem=str(problem)))
    return tuple(compared)


def summarise(compared: Iterable[PublishedComparison], quantity: str) -> Summary | None:
    pairs = [pair for each in compared if (pair := getattr(each, quantity)) is not None]
    errors = errors_of(pairs)
    if errors is None:
        return None
    return Summary(
        count=len(pairs),
        **errors._asdict(),
        inside=float(np.mean([bool(pair.is_inside) for pair in pairs])),
        width=float(np.mean([pair.width or 0.0 for pair in pairs])),
    )


def system_for(run: PublishedRun, deployment: Deployment) -> System:
    return system_of(deployment, instances=run.instances)


def compare_run(
    run: PublishedRun, system: System, summed_up: Callable[[ServedRequests], Array] | None = None
) -> PublishedComparison:
    """``summed_up`` makes the quantities of what clients saw, where it is not as the source does."""
    deployment = system.pools[0].deployment
    served = system.serve(run.workload)
    uncertainty = uncertainty_of(deployment, busiest(served.records[0]), run.version)
    slower = slower_by([deployment], run.workload, run.version)
    summed_up = summed_up or results_of(run)
    predicted = summed_up(served.clients)
    widths = system_half_widths(system, run.workload, [uncertainty], summed_up, np.zeros(predicted.size))
    slower_in = [slower, slower, slower, -slower]
    pairs = (
        None
        if (measured := getattr(run, name)) is None or np.isnan(value)
        else Comparison(measured, value, width, width * moved / EIGHTY)
        for name, value, width, moved in zip(
            QUANTITIES, predicted.tolist(), widths.combined.tolist(), slower_in, strict=True
        )
    )
    ttft, tpot, end_to_end, rate = pairs
    return PublishedComparison(run, ttft, tpot, end_to_end, rate, slower=slower)
