"""From what a user types to a deployment: names and files become models and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.deployment import deploy as deploy_resolved
from infercast.engines.host_presets import named_host
from infercast.engines.vllm.host import Host, default_host, read_host
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.pcie import with_topology
from infercast.models.formats import with_base
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig, with_routing
from infercast.predict.default import make_predictor
from infercast.predict.roofline import Predictor

ModelSource = str | Path | Mapping[str, Any] | ModelConfig
GpuSource = str | Path | Gpu

# Whose kernels can multiply routed experts; ``auto`` is the engine's choice for the GPU and the format.
MOE_BACKENDS = ("auto", "triton", "cutlass", "trtllm", "marlin")
# How tokens spread over experts: each as likely as any other, equal counts, or as uneven as measured tables have it.
ROUTINGS = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")
# How copies that share experts exchange tokens, by vLLM's names.
ALL2ALL_BACKENDS = ("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency")
FUSING_KERNELS = ("hopper", "blackwell")

# vLLM's names for KV-cache formats; both spellings of fp8 take one byte.
KV_DTYPES = {
    "auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip


# vLLM's names for the format of weights that are not quantised; auto: the checkpoint's.
DTYPES = {"auto": "", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16"}


def load_model(
    source: ModelSource,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    moe_backend: str = "auto",
    expert_routing: str = ROUTINGS[0],
    language_model_only: bool = False,
) -> ModelConfig:
    """A model by bundled name, Hugging Face id, path to a config.json, or the config itself as a dict."""
    if isinstance(source, ModelConfig) and quantization not in (None, "none"):
        raise InputError(f"quantization {quantization!r} needs a config to read; give it when {source.name} is loaded")
    model = source if isinstance(source, ModelConfig) else read_model(source, quantization=quantization)
    if language_model_only:
        model = replace(model, vision=None)
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not modelled; known: {', '.join(DTYPES)}")
    if dtype != "auto":
        model = replace(model, weights=with_base(model.weights, DTYPES[dtype]))
    if kv_cache_dtype not in KV_DTYPES:
        raise InputError(f"unknown kv_cache_dtype {kv_cache_dtype!r}; known: {', '.join(KV_DTYPES)}")
    if kv_cache_dtype != "auto":
        model = replace(model, kv_dtype=KV_DTYPES[kv_cache_dtype])
    if moe_backend not in MOE_BACKENDS:
        raise InputError(f"unknown moe_backend {moe_backend!r}; known: {', '.join(MOE_BACKENDS)}")
    if moe_backend != "auto":
        model = replace(model, weights=replace(model.weights, experts_kernel=moe_backend))
    if expert_routing not in ROUTINGS:
        raise InputError(f"unknown expert_routing {expert_routing!r}; known: {', '.join(ROUTINGS)}")
    return model if expert_routing == ROUTINGS[0] else with_routing(model, expert_routing)


def fuses_norms(gpu: Gpu) -> bool:
    """Whether vLLM does so by default: norms ride on all-reduces where FlashInfer has the kernel for it."""
    return gpu.kernels in FUSING_KERNELS


def deploy(
    model: ModelSource,
    gpu: GpuSource,
    settings: EngineSettings | None = None,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    fuse_allreduce_rms: bool | None = None,
    all2all_backend: str = ALL2ALL_BACKENDS[0],
    moe_backend: str = "auto",
    expert_routing: str = ROUTINGS[0],
    language_model_only: bool = False,
    network: str | None = None,
    pcie_topology: str | None = None,
    api_server: bool = True,
    predictor: str | Predictor = "learned",
    host: Path | Host | str | None = None,
    engine: str | None = None,
) -> Deployment:
    """Put a model on GPUs, or say why it cannot be done. ``host`` is a name of `infercast hosts`, a file
    like the bundled one, or what it holds.

    ``engine`` is ``vllm@0.25``, which was measured, or ``vllm@0.32``, known by its source; None: as in the settings.

    ``network`` joins nodes where a layout needs more GPUs than one holds, ``pcie_topology`` says how GPUs of a node are
    joined that have no direct links. ``fuse_allreduce_rms`` of None follows vLLM:
    on for tensor parallelism on Hopper and Blackwell. With ``api_server`` requests come as text over HTTP, as they do
    to ``vllm serve``; without it as tokens from the same program.

    Raises `DoesNotFitError` if the weights or one sequence of the longest allowed length do not fit, and
    `InputError` for anything that an engine would refuse.
    """
    device = with_topology(with_network(gpu if isinstance(gpu, Gpu) else load_gpu(gpu), network), pcie_topology)
    if all2all_backend not in ALL2ALL_BACKENDS:
        raise InputError(f"unknown all2all_backend {all2all_backend!r}; known: {', '.join(ALL2ALL_BACKENDS)}")
    if all2all_backend != ALL2ALL_BACKENDS[0] and not (enable_expert_parallel and data_parallel_size > 1):
        raise InputError(
            f"all2all_backend {all2all_backend} is for replicas that share experts; add enable_expert_parallel and a "
            "data_parallel_size of 2 or more, or leave it out"
        )
    layout = ParallelLayout(
        tensor_parallel_size,
        pipeline_parallel_size,
        data_parallel_size,
        experts=enable_expert_parallel,
        all_to_all=all2all_backend != ALL2ALL_BACKENDS[0],
    )
    wanted = settings or EngineSettings()
    machine = named_host(host) if isinstance(host, str) else host or default_host()
    machine = read_host(machine) if isinstance(machine, Path) else machine
    return deploy_resolved(
        load_model(
            model,
            quantization=quantization,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            moe_backend=moe_backend,
            expert_routing=expert_routing,
            language_model_only=language_model_only,
        ),
        device,
        wanted if engine is None else replace(wanted, engine=engine),
        replace(layout, fused_norms=fuses_norms(device) if fuse_allreduce_rms is None else fuse_allreduce_rms),
        make_predictor(predictor) if isinstance(predictor, str) else predictor,
        machine,
        over_http=api_server,
    )
