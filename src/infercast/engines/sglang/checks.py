"""What SGLang would refuse, in one clear sentence for each knob that is out of range."""

from __future__ import annotations

from infercast.engines.sglang.settings import (
    DEEPEP_MODES,
    NO_CHUNKS,
    ORDERS,
    OTHER_ORDERS,
    PREFILL_GRAPHS,
    STRATEGIES,
    WRITE_POLICIES,
    SglangSettings,
)
from infercast.errors import InputError, UnknownNameError

LARGEST_GRAPH = 65_536
"""No engine records graphs for larger steps."""
MOST_HICACHE = 1_000_000
COUNTS = (
    "max_running_requests", "max_total_tokens", "max_prefill_tokens", "prefill_max_requests", "page_size",
    "context_length", "cuda_graph_max_bs", "cuda_graph_max_bs_prefill", "max_mamba_cache_size", "ep_size",
    "scheduler_recv_interval",
)  # fmt: skip
NAMES = {
    "schedule_policy": ORDERS,
    "cuda_graph_backend_prefill": PREFILL_GRAPHS,
    "mamba_radix_cache_strategy": STRATEGIES,
    "deepep_mode": DEEPEP_MODES,
}


def check(settings: SglangSettings, max_positions: int) -> None:
    """Refuse what no GPU and no model could change."""
    for name in COUNTS:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if settings.schedule_policy in OTHER_ORDERS:
        raise InputError(f"schedule_policy {settings.schedule_policy} is not modelled; use {' or '.join(ORDERS)}")
    for name, known in NAMES.items():
        if getattr(settings, name) not in known:
            raise UnknownNameError(name, getattr(settings, name), known)
    _check_shares(settings)
    _check_tier(settings)
    _check_graphs(settings)
    chunk = settings.chunked_prefill_size
    if chunk is not None and chunk < 1 and chunk != NO_CHUNKS:
        raise InputError(f"chunked_prefill_size must be at least 1, or -1 for whole prompts, not {chunk}")
    if settings.context_length is not None and settings.context_length > max_positions:
        raise InputError(
            f"context_length {settings.context_length} is above the {max_positions} positions the model was made for"
        )


def _check_tier(settings: SglangSettings) -> None:
    if settings.hicache_write_policy == "write_back":
        raise InputError(f"hicache_write_policy write_back is not modelled; use {' or '.join(WRITE_POLICIES)}")
    if settings.hicache_write_policy not in WRITE_POLICIES:
        raise UnknownNameError("hicache_write_policy", settings.hicache_write_policy, WRITE_POLICIES)
    if settings.enable_hierarchical_cache and settings.disable_radix_cache:
        raise InputError("enable_hierarchical_cache needs the radix cache, which disable_radix_cache turns off")
    if not (0 <= settings.hicache_size <= MOST_HICACHE and 0 < settings.hicache_ratio <= MOST_HICACHE):
        raise InputError(
            f"hicache_size must be 0 to {MOST_HICACHE:,} (GB) and hicache_ratio above 0 and at most {MOST_HICACHE:,}, "
            f"not {settings.hicache_size} and {settings.hicache_ratio:g}"
        )


def _check_shares(settings: SglangSettings) -> None:
    share = settings.mem_fraction_static
    if share is not None and not 0 < share < 1:
        raise InputError(f"mem_fraction_static must lie in (0, 1), not {share}")
    if settings.schedule_conservativeness < 0:
        raise InputError(f"schedule_conservativeness must be 0 or more, not {settings.schedule_conservativeness}")
    if not 0 < settings.swa_full_tokens_ratio <= 1:
        raise InputError(f"swa_full_tokens_ratio must lie in (0, 1], not {settings.swa_full_tokens_ratio}")
    if settings.mamba_full_memory_ratio <= 0:
        raise InputError(f"mamba_full_memory_ratio must be above 0, not {settings.mamba_full_memory_ratio}")


def _check_graphs(settings: SglangSettings) -> None:
    sizes = settings.cuda_graph_bs
    if sizes is not None and not (sizes and all(size >= 1 for size in sizes)):
        raise InputError(f"cuda_graph_bs must be one or more numbers of at least 1, not {list(sizes)}")
    if max(settings.cuda_graph_max_bs or 1, *(sizes or (1,))) > LARGEST_GRAPH:
        raise InputError(f"cuda_graph_max_bs must be at most {LARGEST_GRAPH:,}")
