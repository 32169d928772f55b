"""Several engines behind a router, in one simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.record import ServedRequests
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import StepEstimate, StepShape, StepTimer, constant_timer
from infercast.serve.workload.request import Request, Segment, Workload

POLICIES = ("vllm", "round_robin", "least_loaded", "prefix_aware")


def replica_of(timer: StepTimer, **changes: Any) -> Replica:
    arguments: dict[str, Any] = {
        "policy": FcfsPolicy(max_num_batched_tokens=256, max_num_seqs=16),
        "num_blocks": 4000,
        **changes,
    }
    return Replica(timer=timer, **arguments)


def serve(replica: Replica, workload: Workload, engines: int, policy: str = "least_loaded") -> ServedRequests:
    return ServedRequests(simulate_fleet(Pool(same_engines(replica, engines), policy), workload))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fleet_of_one_is_that_engine(scenario: Any, facts: Any, policy: str) -> None:
    for seed in range(40):
        replica, workload = scenario("small", seed)
        (record,) = simulate_fleet(Pool((replica,), policy), workload)
        assert facts(record) == facts(simulate(*scenario("small", seed))), seed


@pytest.mark.parametrize("seed", range(80))
def test_every_request_is_served_once(scenario: Any, seed: int) -> None:
    replica, workload = scenario("small", seed)
    records = simulate_fleet(Pool(same_engines(replica, 3), POLICIES[seed % len(POLICIES)]), workload)
    assert sum(~np.isnan(record.last_token) for record in records).tolist() == [1] * len(workload.requests)
    served = ServedRequests(records)
    assert served.num_output.tolist() == [request.num_output for request in workload.requests]
    assert (served.ttft > 0).all()
    if workload.concurrency is not None:
        assert max(served.in_system_at(time) for time in served.sent_at) <= workload.concurrency


def test_taking_turns_in_an_open_loop_is_engines_side_by_side(timer: StepTimer) -> None:
    requests = tuple(Request(0.2 * index, 5 + index % 7, 3 + index % 11) for index in range(40))
    replica = replica_of(timer)
    served = serve(replica, Workload(requests), 4, "round_robin")
    for engine in range(4):
        alone = simulate(replica, Workload(requests[engine::4]))
        assert served.last_token[engine::4].tobytes() == alone.last_token.tobytes()
        assert served.first_token[engine::4].tobytes() == alone.first_token.tobytes()


def test_two_engines_serve_twice_as_many() -> None:
    workload = Workload(tuple(Request(0.0, 1, 50) for _ in range(200)), concurrency=32)
    one, two = (serve(replica_of(constant_timer(0.01)), workload, engines) for engines in (1, 2))
    assert one.last_token.max() / two.last_token.max() == pytest.approx(2.0, rel=0.1)


def test_uneven_requests_wait_less_behind_a_router_that_looks() -> None:
    # Every other request is long: taking turns sends all long ones to the same engine.
    requests = tuple(Request(0.45 * index, 10, 400 if index % 2 else 5) for index in range(80))
    replica = replica_of(constant_timer(0.01), policy=FcfsPolicy(max_num_batched_tokens=256, max_num_seqs=4))
    turns, looking = (serve(replica, Workload(requests), 2, policy) for policy in ("round_robin", "least_loaded"))
    assert looking.ttft.mean() < 0.7 * turns.ttft.mean()


def test_prompts_are_found_where_they_were_sent_before(timer: StepTimer) -> None:
    requests = tuple(Request(0.3 * index, 40, 2, (Segment(index * 7 % 5, 32),)) for index in range(60))
    found = {
        policy: int(serve(replica_of(timer), Workload(requests), 4, policy).num_cached.sum()) for policy in POLICIES
    }
    assert found["prefix_aware"] > found["round_robin"]
    assert found["prefix_aware"] > found["least_loaded"]


def test_engines_in_lockstep_step_as_the_slowest() -> None:
    def by_tokens(shape: StepShape, steps: int = 1) -> StepEstimate:
        return constant_timer(0.01 * shape.num_tokens)(shape, steps)

    replica = replica_of(by_tokens, steps_under_way=1)
    uneven = (Request(0.0, 1, 40), Request(0.0, 30, 40))
    free, locked = (
        ServedRequests(simulate_fleet(Pool(same_engines(replica, 2), "round_robin", lockstep), Workload(uneven)))
        for lockstep in (False, True)
    )
    # The prompt of 30 tokens on one engine holds up a step of the other.
    assert locked.last_token[0] > free.last_token[0] + 0.2


def test_a_long_run_tells_how_many_were_answered(timer: StepTimer) -> None:
    told: list[tuple[int, float]] = []
    workload = Workload(tuple(Request(0.01 * i, 5, 2) for i in range(2100)))
    simulate_fleet(
        Pool(same_engines(replica_of(timer), 2)), workload, progress=lambda count, time: told.append((count, time))
    )
    assert [count for count, _ in told] == [*range(64, 2100, 64)]
    assert 0 < told[0][1] < told[1][1]


def test_hundreds_of_engines() -> None:
    workload = Workload(tuple(Request(0.001 * index, 5, 4) for index in range(300)))
    served = serve(replica_of(constant_timer(0.01)), workload, 200)
    assert len(set(served.engine.tolist())) == 200
    assert served.ttft.max() < 0.1


def test_too_many_engines_or_requests_are_refused() -> None:
    replica, workload = replica_of(constant_timer(0.01)), Workload((Request(0.0, 5, 4),))
    with pytest.raises(InputError, match="100,000 replicas are too many to simulate together; use 1 to 1,024"):
        serve(replica, workload, 100_000)
    many = Workload(workload.requests * 100_000)
    with pytest.raises(InputError, match="use at most 50,000 requests or 500 replicas"):
        serve(replica, many, 1000)
