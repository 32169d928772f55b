"""Conversations: each turn waits for the answer before it, and finds it in the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infercast.serve.fleet.pool import Pool, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.simulation import simulate
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload


def conversation(*thinks: float, session: int = 0, arrival: float = 0.0) -> list[Request]:
    return [Request(arrival, 10, 4, session=session, think=think) for think in (0.0, *thinks)]


def test_a_turn_comes_some_time_after_the_answer_before_it() -> None:
    clients = Clients(Workload(tuple(conversation(2.5, 1.0)), in_turns=True), path_seconds=0.1)
    assert clients.pop()[::2] == (0, 0.0)
    assert clients.next_arrival is None
    clients.answer(3.0, 0)
    assert clients.next_arrival == 3.0 + 2.5 + 0.1
    assert clients.pop()[::2] == (1, 5.5)


def test_a_turn_never_comes_before_its_own_arrival() -> None:
    requests = (Request(0.0, 10, 4, session=7), Request(9.0, 10, 4, session=7, think=1.0))
    clients = Clients(Workload(requests, in_turns=True))
    clients.pop()
    clients.answer(3.0, 0)
    assert clients.next_arrival == 9.0


def test_sessions_begin_by_the_clock_whatever_others_wait_for() -> None:
    requests = [*conversation(1.0), *conversation(1.0, session=1, arrival=4.0), Request(6.0, 5, 5)]
    clients = Clients(Workload(tuple(requests), in_turns=True))
    assert [clients.pop()[::2] for _ in range(3)] == [(0, 0.0), (2, 4.0), (4, 6.0)]
    clients.answer(8.0, 2)
    clients.answer(7.0, 0)
    assert [clients.pop()[::2] for _ in range(2)] == [(1, 8.0), (3, 9.0)]


def test_a_closed_loop_begins_a_session_when_another_has_ended() -> None:
    requests = [request for session in range(3) for request in conversation(1.0, session=session)]
    clients = Clients(Workload(tuple(requests), concurrency=2, in_turns=True))
    assert [clients.pop()[0] for _ in range(2)] == [0, 2]
    clients.answer(2.0, 0)
    assert clients.pop()[::2] == (1, 3.0)
    assert clients.next_arrival is None
    clients.answer(5.0, 1)
    assert clients.pop()[::2] == (4, 5.0)


def test_answers_that_are_told_out_of_order_lead_to_requests_in_order() -> None:
    requests = [request for session in range(2) for request in conversation(1.0, session=session)]
    clients = Clients(Workload(tuple(requests), in_turns=True))
    assert [clients.pop()[::2] for _ in range(2)] == [(0, 0.0), (2, 0.0)]
    clients.answer(6.0, 2)
    clients.answer(4.0, 0)
    assert [clients.pop()[::2] for _ in range(2)] == [(1, 5.0), (3, 7.0)]


def times_of(record: Record) -> list[bytes]:
    return [getattr(record, name).tobytes() for name in ("sent_at", "started_at", "first_token", "last_token")]


@pytest.mark.parametrize("concurrency", [None, 3])
@pytest.mark.parametrize("engines", [1, 2])
def test_sessions_of_one_turn_are_plain_requests(scenario: Any, concurrency: int | None, engines: int) -> None:
    for seed in range(20):
        replica, workload = scenario("small", seed)
        replica = replace(replica, server=ServerCosts(0.05))
        plain = replace(workload, concurrency=concurrency)
        lone = tuple(replace(each, session=index, think=4.0) for index, each in enumerate(plain.requests))
        pool = Pool((replica,) * engines, servers=engines)
        served = [simulate_fleet(pool, each) for each in (plain, replace(plain, requests=lone, in_turns=True))]
        assert [*map(times_of, served[0])] == [*map(times_of, served[1])], seed


def test_every_step_of_random_conversations(scenario: Any, facts: Any, reference: Any) -> None:
    finding = 0
    for seed in range(90):
        record = reference(*scenario("talk", seed))
        expected = facts(record)
        for jump in (True, False):
            assert facts(simulate(*scenario("talk", seed), jump=jump)) == expected, (seed, jump)
        finding += bool(record.num_cached.any())
    assert finding > 9


def behind_a_server(replica: Replica, workload: Workload) -> tuple[Replica, Workload]:
    return replace(replica, server=ServerCosts(0.02)), workload


def test_conversations_are_served_alike_by_one_engine_and_by_a_pool_of_one(scenario: Any) -> None:
    for seed in range(60):
        alone = simulate(*behind_a_server(*scenario("talk", seed)))
        replica, workload = behind_a_server(*scenario("talk", seed))
        (record,) = simulate_fleet(Pool((replica,)), workload)
        assert times_of(record) == times_of(alone), seed
