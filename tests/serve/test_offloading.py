"""Engines whose KV cache has a second tier in the host's memory."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve import FcfsPolicy, PrefillFirstPolicy, Record, Replica, Request, Segment, Workload, simulate
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.radix_cache import HostPages, Node, RadixCache
from infercast.serve.cache.tiers import LinkSpeed, Offload
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.step import HostCost, StepEstimate, StepShape

SPEED = LinkSpeed(50e9, 1e-5, 1e-4, 1e-6)
TIER = Offload(2000, 1 << 20, 8, SPEED, SPEED, empty_step_seconds=1e-3)


def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    each = [0.005 + 20e-6 * (shape.num_tokens - shape.num_sequences)] * steps
    return StepEstimate(each, [each], HostCost(1e-4, 3e-4, 5e-4, 1e-4))


def visits(count: int, groups: int, *, seed: int = 0, rate: float = 8.0, longest: int = 60) -> Workload:
    """Requests that begin with one of several prefixes of 1,024 tokens."""
    rng, now, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        prefix = (Segment(rng.randrange(groups), 1024),)
        requests.append(Request(now, 1024 + rng.randint(1, 300), rng.randint(1, longest), prefix))
    return Workload(tuple(requests))


def mixing(num_blocks: int = 400, offload: Offload | None = TIER, **options: int) -> Replica:
    return Replica(
        timer=timer,
        policy=FcfsPolicy(max_num_batched_tokens=2048, max_num_seqs=64),
        num_blocks=num_blocks,
        offload=offload,
        **options,
    )


def prefill_first(num_blocks: int = 6400, offload: Offload | None = TIER) -> Replica:
    policy = PrefillFirstPolicy(
        max_running_requests=64,
        chunked_prefill_size=2048,
        max_prefill_tokens=16384,
        order="arrival",
        first_ratio=0.7,
        least_ratio=0.1,
        ratio_decay=0.001,
    )
    return Replica(timer=timer, policy=policy, num_blocks=num_blocks, kv_shape=KvShape(1), offload=offload)


@pytest.fixture(scope="module")
def run() -> Record:
    return simulate(mixing(), visits(200, 12))


def test_what_the_gpu_forgets_comes_back_from_the_host(run: Record) -> None:
    without = simulate(mixing(offload=None), visits(200, 12))
    assert without.tier is None
    assert run.tier is not None
    assert run.num_cached.sum() > 2 * without.num_cached.sum()
    assert run.tier.num_loaded.sum() == run.tier.num_hit > 50_000
    assert np.median(run.ttft) < np.median(without.ttft)
    assert run.num_output.sum() == without.num_output.sum()


def test_copies_are_counted_in_blocks_and_each_prefix_is_stored_once(run: Record) -> None:
    assert run.tier is not None
    assert run.tier.load.num_bytes == run.tier.num_hit // 16 * TIER.block_bytes
    own = sum((request.num_input // 16 - 64) for request in visits(200, 12).requests)
    assert run.tier.store.num_bytes == (12 * 64 + own) * TIER.block_bytes
    loaded = run.tier.num_loaded > 0
    waits = (run.started_at - run.tier.load_began)[loaded]
    assert loaded.sum() == run.tier.load.num_copies
    assert waits.min() > 64 * TIER.block_bytes / 50e9
    assert np.isnan(run.tier.load_began[~loaded]).all()


@pytest.mark.parametrize("steps_under_way", [1, 2])
def test_jumping_over_stretches_changes_nothing(steps_under_way: int) -> None:
    replica, workload = mixing(steps_under_way=steps_under_way), visits(60, 12, seed=3, rate=3.0)
    jumped, stepped = simulate(replica, workload), simulate(replica, workload, jump=False)
    assert (jumped.last_token == stepped.last_token).all()
    assert (jumped.first_token == stepped.first_token).all()


def test_a_tier_that_nobody_finds_anything_in_costs_what_tokens_wait_for_behind_the_stores() -> None:
    workload = Workload(tuple(Request(2.0 * number, 512, 40) for number in range(5)))
    fast, slow = (replace(TIER, load=LinkSpeed(rate), store=LinkSpeed(rate)) for rate in (50e9, 1e9))
    plain, tiered, held_up = (simulate(mixing(offload=each), workload) for each in (None, fast, slow))
    assert tiered.tier is not None
    assert tiered.tier.store.num_bytes == 5 * 32 * TIER.block_bytes
    assert tiered.ttft == pytest.approx(plain.ttft)
    assert tiered.tpot == pytest.approx(plain.tpot)
    # A copy of 34 ms is under way when the second token is made.
    assert held_up.ttft == pytest.approx(plain.ttft)
    assert held_up.tpot * 39 == pytest.approx(plain.tpot * 39 + 0.024, abs=0.006)


def test_a_slow_link_makes_those_wait_who_load_and_others_pass_them() -> None:
    slow = replace(TIER, load=LinkSpeed(0.1e9))
    first = [Request(0.0, 1024, 1, (Segment(1, 1008),))]
    fillers = [Request(1.0 + number, 1600, 1) for number in range(4)]
    back = Request(10.0, 1024, 1, (Segment(1, 1008),))
    requests = (*first, *fillers, back, Request(10.0, 64, 1), replace(back, arrival=10.01))
    run = simulate(mixing(offload=slow), Workload(requests))
    assert run.num_cached[5] == 1008
    assert run.ttft[5] > 63 * TIER.block_bytes / 0.1e9
    assert run.ttft[6] < 0.05
    # The other one that begins alike waits for the same blocks, and finds them on the GPU then.
    assert run.tier is not None
    assert run.num_cached[7] == 1008
    assert run.tier.num_loaded.tolist()[5:] == [1008, 0, 0]


@pytest.mark.parametrize("spares", [False, True])
def test_a_request_that_gave_way_loads_its_own_prompt(spares: bool) -> None:
    requests = tuple(Request(0.001 * number, 200, 200) for number in range(12))
    run = simulate(mixing(num_blocks=120, offload=replace(TIER, spares_under_way=spares)), Workload(requests))
    assert run.num_preemptions > 0
    assert run.tier is not None
    assert run.tier.num_hit > 0
    assert run.tier.num_loaded.sum() == 0
    assert run.num_output.tolist() == [200] * 12


def test_answers_are_stored_where_that_is_asked_for() -> None:
    requests = [Request(0.0, 160, 161, (Segment(1, 160),), answer=2)]
    requests += [Request(5.0 + number, 4000, 2) for number in range(3)]
    requests.append(Request(20.0, 330, 2, (Segment(1, 160), Segment(2, 161))))
    # The last block of an answer is full when its last token is known, and then it is over, unless ends are stored.
    for prompts_only, stores_ends, found in ((True, True, 160), (False, False, 304), (False, True, 320)):
        tier = replace(TIER, prompts_only=prompts_only, stores_ends=stores_ends)
        run = simulate(mixing(offload=tier), Workload(tuple(requests)))
        assert run.tier is not None
        assert run.tier.num_loaded[-1] == found


def test_a_queue_that_stands_still_for_ever_is_told_and_newer_rules_avoid_it() -> None:
    slow = replace(TIER, load=LinkSpeed(1e9))
    first, second = (Segment(1, 320),), (Segment(2, 640),)
    requests = [Request(0.0, 330, 1, first), Request(1.0, 650, 1, second)]
    requests += [Request(2.0 + number, 1900, 1) for number in range(2)]
    # The second waits for what the first loads, and the third is loaded meanwhile into blocks that the second needs.
    requests += [Request(5.0, 330, 2, first), Request(5.0, 1600, 2, first), Request(5.0, 650, 2, second)]
    with pytest.raises(InputError, match="would wait for ever"):
        simulate(mixing(120, slow), Workload(tuple(requests)))
    newer = simulate(mixing(120, replace(slow, holders_first=True)), Workload(tuple(requests)))
    assert newer.num_output.tolist() == [1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("seed", range(3))
def test_random_runs_end_and_blocks_are_given_back(seed: int) -> None:
    rng = random.Random(seed)
    tier = replace(TIER, num_blocks=rng.choice([150, 400, 1000]), factor=rng.choice([1, 2]))
    tier = replace(tier, load=LinkSpeed(rng.choice([1e9, 50e9])), store=LinkSpeed(rng.choice([1e9, 50e9])))
    tier = replace(tier, holders_first=True, spares_under_way=True, stores_ends=True, by_request=True)
    replica = mixing(rng.choice([200, 400]), tier)
    run = simulate(replica, visits(120, 20, seed=seed, rate=rng.choice([4.0, 30.0])))
    assert not np.isnan(run.last_token).any()
    assert run.tier is not None
    assert 0 < run.tier.peak_blocks <= tier.num_blocks
    assert run.kv_usage.peak <= 1.0


def test_pages_of_a_tree_come_back_with_the_step_that_needs_them() -> None:
    workload = visits(200, 12)
    plain, tiered = (
        simulate(prefill_first(offload=each), workload) for each in (None, replace(TIER, num_blocks=40_000))
    )
    assert tiered.tier is not None
    assert tiered.num_cached.sum() > 2 * plain.num_cached.sum()
    assert tiered.tier.num_loaded.sum() > 50_000
    assert np.median(tiered.ttft) < np.median(plain.ttft)
    assert simulate(
        prefill_first(offload=replace(TIER, num_blocks=40_000)), workload, jump=False
    ).last_token.tolist() == (tiered.last_token.tolist())


def test_a_step_lasts_as_long_as_what_it_loads() -> None:
    slow = replace(TIER, num_blocks=40_000, block_bytes=1 << 16, load=LinkSpeed(0.1e9))
    requests = [Request(0.0, 1024, 1, (Segment(1, 1008),))]
    requests += [Request(1.0 + number, 1600, 1) for number in range(4)]
    requests.append(Request(10.0, 1024, 1, (Segment(1, 1008),)))
    run = simulate(prefill_first(offload=slow), Workload(tuple(requests)))
    assert run.num_cached[-1] == 1008
    assert run.ttft[-1] > 1008 * (1 << 16) / 0.1e9
    selective = simulate(prefill_first(offload=replace(slow, store_threshold=2)), Workload(tuple(requests)))
    assert selective.num_cached[-1] == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_books_of_both_tiers_add_up(seed: int) -> None:
    rng = random.Random(seed)
    cache = RadixCache(3000, KvShape(1), host=HostPages(rng.choice([2000, 20_000]), rng.choice([1, 2])))
    policy = prefill_first().policy
    assert isinstance(policy, PrefillFirstPolicy)
    scheduler, requests = PrefillScheduler(policy, cache, 2, None), visits(80, 6, seed=seed).requests
    for index, request in enumerate(requests):
        scheduler.add(index, request)
        for _ in range(rng.randint(0, 40)):
            if (plan := scheduler.plan()) is None:
                break
            scheduler.start(plan)
            scheduler.complete(plan)
            check_books(cache)


def check_books(cache: RadixCache) -> None:
    """Pages of the tree by where they are."""
    on_host = evictable = 0
    stack: list[Node] = [*cache.tree.root.children.values()]
    while stack:
        node = stack.pop()
        stack += [*node.children.values()]
        assert node.on_gpu or node.on_host
        assert node.parent is not None
        assert node.parent.on_gpu or not node.on_gpu
        assert node.parent.on_host or not node.on_host
        assert not (node.locks and not node.on_gpu)
        size = node.end - node.start
        on_host += size if node.on_host else 0
        evictable += size if node.on_gpu and not node.locks else 0
    assert cache.host is not None
    assert cache.host.num_blocks - cache.host.num_free == on_host
    assert cache.num_evictable == evictable
    assert 0 <= cache.num_blank <= cache.num_blocks


def test_drafts_are_verified_beside_copies_to_host_memory() -> None:
    from infercast.serve.speculation import Speculation  # noqa: PLC0415

    drafts = Speculation(2, (0.5, 0.3), lookahead=2, drops_block=True, pads_new=True)
    record = simulate(replace(mixing(), speculation=drafts), visits(60, 6))
    assert record.tier is not None
    assert record.tier.num_hit > 0
    assert record.drafts is not None
    assert record.drafts.num_accepted > 0
