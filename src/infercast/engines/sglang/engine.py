"""SGLang, release by release."""

from __future__ import annotations

from functools import partial

from infercast.bundled import read_data
from infercast.engines.capability import check_capability
from infercast.engines.engine import Engine
from infercast.engines.sglang.flags import FLAGS, settings_of
from infercast.engines.sglang.graphs import SglangGraphs
from infercast.engines.sglang.host import SglangHost, SglangHostModel
from infercast.engines.sglang.kernels import choose_kernels
from infercast.engines.sglang.measured import measured_setup, profiled_step
from infercast.engines.sglang.memory import plan_memory
from infercast.engines.sglang.older import TUNED_SINCE, before
from infercast.engines.sglang.padding import expert_multiples
from infercast.engines.sglang.replica import sglang_replica
from infercast.engines.sglang.resolve import resolve
from infercast.engines.sglang.settings import NEWEST, ResolvedSglang, SglangSettings
from infercast.engines.sglang.spread import fuses_norms, sizes_for, spread
from infercast.engines.sglang.tuning import EXPERT_LAUNCHES
from infercast.engines.sharing import shared_seconds
from infercast.engines.words import Commands, Names

OLDEST = (7, 5)
"""Compute capability below which SGLang's kernels (FlashInfer's, Triton's) are not built."""
TRIED = (
    (),
    (("chunked_prefill_size", 512),),
    (("chunked_prefill_size", 2048),),
    (("chunked_prefill_size", 16384),),
    (("max_running_requests", 128),),
    (("enable_mixed_chunk", True),),
)
"""What a plan tries: the engine's own choice, smaller and larger chunks, fewer requests, decoding beside prompts."""
BOUNDS = ("chunked_prefill_size", "max_running_requests", "context_length")


def _describe(settings: ResolvedSglang) -> str:
    chunk = "whole prompts" if settings.chunk is None else f"prompts in chunks of {settings.chunk:,} tokens"
    return (
        f"{chunk}, up to {settings.max_running_requests:,} requests; context_length {settings.context_length:,}; "
        f"mem_fraction_static {settings.mem_fraction_static:g}; radix cache "
        f"{'off' if settings.disable_radix_cache else 'on'}"
        + (f"; hierarchical cache, {_tier(settings)}" if settings.enable_hierarchical_cache else "")
    )


def _tier(settings: ResolvedSglang) -> str:
    size, ratio = settings.hicache_size, settings.hicache_ratio
    return f"{size:,} GB of host memory a GPU" if size else f"{ratio:g} times as large in host memory"


def _release(name: str) -> Engine[SglangSettings, ResolvedSglang]:
    return Engine(
        name=name,
        title="SGLang",
        load_balancer="round_robin",
        names=Names(**read_data("engines/sglang/names.toml")),
        flags=FLAGS,
        commands=Commands(**read_data("engines/sglang/commands.toml")),
        settings_type=SglangSettings,
        settings_from=settings_of,
        bounds=BOUNDS,
        shown=(*BOUNDS, "mem_fraction_static", "disable_radix_cache"),
        describe=_describe,
        resolve=resolve,
        check_gpu=partial(check_capability, "SGLang", OLDEST, "Turing, such as t4"),
        fuses_norms=fuses_norms,
        shares_copies=False,
        spread=spread,
        sizes_for=sizes_for,
        tried=TRIED,
        choose_kernels=choose_kernels,
        expert_multiples=expert_multiples,
        expert_launches=EXPERT_LAUNCHES,
        graphs=lambda settings: SglangGraphs(settings.decode_sizes, settings.prefill_sizes),
        plan_memory=plan_memory,
        tokens_under_way=lambda settings, _: settings.max_num_batched_tokens,
        host_type=SglangHost,
        host_model=SglangHostModel,
        replica=sglang_replica,
        shared_seconds=shared_seconds,
        measured_setup=measured_setup,
        profiled_step=profiled_step,
        ties_groups=False,
        before=before,
        tuned_since=TUNED_SINCE,
        close_since=(0, 5, 16),
    )


RELEASES = {NEWEST: _release(NEWEST)}
