"""The engine of a published run, as we would set it up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.host import bundled_host, read_host
from infercast.engines.registry import engine_named
from infercast.engines.vllm.host import VllmHost
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED
from infercast.errors import DoesNotFitError
from infercast.forecast.command.flags import Reading
from infercast.forecast.deploy import deploy, load_model
from infercast.hardware import load_gpu
from infercast.models.spec import ModelConfig
from infercast.predict.adjust.typical import with_older_kernels
from infercast.validate.published.flags import FIRST_V1, V0_BATCHED_TOKENS
from infercast.validate.published.run import PublishedRun

FORMATS = {"bf16": "", "fp16": "", "bfloat16": "", "float16": "", "fp4": "nvfp4"}
"""Publishers' names of weight formats, where they are not ours; nothing for the checkpoint's own."""
TRAINED_ROUTING = "power_law_1.2"
"""Published runs have trained weights, whose routers prefer some experts."""
V0_SEQUENCE_SECONDS = 80e-6
"""What a token cost the one thread that both served and computed, before V1; fitted on published bursts."""
CONTEXT_MARGIN = 256
"""Publishers of closed loops set max_model_len a little above prompt and answer."""


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
    """The engine that a command starts; one whose longest context has no room is told the longest of its requests."""
    engine = engine_named(run.engine)
    quantization = FORMATS.get(run.dtype, run.dtype) or None
    model = load_model(run.model, quantization=quantization, engine=engine)
    older_settings, older_options = engine.before(run.version, model)
    options = {"quantization": quantization, **older_options, **reading.options}
    options |= {
        "tensor_parallel_size": run.tensor,
        "pipeline_parallel_size": run.pipeline,
        "data_parallel_size": run.data,
    }
    gpu = load_gpu(run.gpu)
    if run.version and run.version < engine.tuned_since.get(gpu.kernels, ()):
        gpu = with_older_kernels(gpu)
    told = {**run.settings, **older_settings, **reading.settings, **run.settings}
    longest = max(request.num_input + request.num_output for request in run.workload.requests)
    context = {"vllm": "max_model_len", "sglang": "context_length"}[engine.family]

    def start(settings: dict[str, Any]) -> Deployment:
        if settings.get("enable_chunked_prefill") is False:
            # Without chunks a prompt must fit in one step.
            most = settings.get("max_num_batched_tokens") or V0_BATCHED_TOKENS
            settings = {**settings, "max_num_batched_tokens": max(most, settings.get(context) or model.max_positions)}
        return deploy(
            run.model,
            gpu,
            engine.settings(settings),
            **{"enable_expert_parallel": run.expert_parallel, "expert_routing": TRAINED_ROUTING, **options},
            api_server=True,
            predictor=predictor,
            host=_host(run, host) if engine.family == "vllm" else host,
        )

    try:
        return start(told)
    except DoesNotFitError:
        if context in reading.settings:
            raise
        return start({**told, context: min(model.max_positions, longest + CONTEXT_MARGIN)})


def _host(run: PublishedRun, path: Path | None) -> VllmHost:
    """The machine beside the GPUs; before vLLM's V1 engine the server shared its thread with the engine."""
    host = bundled_host(VllmHost, "vllm") if path is None else read_host(path, VllmHost)
    if not run.version or run.version >= FIRST_V1:
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
