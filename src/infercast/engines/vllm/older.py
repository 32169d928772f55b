"""What vLLM did by default before the release that was measured, as far as published runs need to know.

Its V1 engine came with 0.8 (before: prompts and decodes in separate steps, prompts whole, prefixes not cached). Steps
have been planned ahead, and all-reduces have carried norms, without being told since 0.14; nine tenths of a GPU's
memory were used before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infercast.engines.engine import Version
from infercast.models.spec import ModelConfig

FIRST_V1 = (0, 8)
"""Before this version the engine was another one."""
PLANNED_AHEAD = (0, 14)
"""From this version on steps are planned ahead, and all-reduces carry norms."""
V0_BATCHED_TOKENS = 2048
"""Most tokens in a step before V1; a longer prompt had a step of its own."""


def before(version: Version, model: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy`; none of a version that is unknown."""
    if not version or version >= PLANNED_AHEAD:
        return {}, {}
    settings: dict[str, Any] = {"async_scheduling": False, "gpu_memory_utilization": 0.9}
    if version < FIRST_V1:
        settings |= {"prompts_first": True, "enable_chunked_prefill": False, "enable_prefix_caching": False}
    return settings, {"fuse_allreduce_rms": False}
