"""Conversations: each turn waits for the answer before it, and finds it in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.serve.fleet.pool import Pool, simulate_fleet
from infercast.serve.fleet.senders import Senders
from infercast.serve.simulation import simulate
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.sessions import SessionClients


def conversation(*thinks: float, session: int = 0, arrival: float = 0.0) -> list[Request]:
    return [Request(arrival, 10, 4, session=session, think=think) for think in (0.0, *thinks)]


def test_a_turn_comes_some_time_after_the_answer_before_it() -> None:
    clients = SessionClients(Workload(tuple(conversation(2.5, 1.0)), in_turns=True), path_seconds=0.1)
    assert clients.pop()[::2] == (0, 0.0)
    assert clients.next_arrival is None
    clients.answer(3.0, 0)
    assert clients.next_arrival == 3.0 + 2.5 + 0.1
    assert clients.pop()[::2] == (1, 5.5)


def test_a_turn_never_comes_before_its_own_arrival() -> None:
    requests = (Request(0.0, 10, 4, session=7), Request(9.0, 10, 4, session=7, think=1.0))
    clients = SessionClients(Workload(requests, in_turns=True))
    clients.pop()
    clients.answer(3.0, 0)
    assert clients.next_arrival == 9.0


def test_sessions_begin_by_the_clock_whatever_others_wait_for() -> None:
    requests = [*conversation(1.0), *conversation(1.0, session=1, arrival=4.0), Request(6.0, 5, 5)]
    clients = SessionClients(Workload(tuple(requests), in_turns=True))
    assert [clients.pop()[::2] for _ in range(3)] == [(0, 0.0), (2, 4.0), (4, 6.0)]
    clients.answer(8.0, 2)
    clients.answer(7.0, 0)
    assert [clients.pop()[::2] for _ in range(2)] == [(1, 8.0), (3, 9.0)]


def test_a_closed_loop_begins_a_session_when_another_has_ended() -> None:
    requests = [request for session in range(3) for request in conversation(1.0, session=session)]
    clients = SessionClients(Workload(tuple(requests), concurrency=2, in_turns=True))
    assert [clients.pop()[0] for _ in range(2)] == [0, 2]
    clients.answer(2.0, 0)
    assert clients.pop()[::2] == (1, 3.0)
    assert clients.next_arrival is None
    clients.answer(5.0, 1)
    assert clients.pop()[::2] == (4, 5.0)


class _Pool:
    """Remembers what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, float]] = []

    def send(self, index: int, request: Request, sent: float) -> None:
        self.sent.append((index, sent))


def test_sessions_of_several_engines_go_on_in_order() -> None:
    requests = [request for session in range(2) for request in conversation(1.0, session=session)]
    pool = _Pool()
    senders = Senders(Workload(tuple(requests), in_turns=True), pool)
    senders.begin()
    assert pool.sent == [(0, 0.0), (2, 0.0)]
    senders.answer(6.0, 2)
    senders.answer(4.0, 0)
    senders.go_on(6.5)
    assert pool.sent[2:] == [(1, 5.0)]
    senders.go_on(7.0)
    assert pool.sent[3:] == [(3, 7.0)]


def test_every_step_of_random_conversations(scenario: Any, facts: Any, plain: Any) -> None:
    finding = 0
    for seed in range(200):
        record = plain(*scenario("talk", seed))
        expected = facts(record)
        for jump in (True, False):
            assert facts(simulate(*scenario("talk", seed), jump=jump)) == expected, (seed, jump)
        finding += bool(record.num_cached.any())
    assert finding > 20


def test_conversations_are_served_alike_by_one_engine_and_by_a_pool_of_one(scenario: Any) -> None:
    for seed in range(60):
        replica, workload = scenario("talk", seed)
        alone = simulate(replica, workload)
        replica, workload = scenario("talk", seed)
        (record,) = simulate_fleet(Pool((replica,)), workload)
        for times in ("sent_at", "started_at", "first_token", "last_token"):
            assert np.array_equal(getattr(record, times), getattr(alone, times)), seed
