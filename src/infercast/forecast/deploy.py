"""From what a user types to a deployment: names and files become models and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infercast.engine.deployment import Deployment
from infercast.engine.deployment import deploy as deploy_resolved
from infercast.engine.host import Host, default_host, read_host
from infercast.engine.settings import EngineSettings
from infercast.errors import InputError
from infercast.hardware import Gpu, load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.models.spec import ModelConfig
from infercast.predict.default import make_predictor
from infercast.predict.roofline import Predictor

ModelSource = str | Path | Mapping[str, Any] | ModelConfig
GpuSource = str | Path | Gpu

# vLLM's names for KV-cache formats; both spellings of fp8 take one byte.
KV_DTYPES = {
    "auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip


def load_model(source: ModelSource, *, quantization: str | None = None, kv_cache_dtype: str = "auto") -> ModelConfig:
    """A model by bundled name, Hugging Face id, path to a config.json, or the config itself as a dict."""
    if isinstance(source, ModelConfig) and quantization not in (None, "none"):
        raise InputError(f"quantization {quantization!r} needs a config to read; give it when {source.name} is loaded")
    model = source if isinstance(source, ModelConfig) else read_model(source, quantization=quantization)
    if kv_cache_dtype not in KV_DTYPES:
        raise InputError(f"unknown kv_cache_dtype {kv_cache_dtype!r}; known: {', '.join(KV_DTYPES)}")
    if kv_cache_dtype != "auto":
        model = replace(model, kv_dtype=KV_DTYPES[kv_cache_dtype])
    return model


def deploy(
    model: ModelSource,
    gpu: GpuSource,
    settings: EngineSettings | None = None,
    *,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    predictor: str | Predictor = "learned",
    host: Path | Host | None = None,
) -> Deployment:
    """Put a model on GPUs, or say why it cannot be done. ``host`` is a file like the bundled one, or what it holds.

    Raises `DoesNotFitError` if the weights or one sequence of the longest allowed length do not fit, and
    `InputError` for anything that an engine would refuse.
    """
    return deploy_resolved(
        load_model(model, quantization=quantization, kv_cache_dtype=kv_cache_dtype),
        gpu if isinstance(gpu, Gpu) else load_gpu(gpu),
        settings or EngineSettings(),
        ParallelLayout(tensor_parallel_size),
        make_predictor(predictor) if isinstance(predictor, str) else predictor,
        read_host(host) if isinstance(host, Path) else host or default_host(),
    )
