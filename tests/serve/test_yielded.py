"""More than one token a step: what a sequence computes and what it yields are two numbers."""

from __future__ import annotations

import numpy as np
import pytest

from infercast.serve import FirstCome, Replica, simulate
from infercast.serve.cache.shape import KvShape
from infercast.serve.scheduler.base import Plan
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepEstimate, StepShape
from infercast.serve.workload.request import Request, Workload


@pytest.mark.parametrize("steps_under_way", [1, 2])
@pytest.mark.parametrize(
    ("computed", "yielded", "num_output", "decode_steps"), [(1, 1, 9, 8), (3, 2, 9, 4), (3, 2, 10, 5), (4, 1, 9, 8)]
)
def test_an_answer_takes_as_many_steps_as_it_yields(
    computed: int, yielded: int, num_output: int, decode_steps: int, steps_under_way: int
) -> None:
    shapes: list[list[int]] = []

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        shapes.extend([list(shape.new_tokens)] * steps)
        each = [0.01] * steps
        return StepEstimate(each, [each])

    policy = FirstCome(64, 8, decode_tokens=(computed, yielded))
    replica = Replica(timer, policy, 100, KvShape(4), steps_under_way=steps_under_way)
    record = simulate(replica, Workload((Request(0.0, 10, num_output),)))
    assert shapes == [[10], *[[computed]] * decode_steps]
    assert record.num_output.tolist() == [num_output]
    assert record.last_token[0] - record.first_token[0] == pytest.approx(0.01 * decode_steps)


def test_room_is_taken_for_drafts_and_the_context_grows_by_what_was_right() -> None:
    contexts: list[int] = []
    lengths: list[int] = []

    def observe(scheduler: Scheduler, plan: Plan) -> None:
        contexts.extend(plan.computed)
        lengths.extend(sequence.length for sequence in plan.sequences)

    policy = FirstCome(64, 8, decode_tokens=(4, 2))
    replica = Replica(lambda shape, steps=1: StepEstimate([0.01], [[0.01]]), policy, 100, KvShape(4), steps_under_way=1)
    simulate(replica, Workload((Request(0.0, 8, 7),)), jump=False, observe=observe)
    assert contexts == [0, 8, 10, 12]
    assert lengths == [2, 3, 4, 4]


def test_all_are_served_where_some_give_way() -> None:
    replica = Replica(
        lambda shape, steps=1: StepEstimate([0.01] * steps, [[0.01] * steps]),
        FirstCome(16, 8, decode_tokens=(3, 2)),
        12,
        KvShape(4),
    )
    requests = tuple(Request(0.03 * i, 9 + i % 5, 1 + i % 17) for i in range(40))
    record = simulate(replica, Workload(requests))
    assert record.num_output.tolist() == [request.num_output for request in requests]
    assert record.num_preemptions > 0
    assert not np.isnan(record.last_token).any()
