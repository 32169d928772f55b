"""The engine of a published run, as we would set it up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from infercast.engines.deployment import Deployment
from infercast.engines.host import bundled_host, read_host
from infercast.engines.registry import engine_named
from infercast.engines.vllm.host import VllmHost
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED
from infercast.forecast.deploy import deploy, load_model
from infercast.models.spec import ModelConfig
from infercast.validate.published.commanded import CONTEXT_MARGIN, TRAINED_ROUTING, V0_SEQUENCE_SECONDS, started
from infercast.validate.published.flags import FIRST_V1
from infercast.validate.published.run import PublishedRun

FORMATS = {"bf16": "", "fp16": "", "bfloat16": "", "float16": "", "fp4": "nvfp4"}
"""Publishers' names of weight formats, where they are not ours; nothing for the checkpoint's own."""


def deployment_of(run: PublishedRun, predictor: str = "learned", host: Path | None = None) -> Deployment:
    """The engine of a run, as we would set it up."""
    return set_up(run, predictor, host)[1]


def set_up(run: PublishedRun, predictor: str = "learned", host: Path | None = None) -> tuple[PublishedRun, Deployment]:
    """The engine of a run, and the run with what had to be assumed for it to start."""
    if run.reading is None:
        return run, _worded(run, predictor, host)
    costs = None if host is None else read_host(host, engine_named(run.engine).host_type)
    return started(run, predictor, costs)


def _worded(run: PublishedRun, predictor: str, host: Path | None) -> Deployment:
    """The engine of a run whose settings are told in words."""
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
