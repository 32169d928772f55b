"""vLLM, release by release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from infercast.bundled import read_data
from infercast.engines.capability import check_capability
from infercast.engines.engine import DraftPasses, Engine
from infercast.engines.sharing import shared_seconds
from infercast.engines.speculation import Drafting
from infercast.engines.vllm.block_size import default_block_size
from infercast.engines.vllm.checks import check_blocks
from infercast.engines.vllm.expert_defaults import EXPERT_LAUNCHES
from infercast.engines.vllm.expert_padding import expert_multiples
from infercast.engines.vllm.flags import flags_of, settings_of
from infercast.engines.vllm.host import VllmHost, VllmHostModel
from infercast.engines.vllm.kv import hybrid_block_size
from infercast.engines.vllm.launches import launch_work
from infercast.engines.vllm.lora import adapter_slots
from infercast.engines.vllm.measured import measured_setup, profiled_step
from infercast.engines.vllm.memory import check_state_blocks, plan_memory
from infercast.engines.vllm.new_kernels import is_new
from infercast.engines.vllm.older import before
from infercast.engines.vllm.replica import vllm_replica
from infercast.engines.vllm.settings import EngineSettings, ResolvedSettings, resolve
from infercast.engines.vllm.sparse import choose_sparse_kernels
from infercast.engines.vllm.states import ALIGN, States, check_aligned, runs_v2
from infercast.engines.vllm.versions import ENGINES, MEASURED, engine_version
from infercast.engines.words import Commands, Names
from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.mixers import LatentAttention
from infercast.models.spec import ModelConfig
from infercast.units import GIB

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment

OLDEST = (7, 0)
"""Compute capability below which vLLM 0.25 does not start: its compiler's kernels (Triton) need Volta."""
FUSING_KERNELS = ("hopper", "blackwell")
"""Where FlashInfer has a kernel for all-reduces that carry a norm, which vLLM then uses."""
TRIED = (
    (),
    (("max_num_batched_tokens", 512),),
    (("max_num_batched_tokens", 2048),),
    (("max_num_batched_tokens", 16384),),
    (("max_num_seqs", 128),),
    (("enable_chunked_prefill", False),),
)
"""What a plan tries: the engine's own choice, smaller and larger steps, fewer sequences, whole prompts."""
BOUNDS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


def _describe(settings: ResolvedSettings) -> str:
    return (
        f"up to {settings.max_num_batched_tokens:,} tokens, {settings.max_num_seqs:,} sequences per step; "
        f"max_model_len {settings.max_model_len:,}; prefix caching {'on' if settings.enable_prefix_caching else 'off'}"
        + ("" if settings.tier is None else f"; {settings.tier.num_bytes / GIB:,.4g} GiB of KV cache in host memory")
    )


def _resolve(settings: EngineSettings, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> ResolvedSettings:
    resolved = resolve(
        settings,
        gpu,
        model.max_positions,
        model.architecture,
        block_size=default_block_size(model, gpu),
        states=States.of(model),
        drafting=_drafting(settings, model, layout),
    )
    least = resolved.block_size
    if States.of(model).kept and any(isinstance(stack.mixer, LatentAttention) for stack in model.stacks):
        least = max(least, resolved.version.latent_unit)
    size = hybrid_block_size(model, layout, least, resolved.state_blocks)
    if resolved.mamba_cache_mode == ALIGN and resolved.version.needs_whole_blocks:
        tokens, threshold = resolved.max_num_batched_tokens, resolved.long_prefill_token_threshold
        check_aligned(size, tokens, threshold, chunked_prefill=resolved.enable_chunked_prefill)
    resolved = replace(resolved, block_size=size)
    shard = model.shard(layout)
    check_blocks(resolved, [cache for stack in model.stacks for cache in stack.mixer.caches(shard)])
    return resolved


def _drafting(settings: EngineSettings, model: ModelConfig, layout: ParallelLayout) -> Drafting | None:
    """What the settings' speculative config means for a model."""
    if settings.speculative_config is None:
        if settings.acceptance is not None:
            raise InputError("acceptance has no meaning without --speculative-config")
        return None
    from infercast.engines.vllm.speculation import drafting_of  # noqa: PLC0415 - most engines do not draft

    version = engine_version(settings.engine)
    return drafting_of(
        settings.speculative_config,
        settings.acceptance,
        model,
        layout,
        version,
        asynchronous=settings.async_scheduling,
        v2_target=runs_v2(model, version),
        dummy_weights=settings.dummy_weights,
    )


def _most_tokens(given: Mapping[str, Any]) -> int:
    if given.get("speculative_config") is None:
        return 1
    from infercast.engines.vllm.speculative_config import most_tokens  # noqa: PLC0415 - most engines do not draft

    return most_tokens(given["speculative_config"])


def _draft_passes(deployment: Deployment) -> DraftPasses:
    from infercast.engines.vllm.draft_passes import VllmPasses  # noqa: PLC0415 - most engines do not draft

    return VllmPasses(deployment)


def _release(name: str) -> Engine[EngineSettings, ResolvedSettings]:
    return Engine(
        name=name,
        title="vLLM",
        note="" if name == MEASURED else f"rules by its source, costs as measured on {MEASURED.partition('@')[2]}",
        is_measured=name == MEASURED,
        close_since=(0, 20),
        is_new_kernel=partial(is_new, ENGINES[name]),
        has_new_runner=lambda model: runs_v2(model, ENGINES[name]) and not runs_v2(model, ENGINES[MEASURED]),
        load_balancer="vllm",
        servers_by_rank=True,
        names=Names(**read_data("engines/vllm/names.toml")),
        flags=flags_of(name),
        commands=Commands(**read_data("engines/vllm/commands.toml")),
        settings_type=EngineSettings,
        settings_from=settings_of,
        bounds=BOUNDS,
        shown=(*BOUNDS, "gpu_memory_utilization", "enable_prefix_caching"),
        describe=_describe,
        resolve=_resolve,
        check_gpu=partial(check_capability, "vLLM", OLDEST, "Volta, such as v100-sxm"),
        tried=TRIED,
        before=before,
        fuses_norms=lambda _, gpu: gpu.kernels in FUSING_KERNELS,
        choose_kernels=choose_sparse_kernels,
        expert_multiples=expert_multiples,
        expert_launches=EXPERT_LAUNCHES,
        graphs=lambda settings: settings.graphs,
        drafts=lambda settings: settings.speculative_config is not None,
        most_tokens=_most_tokens,
        adapters=adapter_slots,
        drafting=lambda settings: settings.drafting,
        draft_passes=_draft_passes,
        plan_memory=plan_memory,
        check_memory=check_state_blocks,
        tokens_under_way=lambda settings, layout: settings.most_under_way(layout.pipeline),
        host_type=VllmHost,
        host_model=lambda host, model, layout, gpu, settings: VllmHostModel(
            host, launch_work(model, layout, gpu), settings.mamba_cache_mode
        ),
        replica=vllm_replica,
        shared_seconds=shared_seconds,
        measured_setup=measured_setup,
        profiled_step=profiled_step,
    )


RELEASES = {name: _release(name) for name in ENGINES}
