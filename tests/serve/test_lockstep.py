"""Engines that share experts and meet in every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.record import ServedRequests
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.step import StepEstimate, StepShape, constant_timer
from infercast.serve.workload.request import Request, Workload

TOKEN = 0.01


def by_tokens(shape: StepShape, steps: int = 1) -> StepEstimate:
    return constant_timer(TOKEN * shape.num_tokens)(shape, steps)


def serve(
    *requests: Request,
    engines: int = 2,
    shared: Callable[[float], float] | None = None,
    prefill_interval: int = 1,
    **changes: Any,
) -> ServedRequests:
    policy = FcfsPolicy(max_num_batched_tokens=256, max_num_seqs=16, prefill_interval=prefill_interval)
    replica = Replica(timer=by_tokens, policy=policy, num_blocks=4000, steps_under_way=1, **changes)
    pool = Pool(same_engines(replica, engines), "round_robin", lockstep=True, shared=shared)
    return ServedRequests(simulate_fleet(pool, Workload(requests)))


def test_batches_of_decoding_go_at_the_pace_of_the_fullest() -> None:
    # Engine 0 decodes one sequence, engine 1 two of them.
    served = serve(Request(0.0, 1, 60), Request(0.0, 1, 60), Request(0.0, 60, 1), Request(0.0, 1, 60))
    assert served.tpot[0] == pytest.approx(2 * TOKEN, rel=0.4)
    assert served.tpot[0] >= 2 * TOKEN * 0.95
    alone = serve(Request(0.0, 1, 60))
    assert alone.tpot[0] == pytest.approx(TOKEN)


def test_a_prompt_holds_the_others_up_once() -> None:
    alone = serve(Request(0.0, 1, 40))
    held = serve(Request(0.0, 1, 40), Request(0.1, 30, 1))
    assert held.last_token[0] - alone.last_token[0] == pytest.approx(29 * TOKEN, abs=3 * TOKEN)


def test_prompts_of_all_engines_wait_for_every_fourth_pass() -> None:
    # Both engines decode in passes of one token each; the pass that begins at 0 is the first.
    decoding = Request(0.0, 1, 60), Request(0.0, 1, 60)
    prompts = Request(0.055, 5, 1), Request(0.065, 5, 1)
    served = serve(*decoding, *prompts, prefill_interval=4)
    assert served.first_token[2:] == pytest.approx([0.08 + 6 * TOKEN] * 2)
    at_once = serve(*decoding, *prompts)
    assert at_once.first_token[2] == pytest.approx(0.06 + 6 * TOKEN)


def test_an_engine_without_work_holds_nobody_up() -> None:
    served = serve(Request(0.0, 1, 400), Request(0.0, 40, 2))
    gaps, counts = served.gaps
    assert np.median(np.repeat(gaps, counts)) == pytest.approx(TOKEN)


def test_a_request_to_an_idle_engine_waits_for_the_pass_under_way() -> None:
    # The pass with the long prompt begins at 0 and lasts 0.5 s.
    served = serve(Request(0.0, 50, 2), Request(0.2, 1, 2))
    assert served.first_token[1] == pytest.approx(50 * TOKEN + TOKEN, abs=TOKEN)


def test_experts_compute_the_tokens_of_all_and_no_more() -> None:
    def shared(tokens: float) -> float:  # all of a step's time
        return TOKEN * tokens

    alone = serve(Request(0.0, 100, 1), engines=4, shared=shared)
    assert alone.ttft[0] == pytest.approx(TOKEN * (100 + 3) / 4)
    full = serve(*(Request(0.0, 100, 1) for _ in range(4)), engines=4, shared=shared)
    assert full.ttft[-1] == pytest.approx(TOKEN * 100)
