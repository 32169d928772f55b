"""The engine against the reference that takes every sequence, block and step by itself: equal to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from infercast.serve.cache.blocks import KvShape
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy, Plan
from infercast.serve.simulation import simulate
from infercast.serve.step import StepEstimate, StepShape, StepTimer
from infercast.serve.timeline import Span
from infercast.serve.workload.request import Request, Segment, Workload

Same = Callable[[Replica, Workload], Record]


@pytest.fixture(scope="session")
def same(facts: Callable[[Record], Any], reference: Callable[[Replica, Workload], Record]) -> Same:
    """Serve a workload in all ways, which must agree; returns the record."""

    def check(replica: Replica, workload: Workload) -> Record:
        record = reference(replica, workload)
        expected = facts(record)
        assert facts(simulate(replica, workload, jump=True)) == expected
        assert facts(simulate(replica, workload, jump=False)) == expected
        return record

    return check


def replica_of(timer: StepTimer, steps_under_way: int, **changes: Any) -> Replica:
    arguments: dict[str, Any] = {
        "policy": FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8),
        "num_blocks": 1000,
        "kv_shape": KvShape(4),
        **changes,
    }
    return Replica(timer=timer, steps_under_way=steps_under_way, **arguments)


both = pytest.mark.parametrize("steps_under_way", [1, 2])


@pytest.mark.parametrize(
    ("kind", "count"),
    [("small", 240), ("tree", 120), ("pipeline", 80), ("crowd", 40), ("states", 72), ("stops", 120)],
)
@pytest.mark.parametrize("part", range(4))
def test_every_step_of_random_engines(
    scenario: Any, facts: Any, reference: Any, kind: str, count: int, part: int
) -> None:
    preempting = finding = 0
    for seed in range(part, count, 4):  # an engine remembers what it met, so each run has its own
        record = reference(*scenario(kind, seed))
        expected = facts(record)
        for jump in (True, False):
            assert facts(simulate(*scenario(kind, seed), jump=jump)) == expected, (kind, seed, jump)
        preempting += record.num_preemptions > 0
        finding += bool(record.num_cached.any())
    assert min(preempting, finding) > count / 4 / 12


@both
def test_arrivals_in_the_middle_of_a_long_answer(same: Same, timer: StepTimer, steps_under_way: int) -> None:
    requests = (Request(0.0, 30, 300), *(Request(0.37 * i, 9, 40) for i in range(1, 30)))
    same(replica_of(timer, steps_under_way), Workload(requests))


@both
def test_an_arrival_at_the_very_end_of_a_step(same: Same, timer: StepTimer, steps_under_way: int) -> None:
    # The end of every step, to the bit, from a run without the second request.
    replica = replica_of(timer, steps_under_way)
    long = Request(0.0, 30, 40)
    ends = [
        float(simulate(replica, Workload((replace(long, num_output=count),))).last_token[0]) for count in range(1, 40)
    ]
    for end in ends:
        same(replica, Workload((long, Request(end, 5, 3))))


@both
def test_a_cache_that_runs_full_while_decoding(same: Same, timer: StepTimer, steps_under_way: int) -> None:
    requests = tuple(Request(0.1 * i, 10, 60, (Segment(1, 6),)) for i in range(8))
    assert same(replica_of(timer, steps_under_way, num_blocks=40), Workload(requests)).num_preemptions > 0


@both
def test_decoding_that_forgets_what_a_later_request_would_have_found(
    same: Same, timer: StepTimer, steps_under_way: int
) -> None:
    # The first leaves 16 cached blocks behind; the second decodes over some of them before the third comes to look.
    prefix = (Segment(1, 64),)
    requests = (Request(0.0, 65, 1, prefix), Request(2.0, 4, 60), Request(8.0, 65, 2, prefix))
    record = same(replica_of(timer, steps_under_way, num_blocks=26), Workload(requests))
    assert 0 < record.num_cached[2] < 64


@both
def test_two_groups_of_full_attention_run_full_twice_as_fast(
    same: Same, timer: StepTimer, steps_under_way: int
) -> None:
    requests = tuple(Request(0.0, 10, 60) for _ in range(4))
    replica = replica_of(timer, steps_under_way, num_blocks=80, kv_shape=KvShape(4, (0, 0)))
    assert same(replica, Workload(requests)).num_preemptions > 0


@both
def test_a_closed_loop(same: Same, timer: StepTimer, steps_under_way: int) -> None:
    requests = tuple(Request(0.0, 7 + i % 5, 20 + 11 * (i % 7)) for i in range(20))
    replica = replica_of(timer, steps_under_way, request_path_seconds=0.05, token_path_seconds=0.011)
    same(replica, Workload(requests, concurrency=4))


def test_windows_are_given_back_in_the_order_of_their_sequences(same: Same, timer: StepTimer) -> None:
    # All blocks are held when the windows of the first two move on. What the first gives back is handed to the third,
    # so that the fourth finds nothing of the beginning that it has in common with the first.
    requests = (
        Request(0.0, 15, 2, (Segment(0, 8),)),
        Request(0.0, 10, 2),
        Request(0.0, 1, 1),
        Request(0.0, 5, 1, (Segment(0, 5),)),
    )
    replica = replica_of(
        timer,
        1,
        policy=FcfsPolicy(max_num_batched_tokens=40, max_num_seqs=16),
        num_blocks=21,
        kv_shape=KvShape(4, (3, 3, 0)),
    )
    assert same(replica, Workload(requests)).num_cached.tolist() == [0, 0, 0, 0]


class Told:
    """What a watcher is told of each step: its end, blocks held, sequences, tokens and their contexts."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int, int, int, list[int]]] = []

    def step(self, plan: Plan, shape: StepShape, estimate: StepEstimate, span: Span, held: Sequence[int]) -> None:
        self.stretch(shape, estimate, [span.end], held)

    def stretch(self, shape: StepShape, estimate: StepEstimate, ends: Sequence[float], held: Sequence[int]) -> None:
        for more, (end, blocks) in enumerate(zip(ends, held, strict=True)):
            context = shape.total_computed + more * shape.num_sequences
            numbers = [shape.num_sampled, context, shape.is_decode]
            self.steps.append((end, blocks, shape.num_sequences, shape.num_tokens, numbers))


def test_a_watcher_is_told_of_the_same_steps_in_stretches(scenario: Any) -> None:
    for seed in range(100):
        told = Told(), Told()
        for watcher, jump in zip(told, (True, False), strict=True):
            simulate(*scenario("small", seed), jump=jump, watch=watcher)
        assert told[0].steps == told[1].steps, seed


@both
@pytest.mark.parametrize("frees_on_completion", [False, True])
def test_windows_that_are_chunks_are_left_behind_as_wholes(
    same: Same, timer: StepTimer, steps_under_way: int, frees_on_completion: bool
) -> None:
    requests = tuple(Request(0.2 * i, 5 + 3 * i, 40, (Segment(i % 2, 4),)) for i in range(8))
    shape = KvShape(4, (8, 0), chunked=True)
    policy = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8, frees_on_completion=frees_on_completion)
    replica = replica_of(timer, steps_under_way, policy=policy, num_blocks=90, kv_shape=shape)
    same(replica, Workload(requests))


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
