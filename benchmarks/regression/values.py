"""From a case to its predictions, by the public API alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

import infercast
from cases import Case
from infercast.engines.vllm.versions import MEASURED
from infercast.forecast.estimate import SHAPES
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.memory import fit_memory
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, MoE, Op
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve.step import StepShape
from infercast.serve.workload.synthetic import synthetic_workload

Value = int | float | str
SHORT = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
}  # fmt: skip
OF_SETTINGS = frozenset(field.name for field in fields(infercast.EngineSettings))
OF_WORKLOADS = frozenset(inspect.signature(synthetic_workload).parameters)
# What a run is asked for unless its case says otherwise: short, so that all of them take seconds.
USUAL_WORKLOAD = {"count": 60, "input_lengths": "lognormal:700:0.9:16:8000", "output_lengths": "lognormal:60:0.8:4:300"}


def values_of(case: Case, predictor: Predictor | None = None) -> dict[str, Value]:
    """What is predicted for a case, by name; a refusal is a prediction too."""
    predictor = predictor or make_predictor()
    try:
        return ASKED[case.group](case, predictor)
    except infercast.InfercastError as refusal:
        return {"refused": str(refusal)}


def _kernel(case: Case, predictor: Predictor) -> dict[str, Value]:
    gpu, family = case.names
    kernel = family if family in SHAPES else OTHER_KERNELS[family](**case.options)
    sizes = case.options if family in SHAPES else {}
    estimate = infercast.estimate(kernel, load_gpu(gpu), condition="engine", predictor=predictor, **sizes)
    seconds, low, high = (np.ravel(each)[0].item() for each in (estimate.seconds, estimate.low, estimate.high))
    return {"seconds": seconds, "high / low": high / low, "source": str(estimate.source)}


def _step(case: Case, predictor: Predictor) -> dict[str, Value]:
    gpu, model = case.names
    options = case.options
    batch, context, prompt, cached = (options.pop(name, 0) for name in ("decode", "context", "prompt", "cached"))
    prompts, decodes = prefill_shape(prompt, cached), decode_shape(batch, context)
    parts = [part for part, tokens in ((decodes, batch), (prompts, prompt)) if tokens]
    shape = StepShape(
        [tokens for part in parts for tokens in part.new_tokens],
        [tokens for part in parts for tokens in part.computed],
        sum(part.num_sampled for part in parts),
    )
    step = estimate_step(_deploy(model, gpu, options, predictor), shape)
    gpu_seconds = float(step.gpu.seconds) + step.gap_seconds
    return {"gpu seconds": gpu_seconds, "host seconds": float(step.host_seconds), "launch": step.launch}


def _memory(case: Case, predictor: Predictor) -> dict[str, Value]:
    gpu, model = case.names
    settings, others = _settings(case.options)
    fit = fit_memory(model, gpu, settings, **others)
    values: dict[str, Value] = {
        "weights": float(fit.memory.weights),
        "block bytes": int(fit.memory.kv.block_bytes),
        "blocks": int(fit.memory.num_blocks),
    }
    return values | ({"refused": fit.problem} if fit.problem else {})


def _serve(case: Case, predictor: Predictor) -> dict[str, Value]:
    gpu, model = case.names
    options, workload = _workload(case.options)
    intervals = options.pop("intervals", False)
    routing = {"router": options.pop("router")} if "router" in options else {}
    deployment = _deploy(model, gpu, options, predictor)
    forecast = infercast.simulate(deployment, workload, **routing)
    return _results(forecast) | (_ends(forecast) if intervals else {})


def _disaggregate(case: Case, predictor: Predictor) -> dict[str, Value]:
    prefill_gpu, decode_gpu, model = case.names
    options, workload = _workload(case.options)
    between = {name: options.pop(name) for name in ("link", "router") if name in options}
    pools = []
    for pool, gpu in (("prefill", prefill_gpu), ("decode", decode_gpu)):
        own = {name.removeprefix(f"{pool}_"): value for name, value in options.items() if name.startswith(f"{pool}_")}
        shared = {name: value for name, value in options.items() if not name.startswith(("prefill_", "decode_"))}
        pools.append(_deploy(model, gpu, shared | own, predictor))
    return _results(infercast.simulate(pools[1], workload, prefill=pools[0], **between))


def _results(forecast: Any) -> dict[str, Value]:
    """What users of a run would see."""
    values: dict[str, Value] = {
        "ttft p50": forecast.ttft.p50,
        "ttft p99": forecast.ttft.p99,
        "tokens/s": forecast.output_tokens_per_second,
    }
    if forecast.tpot is not None:
        values["tpot p50"] = forecast.tpot.p50
    if forecast.link is None:
        values["preemptions"] = int(forecast.num_preemptions)
        values["cached share"] = forecast.prefix_hit_rate
    if forecast.saturation is not None:
        values["saturated at requests/s"] = forecast.saturation.capacity
    return values


def _ends(forecast: Any) -> dict[str, Value]:
    """How wide some of its intervals are."""
    intervals = forecast_intervals(forecast)
    values: dict[str, Value] = {"ttft p99 high / low": intervals.ttft.high.p99 / intervals.ttft.low.p99}
    if intervals.tpot is not None:
        values["tpot p50 high / low"] = intervals.tpot.high.p50 / intervals.tpot.low.p50
    return values


def _deploy(model: str, gpu: str, options: dict[str, Any], predictor: Predictor) -> infercast.Deployment:
    settings, others = _settings(options)
    return infercast.deploy(model, gpu, settings, **{"predictor": predictor, **others})


def _settings(options: dict[str, Any]) -> tuple[infercast.EngineSettings, dict[str, Any]]:
    """The engine's settings, and all other options under their full names."""
    named = {SHORT.get(name, name): value for name, value in options.items()}
    asked = {name: value for name, value in named.items() if name in OF_SETTINGS}
    settings = infercast.EngineSettings(**{"engine": MEASURED, **asked})
    return settings, {name: value for name, value in named.items() if name not in OF_SETTINGS}


def _workload(options: dict[str, Any]) -> tuple[dict[str, Any], infercast.Workload]:
    """All other options, and the requests that were asked for."""
    asked = {name: value for name, value in options.items() if name in OF_WORKLOADS}
    others = {name: value for name, value in options.items() if name not in OF_WORKLOADS}
    return others, synthetic_workload(**{**USUAL_WORKLOAD, **asked})


def _mixed(prompts: int, q_len: int, decodes: int, kv_len: int, heads: int, kv_heads: int, head_dim: int) -> Op:
    """Prompts without a cached prefix and decoding sequences in one launch."""
    queries = np.array([q_len] * prompts + [1] * decodes)
    keys = np.array([q_len] * prompts + [kv_len + 1] * decodes)
    return Attention(queries, keys, heads, kv_heads, head_dim, head_dim)


def _latent(batch: int, kv_len: int, heads: int) -> Op:
    """Decoding over a stored latent, with the widths of DeepSeek's models."""
    return Attention(np.array([1] * batch), np.array([kv_len + 1] * batch), heads, 1, 576, 512, latent_kv=True)


def _experts(**options: Any) -> Op:
    """Routed experts with everything that can be said of them."""
    return MoE(options.pop("tokens"), **options)


def _collective(kind: str, message_bytes: int, gpus: int, library: str = "vllm") -> Op:
    return Collective(kind, message_bytes, gpus, library)


OTHER_KERNELS: dict[str, Callable[..., Op]] = {
    "mixed": _mixed, "latent": _latent, "experts": _experts, "collective": _collective
}  # fmt: skip
"""Kernels that the command line has no name for."""
ASKED: dict[str, Callable[[Case, Predictor], dict[str, Value]]] = {
    "kernel": _kernel,
    "step": _step,
    "memory": _memory,
    "serve": _serve,
    "disaggregate": _disaggregate,
}
