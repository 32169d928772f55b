"""What if: another GPU, other settings, or a chip that does not exist, as a few words.

``dram_bandwidth=1.5x,sms=160`` changes numbers of the GPU, ``gpu=b200-sxm`` takes another one, ``host_speed=2x``
another CPU, ``engine=sglang`` another engine or release, and ``quantization=fp8,max_num_seqs=64`` changes what a
deployment was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from math import isclose
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.host import HostCosts
from infercast.engines.registry import AnyEngine, engine_named, engines
from infercast.engines.settings import Settings, changed, read_setting
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import asked_settings, deploy, host_of
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.changed import PROPERTIES, changed_gpu, factor_of
from infercast.predict.adjust.changed import Changed
from infercast.predict.default import make_predictor

OPTIONS: dict[str, type] = {
    "quantization": str, "dtype": str, "kv_cache_dtype": str, "tensor_parallel_size": int,
    "pipeline_parallel_size": int, "data_parallel_size": int, "enable_expert_parallel": bool, "all2all_backend": str,
    "moe_backend": str, "expert_routing": str, "network": str, "pcie_topology": str, "api_server": bool,
    "power_limit_w": float, "gpu_clock_mhz": float,
}  # fmt: skip


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
    engine: str | None = None
    """Another engine, or another release of it."""

    @property
    def is_engine_alone(self) -> bool:
        """Whether nothing but the engine is another one."""
        others = (self.gpu, self.router, self.properties, self.options, self.settings)
        return self.engine is not None and not any(others) and self.host_speed == 1.0


def parse_changes(text: str) -> Changes:
    """Read ``name=value,name=value``."""
    gpu, router, engine, host_speed = None, None, None, 1.0
    properties: dict[str, str] = {}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    known = {name: kind for engine in engines().values() for name, kind in engine.setting_types.items()}
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
        elif name == "engine":
            engine = engine_named(value).name
        elif name == "host_speed":
            host_speed = factor_of(name, value, 1.0)
        elif name in PROPERTIES:
            properties[name] = value
        elif name in OPTIONS:
            options[name] = read_setting(OPTIONS, name, value, "what-if")
        elif name in known:
            settings[name] = read_setting(known, name, value, "what-if")
        else:
            every = ("gpu", "engine", *PROPERTIES, "host_speed", "router", *OPTIONS, *known)
            raise UnknownNameError("what-if", name, dict.fromkeys(every))
    if not (gpu or router or engine or properties or options or settings or host_speed != 1.0):
        raise InputError("what-if changes nothing; say for example dram_bandwidth=1.5x,sms=160 or gpu=b200-sxm")
    return Changes(text, gpu, properties, host_speed, options, settings, router, engine)


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
    before, engine = asked_settings(settings, keywords.pop("engine", None))
    if changes.engine is not None:
        first = engine
        before, engine = for_engine(before, first, changes.engine)
        keywords["host"] = same_machine(keywords.get("host"), first, engine)
    if strange := [name for name in changes.settings if name not in engine.setting_types]:
        raise InputError(f"what-if {strange[0]} is no setting of {engine.title}")
    if changes.host_speed != 1.0:
        host, speed = host_of(engine, keywords.get("host")), changes.host_speed
        keywords["host"] = host.sped_up(speed, f"{host.title}, {speed:g} times as fast")
    return deploy(model, other, changed(before, **changes.settings), **keywords)


def for_engine(settings: Settings, engine: AnyEngine, name: str) -> tuple[Settings, AnyEngine]:
    """The same settings for another engine; of another family, the bounds of steps and sequences that were given.

    All else is that engine's own choice: two engines have few settings in common.
    """
    other = engine_named(name)
    if other.family == engine.family:
        return changed(settings, engine=name), other
    pairs = zip(engine.bounds, other.bounds, strict=True)
    given = {theirs: getattr(settings, ours, None) for ours, theirs in pairs}
    return other.settings({theirs: value for theirs, value in given.items() if value is not None}), other


def same_machine(host: Any, engine: AnyEngine, other: AnyEngine) -> Any:
    """What another engine costs the machine of a first one, if its times are the measured ones times a factor."""
    if not isinstance(host, HostCosts) or other.family == engine.family:
        return host
    measured = engine.default_host()
    speed = measured.request_path / host.request_path
    scaled = measured.sped_up(speed, host.title, host.source)
    pairs = [(getattr(scaled, each.name), getattr(host, each.name)) for each in fields(scaled)]
    if all(one == two if isinstance(one, str) else isclose(one, two) for one, two in pairs):
        return other.default_host().sped_up(speed, host.title, host.source)
    return host
