"""SGLang as the simulation sees it: its limits, its way of scheduling, its cache and its ways in and out."""

from __future__ import annotations

from infercast.engines.deployment import Deployment
from infercast.engines.sglang.kv import cells
from infercast.engines.sglang.offload import offload_of
from infercast.engines.sglang.settings import ResolvedSglang
from infercast.predict.adjust.power import SETTLE_SECONDS
from infercast.serve import PrefillFirst, Replica
from infercast.serve.conditions import LAUNCH_SPREAD
from infercast.serve.step import StepTimer

FIRST_RATIO, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
"""Of declared answers, the share that a start must have room for, what it falls to, and in how many steps
(``environ.py``, ``scheduler_components/new_token_ratio_tracker.py``)."""
GROUPED = 0.3
"""Groups of DP attention are so much less careful (``server_args.py``, ``_handle_data_parallelism``)."""


def sglang_replica(deployment: Deployment, settings: ResolvedSglang, timer: StepTimer, warmed_up: bool) -> Replica:
    """One replica of a deployment."""
    host, stages = deployment.host, deployment.layout.pipeline
    conservativeness = settings.schedule_conservativeness * (GROUPED if settings.groups > 1 else 1.0)
    first = min(FIRST_RATIO * conservativeness, 1.0)
    policy = PrefillFirst(
        max_running_requests=settings.max_running_requests,
        chunked_prefill_size=settings.chunk,
        max_prefill_tokens=settings.max_prefill_tokens,
        max_prompts=settings.prefill_max_requests,
        mixed_chunk=settings.enable_mixed_chunk and settings.chunk is not None,
        order="longest_match" if settings.schedule_policy == "lpm" and not settings.disable_radix_cache else "arrival",
        first_ratio=first,
        least_ratio=first * LEAST_SHARE,
        ratio_decay=(first - first * LEAST_SHARE) / DECAY_STEPS,
        tries_always=cells(deployment.model, deployment.layout, settings).windowed > 0,
        # Requests that declare what they produce are those of benchmarks, which ignore the end of a text; it matters
        # without a radix cache alone.
        ignores_end=True,
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
        request_turn_seconds=host.server_turn if deployment.over_http else 0.0,
        token_path_seconds=host.token_path,
        token_turn_seconds=host.token_turn,
        wake_up_seconds=host.wake_up,
        looks_every=settings.scheduler_recv_interval,
        max_model_len=settings.max_model_len,
        stages=deployment.stages,
        launch_spread=LAUNCH_SPREAD,
        settle_seconds=SETTLE_SECONDS,
        offload=offload_of(
            settings,
            deployment.memory.kv.shape,
            deployment.memory.kv.block_bytes,
            deployment.memory.request_blocks,
            deployment.model.layers,
            deployment.layout,
            deployment.gpu,
        ),
    )
