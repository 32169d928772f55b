"""Engines by name: ``vllm@0.25`` is one release of one engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from infercast.bundled import DATA, read_data
from infercast.engines.engine import Engine
from infercast.engines.release import is_same_version, nearest_version, numbers
from infercast.engines.settings import Settings
from infercast.errors import InputError, UnknownNameError

FAMILIES = {
    "vllm": "infercast.engines.vllm.engine",
    "sglang": "infercast.engines.sglang.engine",
}
"""Where the releases of each engine are found, as ``RELEASES``; a line here is all that others need to know of it."""
DEFAULT_ENGINE = "vllm@0.32"
"""The newest release of the engine that most people run."""

ABSENT = {
    "TensorRT-LLM": ("tensorrt-llm", "tensorrt_llm", "trtllm", "trt-llm", "trtllm-serve"),
    "TGI": ("tgi", "text-generation-inference"),
    "LMDeploy": ("lmdeploy",),
    "llama.cpp": ("llama.cpp", "llama-cpp", "ollama"),
}
"""Engines that people ask for and that are not modelled, and what they are called."""

AnyEngine = Engine[Any, Any]


@cache
def releases_of(family: str) -> dict[str, AnyEngine]:
    """All releases of an engine by name; its code is loaded by the first who asks."""
    found: dict[str, AnyEngine] = import_module(FAMILIES[family]).RELEASES
    return found


def engines() -> dict[str, AnyEngine]:
    """All that are known, by name."""
    return {name: engine for family in FAMILIES for name, engine in releases_of(family).items()}


@cache
def flags_by_name(family: str) -> frozenset[str]:
    """Flags that are settings of an engine, from its data where it has any: no code of it is loaded for that."""
    if (DATA / "engines" / family / "flags.toml").is_file():
        return frozenset(read_data(f"engines/{family}/flags.toml")["settings"])
    return frozenset(name for engine in releases_of(family).values() for name in engine.flags.settings)


def newest(name: str) -> str:
    """The newest release of an engine that is named without a version, any other name as it is."""
    if name not in FAMILIES:
        return name
    return max(releases_of(name), key=lambda each: numbers(each.partition("@")[2]))


@cache
def engine_named(name: str | None = None) -> AnyEngine:
    """The engine of a name (None: the default), or an error with the nearest known ones.

    A version that is none of ours is answered by the nearest release, which then says so in its note.
    """
    name = DEFAULT_ENGINE if name is None else newest(name)
    family = name.partition("@")[0]
    known = releases_of(family) if family in FAMILIES else {}
    if name in known:
        return known[name]
    if (title := absent(name)) is not None:
        raise InputError(f"{title} is not modelled; {what_there_is()}")
    nearest = nearest_version(name, known)
    if nearest is None:
        raise UnknownNameError("engine", name, engines())
    release = known[nearest]
    if is_same_version(name, nearest):
        return replace(release, name=name)
    return replace(
        release, name=name, is_measured=False, note=f"its rules are not known; those of {nearest}, costs not measured"
    )


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
