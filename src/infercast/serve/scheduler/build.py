"""The scheduler and the cache that an engine's policy asks for."""

from __future__ import annotations

from typing import cast

from infercast.errors import InputError
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.offload import Offload
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.cache.tiered_cache import TieredCache
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
) -> Planner:
    """Whoever plans steps by these rules, with an empty cache."""
    if offload is not None and speculation is not None:
        raise InputError("a KV cache in the host's memory and speculative decoding are not modelled together")
    if isinstance(policy, PrefillFirst):
        if speculation is not None:
            raise InputError("speculative decoding is modelled for engines whose steps mix prompts and decoding")
        if offload is not None:
            if not decode_together:
                raise InputError("a KV cache in the host's memory is not modelled in a pipeline")
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
    if speculation is not None:
        if isinstance(policy, ByPriority):
            raise InputError("speculative decoding is not modelled beside priorities; set scheduling_policy to fcfs")
        if offload is not None:
            raise InputError(
                "speculative decoding is not modelled with a tier of the KV cache in the host's memory; leave one out"
            )
        if not decode_together:
            raise InputError("speculative decoding is not modelled in a pipeline; set pipeline_parallel_size to 1")
        return DraftScheduler(
            cast(MixingPolicy, policy), blocks, speculation, Draws(speculation), steps_under_way, max_model_len
        )
    if isinstance(policy, ByPriority):
        if offload is not None:
            raise InputError(
                "a KV cache in the host's memory is not modelled beside priorities; set scheduling_policy to fcfs"
            )
        return PriorityScheduler(policy, blocks, steps_under_way, decode_together=decode_together)
    if offload is not None:
        mixing = cast(MixingPolicy, policy)
        return OffloadingScheduler(mixing, blocks, steps_under_way, offload, decode_together=decode_together)
    return Scheduler(cast(MixingPolicy, policy), blocks, steps_under_way, decode_together=decode_together)
