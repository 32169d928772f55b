"""One published run: what was asked of which engine, and what came back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infercast.bundled import read_data
from infercast.forecast.command.flags import Reading
from infercast.serve.workload.request import Workload

# Server settings as publishers write them down: words between semicolons, each understood or left aside.

ASYNC_SINCE = (0, 14)  # from this version on steps are planned ahead unless the flags say otherwise
FUSED_SINCE = (0, 14)  # from this version on all-reduces carry norms unless the flags say otherwise
FIRST_V1 = (0, 8)
"""Before this version the engine was another one: prompts and decodes in separate steps, planned one by one."""
V0_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class ServerFlags:
    settings: dict[str, Any]
    kv_cache_dtype: str
    fuse_allreduce_rms: bool | None
    expert_parallel: bool
    moe_backend: str
    eight_bit_experts: bool  # Activations of 4-bit experts are quantised to 8 bits


def read_server_flags(text: str, concurrency: int | None, isl: int | None, version: tuple[int, ...]) -> ServerFlags:
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


NAMES = read_data("lab/published.toml")
GPUS: dict[str, str] = NAMES["gpus"]
FORMATS = {name: ours for ours, names in NAMES["formats"].items() for name in names}


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run: what was asked of which engine, and what came back, in seconds."""

    run_id: str
    source: str
    gpu: str
    model: str
    workload: Workload
    dtype: str = ""
    tensor: int = 1
    data: int = 1
    expert_parallel: bool = False
    version: tuple[int, ...] = ()
    flags: ServerFlags | None = None
    max_model_len: int | None = None
    ttft: float | None = None  # None where the state of the prefix cache is unknown, too
    tpot: float | None = None
    end_to_end: float | None = None
    output_tokens_per_second: float | None = None
    engine: str = "vllm@0.25"
    reading: Reading | None = None
    """The flags of the server's command, where the source has it; its words in ``flags`` otherwise."""
    median: bool = False  # Whether TTFT and TPOT are medians over the requests, not means
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the row says of the server beyond its command, by the engine's names."""
    cache_tokens: int = 0  # Tokens that the source says its KV cache has room for; 0: it does not say
    gaps: bool = False  # Whether TPOT is the median of all times between tokens, because nothing else was published
    steady: bool = False
    """Whether only the time was measured in which as many requests as may run did, and others waited."""
    pipeline: int = 1
    instances: int = 1  # Servers of this kind, each for itself behind a load balancer
    copies: int = 1  # Servers that take turns, of which one is simulated with its part of the requests
    gpus: int = 0  # Stated GPUs, of which a layout may leave some idle
    layout_stated: bool = True
    load: str = ""
    grade: str = ""  # ``A``: settings are known, ``B``: some are implied; ``s`` behind it: with speculative decoding
    precision: str = ""
    chat: bool = False  # Whether requests are chats, which the server renders by a template
    top_p: bool = False  # Whether tokens are drawn from the most likely ones only
    assumptions: tuple[str, ...] = ()  # What the source does not say and is taken to be so
    problem: str = ""

    @property
    def layout(self) -> str:
        """For people: ``TP4``, ``TP8+EP``."""
        parts = [
            f"TP{self.tensor}",
            f"PP{self.pipeline}" if self.pipeline > 1 else "",
            f"DP{self.data}" if self.data > 1 else "",
            "EP" if self.expert_parallel else "",
            f"{self.instances * self.copies} servers" if self.instances * self.copies > 1 else "",
        ]
        return "+".join(part for part in parts if part)
