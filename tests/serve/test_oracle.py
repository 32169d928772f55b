from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infercast.serve.coast import coast

from infercast.serve.cache.shape import KvShape
from infercast.serve.first_use import FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler.policy import FirstCome
from infercast.serve.simulation import Replica, simulate
from infercast.serve.step import StepEstimate, StepShape, StepTimer
from infercast.serve.workload.request import Request, Segment, Workload

Facts = Callable[[Record], dict[str, Any]]


def replica_of(timer: StepTimer, steps_under_way: int, **changes: Any) -> Replica:
    arguments: dict[str, Any] = {
        "policy": FirstCome(64, 8),
        "num_blocks": 1000,
        "kv_shape": KvShape(4),
        **changes,
    }
    return Replica(timer, steps_under_way=steps_under_way, **arguments)


def assert_jumps_change_nothing(facts: Facts, replica: Replica, workload: Workload) -> None:
    assert facts(simulate(replica, workload, jump=True)) == facts(simulate(replica, workload, jump=False))


both = pytest.mark.parametrize("steps_under_way", [1, 2])


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_jumping_and_stepping_give_the_same_bits(data: st.DataObject, scenarios: Any, facts: Facts) -> None:
    replica, workload = data.draw(scenarios)
    assert_jumps_change_nothing(facts, replica, workload)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_whole_numbers_and_objects_give_the_same_bits(data: st.DataObject, scenarios: Any, facts: Facts) -> None:
    replica, workload = data.draw(scenarios)
    # What the fast loop takes: requests that share nothing, attention without windows, two steps under way.
    limits = replace(replica.policy, long_prefill_token_threshold=0, chunked_prefill=True)
    shape = KvShape(replica.kv_shape.block_size, (0,) * len(replica.kv_shape.windows))
    longest = max(request.num_input + request.num_output for request in workload.requests)
    blocks = shape.most_blocks(longest, limits.max_num_batched_tokens) + data.draw(st.sampled_from([0, 5, 20, 80]))
    replica = replace(replica, policy=limits, kv_shape=shape, num_blocks=blocks, steps_under_way=2)
    requests = tuple(replace(request, prefix=()) for request in workload.requests)
    requests *= data.draw(st.integers(1, 3))
    workload = replace(workload, requests=tuple(sorted(requests, key=lambda request: request.arrival)))
    with mock.patch("infercast.serve.simulation.TURNS_APART", -1):
        assert_jumps_change_nothing(facts, replica, workload)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_a_clock_with_a_history_and_a_host_that_varies_jump_the_same_way(
    data: st.DataObject, scenarios: Any, facts: Facts
) -> None:
    replica, workload = data.draw(scenarios)

    def heavy(shape: StepShape, steps: int = 1) -> StepEstimate:
        estimate = replica.timer(shape, steps)._replace(rows=(0,))
        return estimate if shape.is_decode else estimate._replace(target=0.3, throttled=0.8 * estimate.gpu_seconds[0])

    with mock.patch("infercast.serve.simulation.TURNS_APART", data.draw(st.sampled_from([-1, 2]))):
        changed = replace(replica, timer=heavy, settle_seconds=5.0, launch_spread=0.3)
        assert_jumps_change_nothing(facts, changed, workload)


def test_nearly_all_turns_of_a_long_run_are_taken_in_the_fast_loop(timer: StepTimer) -> None:
    requests = tuple(Request(0.3 * i, 9 + i % 7, 3 + i % 11) for i in range(300))
    with mock.patch("infercast.serve.simulation.coast", side_effect=coast) as slow_turns:
        record = simulate(replica_of(timer, 2), Workload(requests))
    assert record.num_output.sum() == sum(request.num_output for request in requests)
    assert slow_turns.call_count < 60


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_blocks_without_numbers_are_as_good_as_blocks_one_by_one(
    data: st.DataObject, scenarios: Any, facts: Facts, plain_cache: type
) -> None:
    replica, workload = data.draw(scenarios)
    with mock.patch("infercast.serve.simulation.KvCache", plain_cache):
        plain = simulate(replica, workload, jump=False)
    assert facts(simulate(replica, workload)) == facts(plain)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_a_cold_engine_jumps_the_same_way(data: st.DataObject, scenarios: Any, facts: Facts) -> None:
    replica, workload = data.draw(scenarios)
    limits = replica.policy

    def cold() -> Replica:
        return replace(replica, first_uses=FirstUses(4, limits.max_num_batched_tokens, limits.max_num_seqs))

    assert facts(simulate(cold(), workload, jump=True)) == facts(simulate(cold(), workload, jump=False))


@both
def test_arrivals_in_the_middle_of_a_long_answer(facts: Facts, timer: StepTimer, steps_under_way: int) -> None:
    requests = (Request(0.0, 30, 300), *(Request(0.37 * i, 9, 40) for i in range(1, 30)))
    assert_jumps_change_nothing(facts, replica_of(timer, steps_under_way), Workload(requests))


@both
def test_an_arrival_at_the_very_end_of_a_step(facts: Facts, timer: StepTimer, steps_under_way: int) -> None:
    # The end of every step, to the bit, from a run without the second request.
    replica = replica_of(timer, steps_under_way)
    long = Request(0.0, 30, 40)
    ends = [
        float(simulate(replica, Workload((replace(long, num_output=count),))).last_token[0]) for count in range(1, 40)
    ]
    for end in ends:
        assert_jumps_change_nothing(facts, replica, Workload((long, Request(end, 5, 3))))


@both
def test_a_cache_that_runs_full_while_decoding(facts: Facts, timer: StepTimer, steps_under_way: int) -> None:
    requests = tuple(Request(0.1 * i, 10, 60, (Segment(1, 6),)) for i in range(8))
    replica = replica_of(timer, steps_under_way, num_blocks=40)
    assert simulate(replica, Workload(requests)).num_preemptions > 0
    assert_jumps_change_nothing(facts, replica, Workload(requests))


@both
def test_decoding_that_forgets_what_a_later_request_would_have_found(
    facts: Facts, timer: StepTimer, steps_under_way: int
) -> None:
    # The first leaves 16 cached blocks behind; the second decodes over some of them before the third comes to look.
    prefix = (Segment(1, 64),)
    requests = (Request(0.0, 65, 1, prefix), Request(2.0, 4, 60), Request(8.0, 65, 2, prefix))
    replica = replica_of(timer, steps_under_way, num_blocks=26)
    record = simulate(replica, Workload(requests))
    assert 0 < record.num_cached[2] < 64
    assert_jumps_change_nothing(facts, replica, Workload(requests))


@both
def test_two_groups_of_full_attention_run_full_twice_as_fast(
    facts: Facts, timer: StepTimer, steps_under_way: int
) -> None:
    requests = tuple(Request(0.0, 10, 60) for _ in range(4))
    replica = replica_of(timer, steps_under_way, num_blocks=80, kv_shape=KvShape(4, (0, 0)))
    assert simulate(replica, Workload(requests), jump=False).num_preemptions > 0
    assert_jumps_change_nothing(facts, replica, Workload(requests))


@both
def test_a_closed_loop(facts: Facts, timer: StepTimer, steps_under_way: int) -> None:
    requests = tuple(Request(0.0, 7 + i % 5, 20 + 11 * (i % 7)) for i in range(20))
    replica = replica_of(timer, steps_under_way, request_path_seconds=0.05, token_path_seconds=0.011)
    assert_jumps_change_nothing(facts, replica, Workload(requests, concurrency=4))


@both
def test_a_long_answer_takes_few_calls_of_the_timer(timer: StepTimer, steps_under_way: int) -> None:
    calls: list[int] = []

    def counting(shape: StepShape, steps: int = 1) -> StepEstimate:
        calls.append(steps)
        return timer(shape, steps)

    simulate(replica_of(counting, steps_under_way), Workload((Request(0.0, 10, 1000),)))
    # A jump takes up to 512 steps.
    assert sum(calls) == 1000
    assert len(calls) < 6


def test_more_than_one_step_is_asked_only_where_it_can_be_taken(timer: StepTimer) -> None:
    # A cache of five blocks in which three answers of twelve computed tokens push each other out.
    def careful(shape: StepShape, steps: int = 1) -> StepEstimate:
        assert steps >= 1
        return timer(shape, steps)

    requests = tuple(Request(0.0, 4, 9) for _ in range(3))
    record = simulate(replica_of(careful, 1, num_blocks=5, kv_shape=KvShape(3)), Workload(requests))
    assert record.num_output.tolist() == [9, 9, 9]
