"""vLLM as the simulation sees it: its limits, its way of scheduling, its cache and its ways in and out."""

from __future__ import annotations

from dataclasses import asdict

from infercast.engines.deployment import Deployment
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.engines.vllm.states import runs_v2
from infercast.predict.adjust.power import SETTLE_SECONDS
from infercast.serve import FirstCome, Replica
from infercast.serve.conditions import LAUNCH_SPREAD
from infercast.serve.first_use import FirstUses
from infercast.serve.scheduler.priority import ByPriority
from infercast.serve.step import StepTimer


def vllm_replica(deployment: Deployment, settings: ResolvedSettings, timer: StepTimer, warmed_up: bool) -> Replica:
    """One replica of a deployment."""
    host, version, stages = deployment.host, settings.version, deployment.layout.pipeline
    is_v2 = runs_v2(deployment.model, version)
    first_uses = None
    if not warmed_up:
        largest_graph = max(settings.capture_sizes, default=0)
        first_uses = FirstUses(largest_graph, settings.max_num_batched_tokens, settings.max_num_seqs)
    policy = FirstCome(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.most_running,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        chunked_prefill=settings.enable_chunked_prefill,
        prompts_first=settings.prompts_first,
        # A pipeline without asynchronous scheduling has each sequence in one of its batches.
        waits_for_tokens=stages > 1 and not settings.async_scheduling,
        steps_between_tokens=stages if settings.async_scheduling and is_v2 else 1,
        spares_lone_prompts=version.spares_lone_prompts,
        settles=version.settles,
        opens_blocks=not version.needs_whole_blocks,
        last_apart=version.parts_last,
    )
    if settings.scheduling_policy == "priority":
        policy = ByPriority(**asdict(policy), steps_over=version.steps_over)
    return Replica(
        timer=timer,
        policy=policy,
        num_blocks=deployment.memory.request_blocks,
        kv_shape=deployment.memory.kv.shape.even,
        prefix_caching=settings.enable_prefix_caching,
        sparse_windows=settings.retention_interval is not None,
        retained_every=settings.retention_interval or 0,
        steps_under_way=settings.steps_under_way(stages, v2_runner=is_v2),
        request_path_seconds=host.request_path,
        request_token_seconds=host.request_token,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn,
        wake_up_seconds=host.wake_up,
        first_uses=first_uses,
        max_model_len=settings.max_model_len,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
        stages_in_turn=stages > 1 and settings.async_scheduling and not is_v2,
    )
