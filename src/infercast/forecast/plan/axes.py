"""What candidates differ in: one record for each axis of the search.

A further axis, say whether tokens are drafted ahead, is one more record: its values for a candidate that has a value on
every axis before it, and what a candidate with the value looks like. An axis that step times depend on comes before
those that they do not depend on, so that candidates that share a step timer are next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from infercast.engines.registry import engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import load_device, load_model
from infercast.forecast.layouts import valid_layouts
from infercast.forecast.plan.candidate import Candidate
from infercast.hardware import Gpu
from infercast.hardware.limited import LEAST_POWER
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig

if TYPE_CHECKING:
    from infercast.forecast.plan.question import Question


class Axis(NamedTuple):
    """One thing to choose."""

    name: str
    values: Callable[[Question, Candidate], Iterable[Any]]
    """What there is to choose from for a candidate."""
    put: Callable[[Candidate, Any], Candidate]
    """The candidate with the choice made."""


@lru_cache(maxsize=64)
def model_of(model: str, quantization: str | None, kv_cache_dtype: str, engine: str) -> ModelConfig | None:
    """The model in these formats; None where a checkpoint cannot be had in them."""
    try:
        return load_model(model, quantization=quantization, kv_cache_dtype=kv_cache_dtype, engine=engine_named(engine))
    except InputError:
        if quantization is None and kv_cache_dtype == "auto":
            raise
        return None


@lru_cache(maxsize=64)
def device_of(gpu: str, network: str | None) -> Gpu:
    """The GPU with its network."""
    return load_device(gpu, network)


def config_of(question: Question, candidate: Candidate) -> ModelConfig | None:
    """The model as the candidate would load it."""
    return model_of(question.model, candidate.quantization, candidate.kv_cache_dtype, candidate.engine)


def _formats(question: Question, candidate: Candidate) -> Iterable[tuple[str | None, str]]:
    """Formats of weights and of keys and values, those left out that change nothing or cannot be had."""
    seen = set()
    for quantization in question.quantizations:
        for kv_cache_dtype in question.kv_cache_dtypes:
            made = config_of(question, replace(candidate, quantization=quantization, kv_cache_dtype=kv_cache_dtype))
            if made is not None and (key := (made.weights, made.cache_dtype)) not in seen:
                seen.add(key)
                yield quantization, kv_cache_dtype


def _layouts(question: Question, candidate: Candidate) -> Iterable[ParallelLayout]:
    """All ways to put one replica on as many GPUs as there may be.

    Copies that share nothing are replicas, not data parallelism, so only models with routed experts have the latter. A
    replica that spans nodes fills them: nobody deploys one over thirteen GPUs.
    """
    config, gpu = config_of(question, candidate), device_of(candidate.gpu, question.network)
    if config is None:
        return
    for count in range(1, question.max_gpus + 1):
        if count > gpu.gpus_per_node and count % gpu.gpus_per_node:
            continue
        for layout in valid_layouts(config, count, gpu):
            if layout.data == 1 or config.has_experts:
                yield layout


def _settings(question: Question, candidate: Candidate) -> Iterable[tuple[tuple[str, Any], ...]]:
    return engine_named(candidate.engine).tried if question.settings is None else question.settings


def setting_axis(name: str, values: tuple[Any, ...]) -> Axis:
    """One more setting of the engine, by its own name, combined with all others."""
    return Axis(name, _Fixed(values), _Setting(name))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The same values for every candidate; a class, so that it can be pickled."""

    among: tuple[Any, ...]

    def __call__(self, question: Question, candidate: Candidate) -> Iterable[Any]:
        return self.among


@dataclass(frozen=True, slots=True)
class _Setting:
    """Sets one setting."""

    name: str

    def __call__(self, candidate: Candidate, value: Any) -> Candidate:
        return candidate.with_settings(**{self.name: value})


def _engines(question: Question, candidate: Candidate) -> Iterable[str]:
    return question.engines


def _gpus(question: Question, candidate: Candidate) -> Iterable[str]:
    return question.gpus


def _power_limits(question: Question, candidate: Candidate) -> Iterable[float | None]:
    """Limits that the board takes, its own as none."""
    gpu = device_of(candidate.gpu, question.network)
    asked = (None if limit is None or limit >= gpu.tdp else limit for limit in question.power_limits)
    return [limit for limit in dict.fromkeys(asked) if limit is None or limit >= LEAST_POWER * gpu.tdp]


def check_power_limits(limits: Iterable[float | None], gpus: Iterable[str], network: str | None) -> None:
    """Refuse a power limit that is too low for every one of these GPUs; higher ones than a board's own are no limit."""
    given = [limit for limit in limits if limit is not None]
    if not given:
        return
    least = {gpu: LEAST_POWER * device_of(gpu, network).tdp for gpu in gpus}
    for limit in given:
        if not limit >= min(least.values()):
            known = ", ".join(f"{gpu} from {watts:g} W" for gpu, watts in least.items())
            raise InputError(f"a power limit of {limit:g} W is lower than these GPUs take: {known} on")


def _put_engine(candidate: Candidate, value: str) -> Candidate:
    return replace(candidate, engine=value)


def _put_gpu(candidate: Candidate, value: str) -> Candidate:
    return replace(candidate, gpu=value)


def _put_power_limit(candidate: Candidate, value: float | None) -> Candidate:
    return replace(candidate, power_limit=value)


def _put_formats(candidate: Candidate, value: tuple[str | None, str]) -> Candidate:
    return replace(candidate, quantization=value[0], kv_cache_dtype=value[1])


def _put_layout(candidate: Candidate, value: ParallelLayout) -> Candidate:
    return replace(candidate, layout=value)


def _put_settings(candidate: Candidate, value: tuple[tuple[str, Any], ...]) -> Candidate:
    return candidate.with_settings(**dict(value))


AXES = (
    Axis("engine", _engines, _put_engine),
    Axis("gpu", _gpus, _put_gpu),
    Axis("power_limit", _power_limits, _put_power_limit),
    Axis("formats", _formats, _put_formats),
    Axis("layout", _layouts, _put_layout),
    Axis("settings", _settings, _put_settings),
)
