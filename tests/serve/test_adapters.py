"""No more different adapters in a step than there is room for."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from infercast.errors import InputError
from infercast.serve.cache.blocks import KvShape
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import StepTimer
from infercast.serve.workload.request import Request, Workload


def replica_of(timer: StepTimer, most: int | None) -> Replica:
    return Replica(
        timer=timer,
        policy=FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8),
        num_blocks=1000,
        kv_shape=KvShape(4),
        max_adapters=most,
    )


def test_a_request_for_another_adapter_waits_and_is_passed(timer: StepTimer) -> None:
    requests = tuple(Request(0.0, 8, 20, adapter=adapter) for adapter in (1, 2, 1, None))
    started = simulate(replica_of(timer, 1), Workload(requests)).started_at.tolist()
    assert started[0] == started[2] == started[3] < started[1]
    started = simulate(replica_of(timer, 2), Workload(requests)).started_at.tolist()
    assert len(set(started)) == 1


def test_requests_for_adapters_need_room_for_them(timer: StepTimer) -> None:
    with pytest.raises(InputError, match="--enable-lora"):
        simulate(replica_of(timer, None), Workload((Request(0.0, 8, 20, adapter=1),)))


def test_no_step_has_more_and_stretches_are_jumped_over(timer: StepTimer, facts: Callable[..., Any]) -> None:
    for seed in range(30):
        rng = Random(seed)
        requests = tuple(
            Request(0.2 * i * rng.random(), rng.randint(1, 30), rng.randint(1, 30), adapter=rng.choice([None, 0, 1, 2]))
            for i in range(20)
        )
        workload = Workload(tuple(sorted(requests, key=lambda each: each.arrival)))
        seen: list[int] = []

        def observe(scheduler: Any, plan: Any, seen: list[int] = seen) -> None:
            together = scheduler.cohort.members if plan.decodes else ()
            seen.append(len({each.adapter for each in (*together, *plan.sequences)} - {None}))

        plain = facts(simulate(replica_of(timer, 2), workload, jump=False, observe=observe))
        assert max(seen) <= 2
        assert facts(simulate(replica_of(timer, 2), workload)) == plain
