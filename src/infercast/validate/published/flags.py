"""Server settings as publishers write them down: words between semicolons, each understood or left aside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

ASYNC_SINCE = (0, 14)
"""From this version on steps are planned ahead unless the flags say otherwise."""
FUSED_SINCE = (0, 14)
"""From this version on all-reduces carry norms unless the flags say otherwise."""
FIRST_V1 = (0, 8)
"""Before this version the engine was another one: prompts and decodes in separate steps, planned one by one."""


V0_BATCHED_TOKENS = 2048
"""Its default for most tokens in a step."""


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """What the words say; None is the engine's default."""

    settings: dict[str, Any]
    """Of the engine, by its names."""
    kv_cache_dtype: str
    fuse_allreduce_rms: bool | None
    expert_parallel: bool
    moe_backend: str
    eight_bit_experts: bool
    """Activations of 4-bit experts are quantised to 8 bits."""


NO_FLAGS = ServerFlags({}, "auto", None, expert_parallel=False, moe_backend="auto", eight_bit_experts=False)
"""Of a run whose server's command is known."""


def read_flags(text: str, concurrency: int | None, isl: int | None, version: tuple[int, ...]) -> ServerFlags:
    """Understand a row's words; ``concurrency`` and ``isl`` (prompt length) may stand in for numbers in them."""
    lower = text.lower()

    def number(name: str) -> int | None:
        found = re.search(rf"{name}=(\d+\*isl|\d+|concurrency)", lower)
        if found is None:
            return None
        value = found[1]
        if value == "concurrency":
            return concurrency
        return int(value.split("*")[0]) * (isl or 1) if value.endswith("isl") else int(value)

    utilization = re.search(r"gpu_mem_util=([\d.]+\d)", lower)
    fused = re.search(r"fuse_allreduce_rms|allreduce fusion", lower) is not None
    is_v1 = version >= FIRST_V1
    settings = {
        "max_num_batched_tokens": number("max_num_batched_tokens") or (None if is_v1 else V0_BATCHED_TOKENS),
        **{name: number(name) for name in ("max_num_seqs", "max_model_len", "max_cudagraph_capture_size")},
        "gpu_memory_utilization": float(utilization[1]) if utilization else 0.9,
        "block_size": number("block_size") or 16,
        "enable_prefix_caching": is_v1 and "prefix_caching=off" not in lower and "no apc" not in lower,
        "enable_chunked_prefill": is_v1,
        "async_scheduling": "async_scheduling=on" in lower or version >= ASYNC_SINCE,
        "cudagraph_mode": "full_decode_only" if "full_decode_only" in lower else "full_and_piecewise",
        "prompts_first": not is_v1,
    }
    return ServerFlags(
        settings=settings,
        kv_cache_dtype="fp8" if "kv_cache_dtype=fp8" in lower else "auto",
        fuse_allreduce_rms=True if fused else None if version >= FUSED_SINCE else False,
        expert_parallel="expert-parallel on (" in lower or "expert_parallel=on" in lower,
        moe_backend="marlin" if "marlin" in lower else "trtllm" if "mxfp4xmxfp8" in lower else "auto",
        eight_bit_experts="mxfp4xmxfp8" in lower,
    )


def with_arguments(flags: ServerFlags, stated: Mapping[str, Any]) -> ServerFlags:
    """The same with an engine's own arguments over them, where the publisher kept those."""
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    found = {name: stated[name] for name in names if stated.get(name) is not None}
    return replace(
        flags,
        settings={**flags.settings, **found},
        kv_cache_dtype=stated.get("kv_cache_dtype") or flags.kv_cache_dtype,
        expert_parallel=bool(stated.get("enable_expert_parallel", flags.expert_parallel)),
    )
