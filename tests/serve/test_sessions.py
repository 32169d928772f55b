"""Conversations: each turn waits for the answer before it, and finds it in the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infercast.errors import InputError
from infercast.serve.cache.blocks import KvShape
from infercast.serve.fleet.pool import Pool, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import constant_timer
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import session_workload


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


def agents() -> list[Request]:
    """A call, two sub-agents of one and two calls, and a call that waits for both."""
    names = iter(range(9))
    root, quick, slow, slower = (
        Request(0.0, 10, 4, answer=next(names), session=session, think=think, after=after)
        for session, think, after in ((0, 0.0, ()), (1, 0.5, (0,)), (2, 0.0, (0,)), (2, 1.0, ()))
    )
    return [root, quick, slow, slower, Request(0.0, 10, 4, answer=9, session=0, think=2.0, after=(1, 3))]


def test_a_call_waits_for_all_its_sub_agents() -> None:
    clients = Clients(Workload(tuple(agents()), in_turns=True))
    assert clients.pop()[::2] == (0, 0.0)
    assert clients.next_arrival is None
    clients.answer(1.0, 0)
    assert [clients.pop()[::2] for _ in range(2)] == [(2, 1.0), (1, 1.5)]
    clients.answer(3.0, 2)
    assert clients.pop()[::2] == (3, 4.0)
    clients.answer(9.0, 1)
    assert clients.next_arrival is None
    clients.answer(7.0, 3)
    assert clients.pop()[::2] == (4, 11.0)


def test_a_client_is_busy_with_all_of_its_calls() -> None:
    other = Request(0.0, 5, 5, session=9)
    clients = Clients(Workload((*agents(), other), concurrency=1, in_turns=True))
    clients.pop()
    for number, time in enumerate((1.0, 2.0, 3.0, 4.0)):
        clients.answer(time, number)
        while clients.next_arrival is not None:
            assert clients.pop()[0] != 5
    clients.answer(5.0, 4)
    assert clients.pop()[::2] == (5, 5.0)


def test_sub_agents_are_drawn_and_served_before_the_turn_that_waits_for_them() -> None:
    options: dict[str, Any] = {
        "turns": "uniform:2:5", "input_lengths": "40", "turn_lengths": "8", "output_lengths": "6", "prefix_length": 16,
    }  # fmt: skip
    policy = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=16)
    replica = Replica(
        timer=constant_timer(0.01), policy=policy, num_blocks=4000, kv_shape=KvShape(4), token_path_seconds=0.02
    )
    for how in ("0.4:3:2", "0.4:3:2:fork"):
        workload = session_workload(rate=3.0, count=400, sub_agents=how, **options)
        assert len(workload.requests) == 400
        by_answer = {each.answer: each for each in workload.requests}
        joins = [each for each in workload.requests if len(each.after) == 3]
        assert joins
        record, slowly = (simulate(replica, workload, jump=jump) for jump in (True, False))
        assert times_of(record) == times_of(slowly)
        ends = dict(zip(by_answer, record.last_token, strict=True))
        for request, sent in zip(workload.requests, record.sent_at, strict=True):
            assert all(sent >= ends[name] for name in request.after)
        sub = next(by_answer[name] for name in joins[0].after if name in by_answer)
        assert sub.num_input == sum(piece.num_tokens for piece in sub.prefix)
        starts = {each.session for each in workload.requests if each.after and len(each.after) == 1}
        assert len(starts) == 3 * len(joins)
    with pytest.raises(InputError, match="sub_agents '3' must be SHARE:NUMBER:CALLS"):
        session_workload(rate=1.0, sub_agents="3", **options)


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
