"""vLLM as the simulation sees it: its limits, its way of scheduling, its cache and its ways in and out."""

from __future__ import annotations

from dataclasses import asdict

from infercast.engines.deployment import Deployment
from infercast.engines.speculation import Drafting
from infercast.engines.vllm.lora import most_adapters
from infercast.engines.vllm.offload import offload_of
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.engines.vllm.states import runs_v2
from infercast.engines.vllm.versions import EngineVersion
from infercast.errors import InputError
from infercast.models.mixers import LatentAttention
from infercast.predict.adjust.power import SETTLE_SECONDS
from infercast.serve import FirstCome, Replica
from infercast.serve.cache.offload import Offload
from infercast.serve.conditions import LAUNCH_SPREAD
from infercast.serve.first_use import FirstUses
from infercast.serve.scheduler.priority import ByPriority
from infercast.serve.speculation import Speculation
from infercast.serve.step import StepTimer


def vllm_replica(deployment: Deployment, settings: ResolvedSettings, timer: StepTimer, warmed_up: bool) -> Replica:
    """One replica of a deployment."""
    host, version, stages = deployment.host, settings.version, deployment.layout.pipeline
    is_v2, drafting = runs_v2(deployment.model, version), settings.drafting
    shape = deployment.memory.kv.shape._replace(retained=max(0, settings.read_ahead - 1))
    first_uses = None
    if not warmed_up:
        largest_graph = max(settings.capture_sizes, default=0)
        is_recorded = drafting is not None and drafting.v2_runner and drafting.passes > 1
        known_rows = largest_graph if is_recorded else 0
        first_uses = FirstUses(largest_graph, settings.max_num_batched_tokens, settings.max_num_seqs, known_rows)
    policy = FirstCome(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.most_running,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        chunked_prefill=settings.enable_chunked_prefill,
        prompts_first=settings.prompts_first,
        # A pipeline without asynchronous scheduling has each sequence in one of its batches.
        waits_for_tokens=(stages > 1 and not settings.async_scheduling)
        or not (drafting is None or drafting.asynchronous),
        steps_between_tokens=stages if settings.async_scheduling and is_v2 else 1,
        spares_lone_prompts=version.spares_lone_prompts,
        settles=version.settles,
        opens_blocks=not version.needs_whole_blocks,
        last_apart=version.parts_last,
        passed_apart=version.passed_apart,
        watermark=settings.watermark,
        reserves_prompts=settings.scheduler_reserve_full_isl,
    )
    if settings.scheduling_policy == "priority":
        policy = ByPriority(**asdict(policy), steps_over=version.steps_over)
    return Replica(
        timer=timer,
        policy=policy,
        num_blocks=deployment.memory.request_blocks,
        kv_shape=shape if settings.tier is None else shape.of_one_size,
        prefix_caching=settings.enable_prefix_caching,
        sparse_windows=settings.retention_interval is not None,
        retained_every=settings.retention_interval or 0,
        steps_under_way=settings.steps_under_way(stages, v2_runner=is_v2),
        request_path_seconds=host.request_path,
        request_token_seconds=host.request_token,
        request_turn_seconds=host.server_turn if deployment.over_http else 0.0,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn,
        wake_up_seconds=host.wake_up,
        first_uses=first_uses,
        max_model_len=settings.max_model_len,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
        max_adapters=most_adapters(settings),
        tells_load=version.weighs_cache,
        stages_in_turn=stages > 1 and settings.async_scheduling and not is_v2,
        offload=_offload(deployment, settings, is_v2=is_v2),
        speculation=None if drafting is None else _speculation(drafting, version),
    )


def _speculation(drafting: Drafting, version: EngineVersion) -> Speculation:
    """Drafts as the scheduler sees them."""
    return Speculation(
        drafting.num_drafts,
        drafting.acceptance.rates,
        match=drafting.match,
        lookahead=drafting.lookahead,
        drops_block=drafting.drops_block,
        read_ahead=drafting.read_ahead,
        slots_taken=drafting.slots_taken,
        slots_by_step=version.slots_by_step,
        pads_new=True,
        pads_first=version.pads_first,
        by_batch=drafting.by_batch,
    )


def _offload(deployment: Deployment, settings: ResolvedSettings, *, is_v2: bool) -> Offload | None:
    """The tier of its KV cache in the host's memory, if it has one."""
    asked, kv = settings.tier, deployment.memory.kv
    if asked is None:
        return None
    if not settings.enable_prefix_caching:
        raise InputError("kv_offloading_size without prefix caching is not modelled; leave one of the two out")
    # The older model runner puts all layers of a block side by side where they have the same width.
    whole = not is_v2 and len(kv.shape.windows) == 1
    model, version = deployment.model, settings.version
    latent = all(isinstance(stack.mixer, LatentAttention) for stack in model.stacks)
    layout, gpu = deployment.layout, deployment.gpu
    return offload_of(asked, kv, model.layers, layout, gpu, whole=whole, latent=latent, version=version)
