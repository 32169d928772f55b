"""Batches of a pipeline that take turns, prompts first."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.base import Plan, PrefillFirstPolicy
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.simulation import simulate
from infercast.serve.workload.request import Request


def steps(ring: PrefillScheduler, num_batches: int, count: int) -> list[Any]:
    """Turns of a loop with as many steps under way as batches: tokens of prompts, and who decodes."""
    under_way: deque[Plan | None] = deque()
    found: list[Any] = []
    for _ in range(count):
        plan = ring.plan()
        if plan is not None:
            prompts = {each.index: new for each, new in zip(plan.sequences, plan.new_tokens, strict=True)}
            found.append((prompts, [each.index for each in ring.cohort.in_order()] if plan.decodes else []))
            ring.start(plan)
        else:
            found.append(None)
        under_way.append(plan)
        if len(under_way) == num_batches and (oldest := under_way.popleft()) is not None:
            ring.complete(oldest)
    return found


def ring_of(*lengths: tuple[int, int], num_batches: int = 2, most: int = 8) -> PrefillScheduler:
    policy = PrefillFirstPolicy(max_running_requests=most, chunked_prefill_size=100, first_ratio=0.0, least_ratio=0.0)
    ring = PrefillScheduler(policy, RadixCache(1000, KvShape(1)), num_batches=num_batches)
    for index, (num_input, num_output) in enumerate(lengths):
        ring.add(index, Request(0.0, num_input, num_output))
    return ring


def test_sequences_stay_in_their_batch_and_nothing_is_wasted() -> None:
    ring = ring_of((60, 3), (60, 2))
    assert steps(ring, 2, 6) == [({0: 60, 1: 40}, []), ({1: 20}, []), ({}, [0]), ({}, [1]), ({}, [0]), None]


def test_parts_of_a_prompt_go_through_batches_one_after_the_other() -> None:
    ring = ring_of((250, 2), num_batches=3)
    assert steps(ring, 3, 6) == [({0: 100}, []), ({0: 100}, []), ({0: 50}, []), None, None, ({}, [0])]


def test_each_batch_has_its_share_of_places() -> None:
    ring = ring_of((4, 9), (4, 9), (4, 9), (4, 9), (4, 9), most=4)
    assert steps(ring, 2, 4) == [({0: 4, 1: 4}, []), ({2: 4, 3: 4}, []), ({}, [0, 1]), ({}, [2, 3])]


@pytest.mark.parametrize("part", range(2))
def test_random_pipelines_answer_everybody(scenario: Any, part: int) -> None:
    retracted = out_of_memory = 0
    for seed in range(part, 200, 2):
        replica, workload = scenario("prefill", seed)
        stages = 2 + seed % 3
        policy = replace(replica.policy, max_running_requests=max(stages, replica.policy.max_running_requests))
        changes: dict[str, Any] = {"policy": policy, "steps_under_way": stages, "stages": (1 / stages,) * stages}
        changes["num_blocks"] = 2 * replica.num_blocks
        try:
            record = simulate(replace(replica, **changes), workload)
        except InputError:  # a prompt that is cut goes on whatever others have taken meanwhile
            out_of_memory += 1
            continue
        assert not np.isnan(record.last_token).any()
        gaps, counts = record.gaps
        assert counts.sum() == (record.num_output - 1).sum()
        assert (gaps > 0).all()
        retracted += record.num_preemptions > 0
    assert retracted
    assert out_of_memory <= 12
