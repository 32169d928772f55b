"""Scheduling by priority: who waits, who gives way, and that stretches may still be jumped over."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import infercast
from infercast.serve.cache.blocks import KvShape
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import ORDERS, FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import StepTimer
from infercast.serve.workload.classes import parse_class, with_classes
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import synthetic_workload


def replica_of(timer: StepTimer, **changes: Any) -> Replica:
    policy = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=1, by_priority=True)
    arguments: dict[str, Any] = {"policy": policy, "num_blocks": 1000, "kv_shape": KvShape(4), **changes}
    return Replica(timer=timer, **arguments)


def test_the_smallest_number_starts_first_and_equals_in_order_of_arrival(timer: StepTimer) -> None:
    requests = tuple(Request(0.001 * i, 8, 4, priority=priority) for i, priority in enumerate((0, 5, 1, 5, -1)))
    started = simulate(replica_of(timer), Workload(requests)).started_at
    assert sorted(range(5), key=lambda index: started[index]) == [0, 4, 2, 1, 3]


def test_the_least_important_runner_gives_way(timer: StepTimer) -> None:
    requests = tuple(Request(0.0, 8, 60, priority=priority) for priority in (9, 0, 0, 0))
    record = simulate(
        replica_of(
            timer, policy=FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8, by_priority=True), num_blocks=40
        ),
        Workload(requests),
    )
    assert record.num_preemptions > 0
    assert record.last_token[0] == record.last_token.max()
    by_arrival = simulate(
        replica_of(timer, policy=FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8), num_blocks=40),
        Workload(requests),
    )
    assert by_arrival.last_token[0] < by_arrival.last_token.max()


def test_equal_priorities_are_served_in_order_of_arrival(scenario: Any, facts: Any) -> None:
    def run(seed: int, *, ranked: bool) -> Any:
        replica, workload = scenario("crowd", seed)
        policy = replace(replica.policy, by_priority=ranked)
        workload = replace(workload, concurrency=None)
        return facts(simulate(replace(replica, policy=policy, num_blocks=10 * replica.num_blocks), workload))

    for seed in range(30):
        assert run(seed, ranked=True) == run(seed, ranked=False), seed


def test_stretches_of_decoding_are_jumped_over_with_priorities_too(scenario: Any, facts: Any) -> None:
    preempting = 0
    for seed in range(75):
        served = []
        for jump in (True, False):
            replica, workload = scenario(("small", "tree", "crowd", "talk", "states")[seed % 5], seed)
            rng = Random(f"priority {seed}")
            ranked = tuple(replace(each, priority=rng.randint(0, 2)) for each in workload.requests)
            replica = replace(replica, policy=replace(replica.policy, by_priority=True))
            record = simulate(replica, replace(workload, requests=ranked), jump=jump)
            served.append(facts(record))
            preempting += record.num_preemptions > 0
        assert served[0] == served[1], seed
    assert preempting > 10


def test_a_queue_in_an_order_of_ones_own(timer: StepTimer) -> None:
    requests = tuple(Request(0.001 * i, size, 4, due=due) for i, (size, due) in enumerate(((8, 9), (12, 5), (4, 3))))
    for order, expected in (
        (ORDERS["deadline"], [0, 2, 1]), (ORDERS["shortest_prompt"], [0, 2, 1]),
        (lambda request: -request.num_input, [0, 1, 2]),
    ):  # fmt: skip
        policy = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=1, by_priority=True, order=order)
        started = simulate(replica_of(timer, policy=policy), Workload(requests)).started_at
        assert sorted(range(3), key=lambda index: started[index]) == expected


def test_deadlines_of_classes_keep_more_of_their_limits() -> None:
    shares = [parse_class("chat:0.3:ttft=1"), parse_class("batch:0.7:ttft=60")]
    workload = with_classes(synthetic_workload(rate=2.2, count=300, input_lengths=700, output_lengths=180), shares)
    chats = np.array([request.slo_class == "chat" for request in workload.requests])
    deployed = {
        policy: infercast.deploy("llama-3.1-8b", "l40s", max_num_seqs=8, scheduling_policy=policy)
        for policy in ("fcfs", "deadline", lambda request: request.arrival + request.due)
    }
    late = []
    for deployment in deployed.values():
        record = deployment.simulate(workload).first_records[0]
        late.append(float(np.mean((record.first_token - record.sent_at)[chats] > 1)))
    assert late[1] < late[0] / 2
    assert late[1] == late[2]
