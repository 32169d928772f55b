"""All that can be chosen from: fields, models, GPUs, engines, and names of other things; read once."""

from __future__ import annotations

from functools import cache
from typing import Any

from infercast import __version__
from infercast.bundled import read_data
from infercast.engines.registry import AnyEngine, engines
from infercast.errors import InputError
from infercast.forecast.kernel_basis import kernel_basis
from infercast.forecast.money import price_of
from infercast.forecast.plan.objectives import OBJECTIVES
from infercast.forecast.price_list import bundled_lists
from infercast.glossary import glossary
from infercast.hardware import Gpu, gpu_names, load_gpu
from infercast.hardware.hosts import host_cpus
from infercast.hardware.network import networks
from infercast.hardware.pcie import TOPOLOGIES
from infercast.hardware.servers import servers
from infercast.models.library import configs
from infercast.models.schemes import schemes
from infercast.serve.fleet.router import POLICIES
from infercast.serve.workload.arrivals import ARRIVAL_KINDS
from infercast.web.fields import FIELDS, GROUPS, Field
from infercast.web.state import own_name, read_state, to_query

PRESETS = "web/presets.toml"


@cache
def catalogue() -> dict[str, Any]:
    """Everything that the page needs before its first question."""
    return {
        "version": __version__,
        "groups": list(GROUPS),
        "fields": [_field(each) for each in FIELDS],
        "models": [_model(name, config) for name, config in configs().items()],
        "gpus": [_gpu(load_gpu(name)) for name in gpu_names()],
        "engines": [_engine(each) for each in engines().values()],
        "quantizations": ["none", *schemes("overrides")],
        "hosts": [{"name": each.name, "title": each.title} for each in host_cpus().values()],
        "networks": [{"name": name, "bytes_per_s": each.bandwidth} for name, each in networks().items()],
        "pcie_topologies": list(TOPOLOGIES),
        "servers": list(servers()),
        "routers": list(POLICIES),
        "arrivals": list(ARRIVAL_KINDS),
        "objectives": list(OBJECTIVES),
        "providers": list(bundled_lists()),
        "glossary": [term._asdict() for term in glossary()],
        "presets": [_preset(key, dict(values)) for key, values in read_data(PRESETS).items()],
    }


def _field(field: Field) -> dict[str, Any]:
    found = field._asdict()
    for name in ("questions", "default"):
        if isinstance(found[name], tuple):
            found[name] = list(found[name])
    return found


def _model(name: str, config: dict[str, Any]) -> dict[str, Any]:
    told = config["infercast"]
    text = config.get("text_config", config)
    return {
        "name": name,
        "hugging_face": list(told["aliases"]),
        "parameters": told["parameters"],
        "architecture": (config.get("architectures") or [config.get("model_type", "")])[0],
        "layers": text.get("num_hidden_layers"),
        "max_positions": text.get("max_position_embeddings"),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    price = price_of(gpu.name)
    return {
        "name": gpu.name,
        "title": gpu.title,
        "architecture": gpu.architecture,
        "memory_bytes": gpu.driver_bytes,
        "dram_bytes_per_s": gpu.dram_bandwidth,
        "flops_per_s": dict(gpu.tensor_flops),
        "nvlink_bytes_per_s": gpu.nvlink_bandwidth,
        "gpus_per_node": gpu.gpus_per_node,
        "tdp_w": gpu.tdp,
        "usd_per_gpu_hour": None if price is None else price.per_hour,
        "known_by": sorted({each.words for each in kernel_basis(gpu)}),
    }


def _engine(engine: AnyEngine) -> dict[str, Any]:
    """An engine, the fields that it takes, and all of its settings by name."""
    return {
        "name": engine.name,
        "title": engine.title,
        "note": engine.note,
        "is_measured": engine.is_measured,
        "load_balancer": engine.load_balancer,
        "kv_cache_dtypes": list(engine.names.kv_cache_dtypes),
        "fields": [each.name for each in FIELDS if each.setting and _takes(engine, each.name)],
        "settings": {name: kind.__name__ for name, kind in engine.setting_types.items() if name != "engine"},
    }


def _takes(engine: AnyEngine, name: str) -> bool:
    try:
        own_name(name, engine.name)
    except InputError:
        return False
    return True


def _preset(key: str, values: dict[str, Any]) -> dict[str, Any]:
    title, says = values.pop("title"), values.pop("says")
    return {"key": key, "title": title, "says": says, "state": values, "query": to_query(read_state(values))}
