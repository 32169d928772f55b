"""The engine that a published command starts, and what must be assumed for it to start at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.host import HostCosts
from infercast.engines.registry import AnyEngine, engine_named
from infercast.engines.vllm.host import VllmHost
from infercast.engines.vllm.kv import kv_layout
from infercast.engines.vllm.older import chat_turn, sorts_logits
from infercast.errors import DoesNotFitError
from infercast.forecast.deploy import deploy, load_device, load_model
from infercast.hardware import Gpu
from infercast.models.parameters import weight_bytes
from infercast.models.spec import GREEDY, SORTED, ModelConfig
from infercast.predict.adjust.typical import with_older_kernels
from infercast.validate.published.flags import FIRST_V1, V0_BATCHED_TOKENS
from infercast.validate.published.run import PublishedRun

TRAINED_ROUTING = "power_law_1.2"
"""Published runs have trained weights, whose routers prefer some experts."""
V0_SEQUENCE_SECONDS = 80e-6
"""What a token cost the one thread that both served and computed, before V1; fitted on published bursts."""
CONTEXT_MARGIN = 256
"""Publishers of closed loops set max_model_len a little above prompt and answer."""
WITHOUT_TEMPLATE = "gpt-oss"
"""How the names of models begin whose chats are rendered by a library of their own."""
CONTEXTS = {"vllm": "max_model_len", "sglang": "context_length"}
"""What engines call the longest context."""
WIDTHS = (1, 2, 4, 8)
MOST_WEIGHTS = 0.6
"""Where nobody says how GPUs are used, a server has so many that weights take no more of their memory."""


def started(
    run: PublishedRun, predictor: str = "learned", host: HostCosts | None = None
) -> tuple[PublishedRun, Deployment]:
    """The engine of a run with a command; where that has no room, the run says what was assumed to give it some."""
    engine = engine_named(run.engine)
    model = load_model(run.model, quantization=run.dtype or None, engine=engine)
    problem: DoesNotFitError | None = None
    for each in _ways(run, engine, model):
        try:
            deployment = _start(each, engine, model, predictor, host)
            if each.cache_tokens:
                each = _with_cache(each, deployment)  # noqa: PLW2901 - the same run with what its source says
                deployment = _start(each, engine, model, predictor, host)
        except DoesNotFitError as refused:
            problem = problem or refused
        else:
            return _within(each, deployment), deployment
    assert problem is not None
    raise problem


def _with_cache(run: PublishedRun, deployment: Deployment) -> PublishedRun:
    """The run with as many blocks as hold the stated tokens; each group of layers has blocks of its own."""
    size: int = getattr(deployment.settings, "block_size", 16)
    groups = len(kv_layout(deployment.model, deployment.layout, size, 0).shape.sizes)
    blocks = -(-run.cache_tokens // size) * groups
    return replace(run, settings={**run.settings, "num_gpu_blocks_override": blocks})


def _ways(run: PublishedRun, engine: AnyEngine, model: ModelConfig) -> Iterator[PublishedRun]:
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


def _gpu(run: PublishedRun, engine: AnyEngine) -> Gpu:
    """The GPU, with the kernels that the stated release had for it."""
    gpu = load_device(run.gpu, None)
    is_older = run.version and run.version < engine.tuned_since.get(gpu.kernels, ())
    return with_older_kernels(gpu) if is_older else gpu


def _start(
    run: PublishedRun, engine: AnyEngine, model: ModelConfig, predictor: str, host: HostCosts | None
) -> Deployment:
    assert run.reading is not None
    older_settings, older_options = engine.before(run.version, model)
    options = {"quantization": run.dtype or None, **older_options, **run.reading.options}
    options |= {
        "sampling": SORTED if run.top_p and engine.family == "vllm" and sorts_logits(run.version) else GREEDY,
        "tensor_parallel_size": run.tensor,
        "pipeline_parallel_size": run.pipeline,
        "data_parallel_size": run.data,
    }
    settings = {**older_settings, **run.reading.settings, **run.settings}
    if settings.get("enable_chunked_prefill") is False:
        # Without chunks a prompt must fit in one step.
        most = settings.get("max_num_batched_tokens") or V0_BATCHED_TOKENS
        context = settings.get(CONTEXTS[engine.family]) or model.max_positions
        settings = {**settings, "max_num_batched_tokens": max(most, context)}
    return deploy(
        run.model,
        _gpu(run, engine),
        engine.settings(settings),
        **{"enable_expert_parallel": run.expert_parallel, "expert_routing": TRAINED_ROUTING, **options},
        api_server=True,
        predictor=predictor,
        host=_host(run, engine, host),
    )


def _host(run: PublishedRun, engine: AnyEngine, host: HostCosts | None) -> HostCosts:
    """The machine beside the GPUs; before vLLM's V1 engine the server shared its thread with the engine."""
    found = host or engine.default_host()
    if not isinstance(found, VllmHost):
        return found
    if run.chat and not run.model.startswith(WITHOUT_TEMPLATE):
        found = replace(found, server_turn=found.server_turn + chat_turn(run.version))
    if run.version and run.version < FIRST_V1:
        return replace(found, process_sequence=found.process_sequence + V0_SEQUENCE_SECONDS)
    return found


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
