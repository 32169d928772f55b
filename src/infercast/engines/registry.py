"""Engines by name: ``vllm@0.25`` is one release of one engine."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from infercast.engines.engine import Engine
from infercast.engines.settings import Settings
from infercast.errors import InputError, UnknownNameError

FAMILIES = {
    "vllm": "infercast.engines.vllm.engine",
    "sglang": "infercast.engines.sglang.engine",
}
"""Where the releases of each engine are found, as ``RELEASES``; a line here is all that others need to know of it."""
DEFAULT_ENGINE = "vllm@0.25"
"""The one that was measured."""

ABSENT = {
    "TensorRT-LLM": ("tensorrt-llm", "tensorrt_llm", "trtllm", "trt-llm", "trtllm-serve"),
    "TGI": ("tgi", "text-generation-inference"),
    "LMDeploy": ("lmdeploy",),
    "llama.cpp": ("llama.cpp", "llama-cpp", "ollama"),
}
"""Engines that people ask for and that are not modelled, and what they are called."""

AnyEngine = Engine[Any, Any]


@cache
def engines() -> dict[str, AnyEngine]:
    """All that are known, by name."""
    known: dict[str, AnyEngine] = {}
    for module in FAMILIES.values():
        known |= import_module(module).RELEASES
    return known


def newest(name: str) -> str:
    """The newest release of an engine that is named without a version, any other name as it is."""
    if name not in FAMILIES:
        return name
    return max((each for each in engines() if each.partition("@")[0] == name), key=_numbers)


def _numbers(name: str) -> list[int]:
    """A release's version as numbers: 0.5.16 is after 0.5.9."""
    return [int(part) for part in name.partition("@")[2].split(".") if part.isdigit()]


def engine_named(name: str | None = None) -> AnyEngine:
    """The engine of a name (None: the default), or an error with the nearest known ones."""
    name, known = DEFAULT_ENGINE if name is None else newest(name), engines()
    if name not in known:
        if (title := absent(name)) is not None:
            raise InputError(f"{title} is not modelled; {what_there_is()}")
        raise UnknownNameError("engine", name, known)
    return known[name]


def absent(name: str) -> str | None:
    """The title of an engine that is known by name only."""
    called = name.lower().partition("@")[0]
    return next((title for title, names in ABSENT.items() if called in names), None)


def what_there_is() -> str:
    """Which engines can be asked for."""
    return f"use --engine {' or '.join(FAMILIES)}, which run many of the same kernels"


def measured_engine(family: str) -> AnyEngine:
    """Any release of an engine: all of them read the same files of measured runs."""
    for engine in engines().values():
        if engine.family == family:
            return engine
    raise UnknownNameError("engine", family, FAMILIES)


def engine_of(settings: Settings) -> AnyEngine:
    """The engine that settings are for."""
    engine = engine_named(settings.engine)
    if not isinstance(settings, engine.settings_type):
        raise InputError(
            f"{type(settings).__name__} is not for {engine.name}, which takes {engine.settings_type.__name__}"
        )
    return engine
