"""What if: another GPU, other settings, or a chip that does not exist, as a few words.

``dram_bandwidth=1.5x,sms=160`` changes numbers of the GPU, ``gpu=b200-sxm`` takes another one, ``host_speed=2x``
another CPU, and ``quantization=fp8,max_num_seqs=64`` changes what a deployment was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.vllm.host import Host, default_host
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import deploy
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.changed import PROPERTIES, changed_gpu, factor_of
from infercast.predict.adjust.changed import Changed
from infercast.predict.default import make_predictor

OPTIONS: dict[str, type] = {
    "quantization": str, "dtype": str, "kv_cache_dtype": str, "tensor_parallel_size": int,
    "pipeline_parallel_size": int, "data_parallel_size": int, "enable_expert_parallel": bool, "all2all_backend": str,
    "moe_backend": str, "expert_routing": str, "network": str, "pcie_topology": str, "api_server": bool,
}  # fmt: skip
SETTINGS: dict[str, type] = {
    "max_num_batched_tokens": int, "max_num_seqs": int, "max_model_len": int, "gpu_memory_utilization": float,
    "block_size": int, "enable_prefix_caching": bool, "async_scheduling": bool, "enforce_eager": bool,
    "engine": str,
}  # fmt: skip
TRUTHS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
KNOWN = ("gpu", *PROPERTIES, "host_speed", "router", *OPTIONS, *SETTINGS)


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be different."""

    text: str
    gpu: str | None
    properties: dict[str, str]
    host_speed: float
    options: dict[str, Any]
    settings: dict[str, Any]
    router: str | None = None
    """Another load balancer before several replicas."""


def parse_changes(text: str) -> Changes:
    """Read ``name=value,name=value``."""
    gpu, router, host_speed = None, None, 1.0
    properties: dict[str, str] = {}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals or not value:
            raise InputError(f"what-if {part!r} must be name=value, such as dram_bandwidth=1.5x or gpu=b200-sxm")
        if name in seen:
            raise InputError(f"what-if {part!r} gives {name} a second time; say it once")
        seen.add(name)
        if name == "gpu":
            gpu = value
        elif name == "router":
            router = value
        elif name == "host_speed":
            host_speed = factor_of(name, value, 1.0)
        elif name in PROPERTIES:
            properties[name] = value
        elif name in OPTIONS:
            options[name] = _value(name, value, OPTIONS[name])
        elif name in SETTINGS:
            settings[name] = _value(name, value, SETTINGS[name])
        else:
            raise UnknownNameError("what-if", name, KNOWN)
    if not (gpu or router or properties or options or settings or host_speed != 1.0):
        raise InputError("what-if changes nothing; say for example dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm")
    return Changes(text, gpu, properties, host_speed, options, settings, router)


def deploy_changed(asked: partial[Deployment], changes: Changes) -> Deployment:
    """Deploy what was asked for (model, GPU and settings, then keywords of `deploy`) with the changes."""
    model, source, settings = asked.args
    keywords = {**asked.keywords, **changes.options}
    gpu = load_gpu(changes.gpu) if changes.gpu else source if isinstance(source, Gpu) else load_gpu(source)
    other = changed_gpu(gpu, changes.properties)
    if other is not gpu:
        predictor = keywords.get("predictor", "learned")
        known = make_predictor(predictor) if isinstance(predictor, str) else predictor
        keywords["predictor"] = Changed(known, gpu)
    if changes.host_speed != 1.0:
        keywords["host"] = _faster(keywords.get("host") or default_host(), changes.host_speed)
    wanted: EngineSettings = replace(settings or EngineSettings(), **changes.settings)
    return deploy(model, other, wanted, **keywords)


def _faster(host: Host, speed: float) -> Host:
    """A host whose thread is so many times as fast."""
    names = (field.name for field in fields(Host) if field.name not in ("title", "source"))
    seconds: dict[str, Any] = {name: getattr(host, name) / speed for name in names}
    return replace(host, title=f"{host.title}, {speed:g} times as fast", **seconds)


def _value(name: str, text: str, kind: type) -> Any:
    try:
        return TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "on or off", int: "a whole number", float: "a number"}[kind]
        raise InputError(f"what-if {name}={text}: must be {wanted}") from None
