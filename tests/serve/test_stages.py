"""A pipeline: stages overlap, sequences wait for their tokens."""

from __future__ import annotations

from typing import Any

import pytest

from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy, Plan
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.simulation import simulate
from infercast.serve.step import HostCost, constant_timer
from infercast.serve.timeline import StagedTimeline
from infercast.serve.workload.request import Request, Workload


def pipeline(shares: tuple[float, ...], **limits: Any) -> Replica:
    return Replica(
        timer=constant_timer(0.1),
        policy=FcfsPolicy(max_num_batched_tokens=1, max_num_seqs=64, waits_for_tokens=True, **limits),
        num_blocks=1000,
        steps_under_way=len(shares),
        stages=shares,
    )


def test_a_step_passes_all_stages_and_the_next_follows_at_once() -> None:
    timeline = StagedTimeline((0.5, 0.5))
    first, second = (timeline.launch(HostCost(), 1.0) for _ in range(2))
    assert (first.start, first.end) == (0.0, 1.0)
    assert (second.start, second.end) == (0.5, 1.5)


def test_uneven_stages_leave_a_bubble() -> None:
    timeline = StagedTimeline((0.25, 0.75))
    ends = [timeline.launch(HostCost(), 1.0).end for _ in range(4)]
    assert ends == pytest.approx([1.0, 1.75, 2.5, 3.25])


def test_one_sequence_gains_nothing() -> None:
    record = simulate(pipeline((0.5, 0.5)), Workload((Request(0.0, 1, 20),)))
    assert record.tpot.tolist() == pytest.approx([0.1])


def test_stages_are_launched_one_after_the_other() -> None:
    # Every stage has a host of its own, which prepares while others launch; what each launches comes after the others'.
    host = HostCost(plan=0.5, prepare=1.0, launch=4.0)
    timeline = StagedTimeline((0.5, 0.5))
    assert timeline.launch(host, 0.0).end == 5.5
    assert timeline.clock == 0.5
    assert timeline.launch(host, 0.0).end == 8.5  # the second host is free at 5.5


def test_stages_in_turn_never_overlap() -> None:
    timeline = StagedTimeline((0.5, 0.5), in_turn=True)
    first, second = (timeline.launch(HostCost(), 1.0) for _ in range(2))
    assert (first.end, second.start, second.end) == (1.0, 1.0, 2.0)


def test_an_engine_that_plans_ahead_keeps_its_stages_busy_with_as_many_batches() -> None:
    # Two sequences, one token a step: each is in every other step, and both stages always have one of them.
    limits = FcfsPolicy(max_num_batched_tokens=1, max_num_seqs=64, decode_stride=2)
    replica = Replica(timer=constant_timer(0.1), policy=limits, num_blocks=1000, steps_under_way=3, stages=(0.5, 0.5))
    record = simulate(replica, Workload((Request(0.0, 1, 50), Request(0.0, 1, 50))))
    assert record.tpot.tolist() == pytest.approx([0.1, 0.1])
    alone = simulate(replica, Workload((Request(0.0, 1, 50),)))
    assert alone.tpot.tolist() == pytest.approx([0.1])


def test_as_many_sequences_as_stages_keep_all_busy() -> None:
    # One token a step: two sequences are in different steps, and both stages always have one.
    requests = (Request(0.0, 1, 50), Request(0.0, 1, 50))
    alone = simulate(pipeline((1.0,)), Workload(requests))
    staged = simulate(pipeline((0.5, 0.5)), Workload(requests))
    assert alone.last_token.max() / staged.last_token.max() == pytest.approx(2.0, rel=0.03)
    assert staged.tpot.tolist() == pytest.approx([0.1, 0.1])


def test_no_sequence_is_in_two_steps_at_once() -> None:
    under_way: list[Plan] = []

    def observe(scheduler: Scheduler, plan: Plan) -> None:
        under_way.append(plan)
        for sequence in plan.sampled:
            assert sequence.num_promised == sequence.num_produced + 1

    requests = tuple(Request(0.3 * index, 3 + index, 10) for index in range(6))
    record = simulate(pipeline((0.3, 0.3, 0.4)), Workload(requests), jump=False, observe=observe)
    assert record.num_output.tolist() == [10] * 6
    assert len(under_way) > 60


def test_prompts_come_first_where_an_engine_says_so() -> None:
    plans: list[tuple[int, ...]] = []
    limits = FcfsPolicy(max_num_batched_tokens=8, max_num_seqs=64, prompts_first=True)
    requests = (Request(0.0, 8, 5), Request(0.0, 8, 5), Request(0.0, 8, 5))
    simulate(
        Replica(timer=constant_timer(0.1), policy=limits, num_blocks=1000, steps_under_way=1),
        Workload(requests),
        jump=False,
        observe=lambda _, plan: plans.append(tuple(plan.new_tokens)),
    )
    assert plans[:4] == [(8,), (8,), (8,), (1, 1, 1)]
