"""What holds in every step of random engines that compute prompts first, and that jumping changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.simulation import simulate

seeds = st.integers(0, 1_000_000)
often = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_tree(cache: RadixCache) -> tuple[int, int]:
    """Pages of the tree that are locked, and those that are not."""
    locked = unlocked = 0
    found = [*cache.tree.root.children.values()]
    while found:
        node = found.pop()
        found += node.children.values()
        assert all(child.locks <= node.locks for child in node.children.values())
        locked += (node.end - node.start) * (node.locks > 0)
        unlocked += (node.end - node.start) * (node.locks == 0)
    return locked, unlocked


def own_pages(scheduler: PrefillScheduler) -> int:
    """Pages of running sequences that are not in the tree."""
    cohort, page = scheduler.cohort, scheduler.cache.page
    lengths = zip(cohort.members, cohort.contexts(), strict=True)
    own = sum(-(-length // page) - member.lease.node.end for member, length in lengths)
    apart = [] if scheduler.batch.joining is None else [*scheduler.batch.joining.sampled]
    apart += [] if scheduler.cut is None else [scheduler.cut]
    return own + sum(each.lease.num_pages - each.lease.node.end for each in apart)


def check(scheduler: PrefillScheduler, plan: Plan) -> None:
    policy, cache = scheduler.policy, scheduler.cache
    locked, unlocked = in_tree(cache)
    assert unlocked == cache.num_evictable
    assert cache.num_blank + unlocked + locked + own_pages(scheduler) == cache.num_blocks
    assert cache.num_blank >= 0
    assert len(scheduler.cohort.members) <= policy.max_running_requests
    assert policy.least_ratio <= scheduler.ratio <= 1 or plan.num_preempted
    decoding = plan.decodes if policy.mixed_chunk else 0
    if plan.sequences:
        assert policy.chunked_prefill_size is None or sum(plan.new_tokens) + decoding <= policy.chunked_prefill_size
        assert policy.mixed_chunk or not plan.decodes
        assert len(plan.sampled) >= len(plan.sequences) - 1


@often
@given(seeds)
def test_pages_add_up_and_no_step_is_too_large(scenario: Any, seed: int) -> None:
    record = simulate(*scenario("prefill", seed), jump=False, observe=check)
    assert not np.isnan(record.last_token).any()


@often
@given(seeds)
def test_jumping_changes_nothing(scenario: Any, facts: Any, seed: int) -> None:
    one_by_one = simulate(*scenario("prefill", seed), jump=False)
    assert facts(simulate(*scenario("prefill", seed))) == facts(one_by_one)


def test_random_engines_meet_what_they_should(scenario: Any) -> None:
    records = [simulate(*scenario("prefill", seed)) for seed in range(60)]
    assert sum(record.num_preemptions > 0 for record in records) >= 4
    assert sum(record.num_cached.sum() > 0 for record in records) >= 10
