"""What vLLM did by default before the releases whose rules are known in full, as far as published runs need to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercast.bundled import read_data
from infercast.engines.engine import Version
from infercast.engines.release import numbers
from infercast.models.spec import ModelConfig
from infercast.units import MILLI

_FACTS: dict[str, list[dict[str, Any]]] = read_data("engines/vllm/older.toml")


def before(version: Version, _: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy` that a release had by default; none of a version that is unknown."""
    return _known("settings", version), _known("options", version)


def chat_turn(version: Version) -> float:
    """Seconds that a server's one thread spent on a chat beyond what it does today."""
    return MILLI * float(_value("chat_turn_ms", version, 0.0))


def sorts_logits(version: Version) -> bool:
    """Whether top-p sorted all logits of every sequence."""
    return bool(_value("sorts_logits", version, False))


def _known(kind: str, version: Version) -> dict[str, Any]:
    """What held in a release, by name."""
    return {fact["name"]: fact["value"] for fact in _FACTS[kind] if _holds(fact, version)}


def _value(kind: str, version: Version, otherwise: Any) -> Any:
    return next((fact["value"] for fact in _FACTS[kind] if _holds(fact, version)), otherwise)


def _holds(fact: Mapping[str, Any], version: Version) -> bool:
    return bool(version) and numbers(fact.get("since", "0")) <= version < numbers(fact["until"])
