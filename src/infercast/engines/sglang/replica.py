"""SGLang as the simulation sees it: its limits, its way of scheduling, its cache and its ways in and out."""

from __future__ import annotations

from infercast.engines.deployment import Deployment
from infercast.engines.sglang.settings import ResolvedSglang
from infercast.predict.adjust.power import SETTLE_SECONDS
from infercast.serve import FirstCome, Replica
from infercast.serve.conditions import LAUNCH_SPREAD
from infercast.serve.step import StepTimer


def sglang_replica(deployment: Deployment, settings: ResolvedSglang, timer: StepTimer, warmed_up: bool) -> Replica:
    """One replica of a deployment."""
    host, stages = deployment.host, deployment.layout.pipeline
    policy = FirstCome(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_running_requests,
        chunked_prefill=settings.chunk is not None,
        prompts_first=not settings.enable_mixed_chunk,
    )
    return Replica(
        timer=timer,
        policy=policy,
        num_blocks=deployment.memory.request_blocks,
        kv_shape=deployment.memory.kv.shape,
        prefix_caching=not settings.disable_radix_cache,
        steps_under_way=stages if stages > 1 else 1 if settings.disable_overlap_schedule else 2,
        request_path_seconds=host.request_path,
        request_token_seconds=host.request_token,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn,
        wake_up_seconds=host.wake_up,
        max_model_len=settings.context_length,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
    )
