"""The scheduler and the cache that an engine's policy asks for."""

from __future__ import annotations

from typing import Any, cast

from infercast.errors import InputError
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.offload import Offload
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tiered_cache import TieredCache
from infercast.serve.scheduler.adapters import adapter_scheduler
from infercast.serve.scheduler.draft_scheduler import DraftScheduler
from infercast.serve.scheduler.offloading import OffloadingScheduler
from infercast.serve.scheduler.planner import Planner
from infercast.serve.scheduler.policy import MixingPolicy, Policy
from infercast.serve.scheduler.prefill_first import PrefillFirst
from infercast.serve.scheduler.prefill_ring import PrefillRing
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.scheduler.priority import ByPriority, PriorityScheduler
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.tiered_scheduler import TieredScheduler
from infercast.serve.speculation import Draws, Speculation


def scheduler_of(
    policy: Policy,
    num_blocks: int,
    shape: KvShape,
    *,
    caching: bool,
    sparse_windows: bool,
    retained_every: int,
    steps_under_way: int,
    decode_together: bool,
    max_model_len: int | None,
    speculation: Speculation | None = None,
    offload: Offload | None = None,
    max_adapters: int | None = None,
) -> Planner:
    """Whoever plans steps by these rules, with an empty cache."""
    _refuse_together(policy, speculation, offload, max_adapters, decode_together=decode_together)
    if isinstance(policy, PrefillFirst):
        if offload is not None:
            tiers = TieredCache(num_blocks, shape, offload.num_blocks, max(1, offload.store_threshold))
            return TieredScheduler(policy, tiers, steps_under_way, max_model_len)
        cache = RadixCache(num_blocks, shape, caching=caching)
        kind = PrefillScheduler if decode_together else PrefillRing
        return kind(policy, cache, steps_under_way, max_model_len)
    blocks = KvCache(
        num_blocks,
        shape,
        caching=caching,
        sparse_windows=sparse_windows,
        retained_every=retained_every,
        drops_last=speculation is not None and speculation.drops_block,
    )
    mixing = cast(MixingPolicy, policy)
    if speculation is not None:
        return DraftScheduler(mixing, blocks, speculation, Draws(speculation), steps_under_way, max_model_len)
    if max_adapters is not None:
        return adapter_scheduler(
            mixing, blocks, steps_under_way, max_adapters, max_model_len, decode_together=decode_together
        )
    if offload is not None:
        return OffloadingScheduler(
            mixing, blocks, steps_under_way, offload, max_model_len, decode_together=decode_together
        )
    ranked = PriorityScheduler if isinstance(policy, ByPriority) else Scheduler
    return ranked(cast(Any, policy), blocks, steps_under_way, max_model_len, decode_together=decode_together)


def _refuse_together(
    policy: Policy,
    speculation: Speculation | None,
    offload: Offload | None,
    max_adapters: int | None,
    *,
    decode_together: bool,
) -> None:
    """What is modelled by itself, but not beside another of them."""
    if max_adapters is not None and (speculation is not None or offload is not None):
        raise InputError("LoRA adapters are not modelled beside speculative decoding or a KV cache in host memory")
    if offload is not None:
        if speculation is not None:
            raise InputError("a KV cache in the host's memory and speculative decoding are not modelled together")
        if isinstance(policy, ByPriority):
            raise InputError(
                "a KV cache in the host's memory is not modelled beside priorities; set scheduling_policy to fcfs"
            )
        if isinstance(policy, PrefillFirst) and not decode_together:
            raise InputError("a KV cache in the host's memory is not modelled in a pipeline")
    if speculation is not None:
        if isinstance(policy, PrefillFirst):
            raise InputError("speculative decoding is modelled for engines whose steps mix prompts and decoding")
        if isinstance(policy, ByPriority):
            raise InputError("speculative decoding is not modelled beside priorities; set scheduling_policy to fcfs")
        if not decode_together:
            raise InputError("speculative decoding is not modelled in a pipeline; set pipeline_parallel_size to 1")
