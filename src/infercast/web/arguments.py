"""From a state to what is simulated: only names that come with the package are looked up, never a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from infercast.engines.deployment import Deployment
from infercast.engines.registry import AnyEngine, engine_named
from infercast.engines.settings import Settings, read_setting
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import deploy, load_model
from infercast.forecast.money import Tariff
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.system import System, system_of
from infercast.forecast.wall import Facility
from infercast.hardware import gpu_names, load_gpu
from infercast.models.library import bundled_config, bundled_name
from infercast.serve import Workload
from infercast.serve.workload.asked import random_requests
from infercast.serve.workload.too_long import refuse_too_long
from infercast.web.fields import FIELDS
from infercast.web.state import State, from_query, own_name, read_state

LARGEST_CONFIG = 256 * 1024
"""Characters of a dropped config.json."""
LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
HELD_BACK = ("power_limit_w", "gpu_clock_mhz")
OF_SYSTEMS = ("model", "hardware", "layout", "engine")
"""Groups of fields that say what serves requests."""
KEPT_SYSTEMS, KEPT_CAPACITIES = 8, 256
"""Deployments with their step times that are kept for the next question about them, and what they serve at most."""
PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""The id of a model that somebody published."""


_capacities: dict[str, float] = {}


class Asked(NamedTuple):
    """A state, and the config.json that stands in place of its model, if any."""

    state: State
    config: Mapping[str, Any] | None = None

    @property
    def model(self) -> str | Mapping[str, Any]:
        """What `deploy` takes for a model: a bundled name, or what a config.json holds."""
        if self.config is not None:
            return self.config
        name = bundled_name(self.state["model"])
        if name is None:
            bundled_config(self.state["model"])  # says what may have been meant
        return str(name)

    @property
    def engine(self) -> AnyEngine:
        """The engine that is asked for."""
        return engine_named(self.state["engine"])

    @property
    def slo(self) -> Slo | None:
        """What users are promised."""
        return None if self.state["slo"] is None else parse_slo(self.state["slo"])

    @property
    def tariff(self) -> Tariff:
        """Whose prices count."""
        return Tariff(self.state["provider"], self.state["spot"], None, self.state["price_per_gpu_hour"])

    @property
    def facility(self) -> Facility:
        """What stands around the GPUs."""
        return Facility(**{name: self.state[name] for name in ("pue", "server", "grid_carbon", "electricity_price")})


def read_asked(document: Mapping[str, Any]) -> Asked:
    """What a request asks for: ``state`` (fields) or ``query`` (those of a URL), and ``config``."""
    if not isinstance(document, Mapping):
        raise InputError(f"a request must be a JSON object, not a {type(document).__name__}")
    if "state" in document and "query" in document:
        raise InputError("state and query say the same in two ways; give one of them")
    query = document.get("query")
    if query is not None and not isinstance(query, str):
        raise InputError("query must be the text after the question mark of a URL")
    given, config = document.get("state", {}), document.get("config")
    if isinstance(given, Mapping) and "config" in given:
        given, config = {name: value for name, value in given.items() if name != "config"}, given["config"]
    state = from_query(query) if query is not None else read_state(given)
    if config is not None:
        if not isinstance(config, Mapping):
            raise InputError(f"config must be the object that a config.json holds, not a {type(config).__name__}")
        if len(json.dumps(config)) > LARGEST_CONFIG:
            raise InputError(f"config is larger than {LARGEST_CONFIG // 1024} KiB, too large for a config.json")
    return Asked(state, config)


def known_gpu(name: str) -> str:
    """The name of a bundled GPU."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        raise UnknownNameError("GPU", name, gpu_names())
    return load_gpu(name).name


def settings_of(asked: Asked) -> Settings:
    """The settings of the engine; those that nobody gave are its own choice."""
    state, engine = asked.state, asked.engine
    given = {
        own_name(field.name, state["engine"]): state[field.name]
        for field in FIELDS
        if field.setting and state[field.name] is not None
    }
    for text in state["settings"]:
        name, _, value = text.partition("=")
        if name in given:
            raise InputError(f"{name} is given twice; leave it out of settings")
        given[name] = read_setting({**engine.setting_types, "engine": str}, name, value)
    if "engine" in given:
        raise InputError("engine is a field of its own; leave it out of settings")
    if (text := given.get("speculative_config")) is not None:
        check_draft(text)
    settings: Settings = engine.settings(given)
    return settings


def check_draft(text: str) -> None:
    """Refuse a draft model that is the name of a file."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"speculative_config must be a JSON object, not {text[:60]!r}") from None
    model = config.get("model") if isinstance(config, dict) else None
    if model is None:
        return
    if not isinstance(model, str) or not (bundled_name(model) or PUBLISHED.fullmatch(model)) or os.path.exists(model):
        raise InputError(f"speculative_config: model must be a bundled model or a published id, not {model!r}")


def deployment_of(asked: Asked) -> partial[Deployment]:
    """What `deploy` is to be called with."""
    state = asked.state
    names = ("quantization", "kv_cache_dtype", "network", "pcie_topology", "host", "api_server", *HELD_BACK, *LAYOUT)
    return partial(
        deploy, asked.model, known_gpu(state["gpu"]), settings_of(asked), **{name: state[name] for name in names}
    )


def system_asked(asked: Asked) -> System:
    """What serves requests. One of a bundled model is kept with its step times, one of a dropped config is not."""
    state = asked.state
    if asked.config is not None:
        return _system(asked)
    names = [field.name for field in FIELDS if field.group in OF_SYSTEMS]
    return _kept_system(json.dumps({name: state[name] for name in names}, sort_keys=True))


@lru_cache(KEPT_SYSTEMS)
def _kept_system(key: str) -> System:
    return _system(Asked(read_state(json.loads(key))))


def _system(asked: Asked) -> System:
    router = asked.state["router"] if asked.state["data_parallel_size"] > 1 else None
    return system_of(deployment_of(asked)(), router)


def capacity_known(asked: Asked, system: System, workload: Workload) -> Callable[[], float]:
    """What a system serves of such requests when it is kept full; another rate of them does not change it."""

    def work_out() -> float:
        return most_requests_per_second(system, workload)

    if asked.config is not None:
        return work_out
    fields = [field.name for field in FIELDS if field.group in (*OF_SYSTEMS, "traffic") and field.name != "rate"]
    key = json.dumps([asked.state[name] for name in fields])

    def known() -> float:
        if key not in _capacities:
            _capacities[key] = work_out()
            while len(_capacities) > KEPT_CAPACITIES:
                _capacities.pop(next(iter(_capacities)))
        return _capacities[key]

    return known


def longest_of(asked: Asked) -> int:
    """Tokens of the longest sequence that the engine serves."""
    told = getattr(settings_of(asked), asked.engine.bounds[2], None)
    return told or load_model(asked.model).max_positions


def workload_of(asked: Asked, longest: int | None = None, **others: Any) -> Workload:
    """What users send, of at most so many tokens; ``others`` stand in place of fields."""
    longest = longest or longest_of(asked)
    workload = random_requests({**asked.state, **others}, longest)
    refuse_too_long(workload, longest)
    return workload
