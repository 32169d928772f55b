"""Knobs of vLLM that are out of range: one clear sentence for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infercast.engines.vllm.block_size import check_block_size
from infercast.engines.vllm.graphs import MODES
from infercast.engines.vllm.offload import tier_settings
from infercast.engines.vllm.versions import engine_version
from infercast.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings
    from infercast.models.mixers import Cache

POLICIES = ("fcfs", "priority")
DENSE = "none"
"""A retention interval that keeps everything findable."""
LARGEST_CAPTURE = 1_000_000
"""No engine records graphs for larger steps."""

COUNTS = (
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_gpu_blocks_override",
    "max_cudagraph_capture_size", "mamba_block_size", "max_num_active_seqs",
)  # fmt: skip


def check_settings(settings: EngineSettings, max_positions: int) -> None:
    """One clear sentence for each knob that is out of range."""
    for name in COUNTS:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if settings.block_size is not None:
        check_block_size(settings.block_size)
    largest = settings.max_cudagraph_capture_size
    if largest is not None and largest > LARGEST_CAPTURE:
        raise InputError(f"max_cudagraph_capture_size must be at most {LARGEST_CAPTURE:,}, not {largest:,}")
    sizes = settings.cudagraph_capture_sizes
    if sizes is not None and not (sizes and all(size >= 1 for size in sizes)):
        raise InputError(f"cudagraph_capture_sizes must be one or more numbers of at least 1, not {list(sizes)}")
    if sizes and largest not in (None, max(sizes)):
        raise InputError(
            f"max_cudagraph_capture_size {largest} is not the largest of "
            f"cudagraph_capture_sizes, {max(sizes)}; give one of the two"
        )
    if settings.cudagraph_mode not in MODES:
        raise UnknownNameError("cudagraph_mode", settings.cudagraph_mode, MODES)
    if settings.scheduling_policy not in POLICIES:
        raise UnknownNameError("scheduling policy", settings.scheduling_policy, POLICIES)
    if not 0 < settings.gpu_memory_utilization <= 1:
        raise InputError(f"gpu_memory_utilization must lie in (0, 1], not {settings.gpu_memory_utilization}")
    if settings.long_prefill_token_threshold < 0:
        raise InputError(f"long_prefill_token_threshold must be 0 or more, not {settings.long_prefill_token_threshold}")
    if not 0 <= settings.watermark < 1:
        raise InputError(f"watermark must lie in [0, 1), not {settings.watermark}")
    tier_settings(settings.kv_offloading_size, settings.kv_offloading_backend, settings.kv_transfer_config)
    _check_new(settings)
    if settings.max_model_len is not None and settings.max_model_len > max_positions:
        raise InputError(
            f"max_model_len {settings.max_model_len} is above the {max_positions} positions the model was made for"
        )


def check_blocks(settings: ResolvedSettings, caches: Iterable[Cache]) -> None:
    """Knobs that depend on the blocks of a model's cache, as vLLM checks them when it has counted these."""
    size, interval, drafts = settings.block_size, settings.prefix_cache_retention_interval, settings.read_ahead
    if settings.enable_prefix_caching and size < drafts:
        raise InputError(
            f"several prediction heads with prefix caching need blocks of at least num_speculative_tokens {drafts} "
            f"tokens, not {size}; raise block_size"
        )
    if interval is None or interval in (DENSE, "0"):
        return
    if not any((cache.window and not cache.chunked) or not cache.bytes_per_token for cache in caches):
        raise InputError(
            f"prefix_cache_retention_interval {interval} has no effect on a model without sliding windows or recurrent "
            "layers; leave it out or set it to 0"
        )
    if int(interval) % size:
        raise InputError(
            f"prefix_cache_retention_interval {interval} must be a multiple of the {size} tokens of a block"
        )


def _check_new(settings: EngineSettings) -> None:
    """Knobs that older releases do not have."""
    version, interval = engine_version(settings.engine), settings.prefix_cache_retention_interval
    if settings.max_num_active_seqs is not None:
        if not version.limits_active:
            raise InputError(f"max_num_active_seqs is no setting of {settings.engine}: it came with vllm@0.31")
        if settings.max_num_seqs is not None and settings.max_num_active_seqs > settings.max_num_seqs:
            raise InputError(
                f"max_num_active_seqs {settings.max_num_active_seqs} is above max_num_seqs {settings.max_num_seqs}"
            )
    for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
        if getattr(settings, name) is not None and not version.limits_queues:
            raise InputError(f"{name} is no setting of {settings.engine}: it came with vllm@0.29")
    if interval is None:
        return
    if not version.sparse_windows:
        raise InputError(f"prefix_cache_retention_interval is no setting of {settings.engine}: it came with vllm@0.29")
    if interval != DENSE and not interval.isdigit():
        raise InputError(f"prefix_cache_retention_interval must be {DENSE} or a number of tokens, not {interval!r}")
