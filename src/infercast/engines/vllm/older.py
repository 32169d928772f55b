"""What vLLM did by default before the releases whose rules are known in full, as far as published runs need to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercast.bundled import read_data
from infercast.engines.engine import Version
from infercast.engines.release import numbers
from infercast.models.spec import ModelConfig

_FACTS: dict[str, list[dict[str, Any]]] = read_data("engines/vllm/older.toml")


def before(version: Version, _: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy` that a release had by default; none of a version that is unknown."""
    return _known("settings", version), _known("options", version)


def _known(kind: str, version: Version) -> dict[str, Any]:
    """What held in a release, by name."""
    return {fact["name"]: fact["value"] for fact in _FACTS[kind] if version and version < numbers(fact["until"])}
