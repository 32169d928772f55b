"""One thread that takes requests in before the engine."""

from __future__ import annotations

import pytest

from infercast.serve.workload.api_server import ApiServers, ServerCosts
from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import workload_from_requests


def arrivals(times: list[float], turn: float, path: float = 0.0, servers: int = 1) -> list[float]:
    """When requests that are sent at these times reach the engine."""
    clients = Clients(
        workload_from_requests(Request(time, 10, 10) for time in times), path, 0.0, ServerCosts(turn), servers
    )
    found = []
    while clients.next_arrival is not None:
        found.append(clients.next_arrival)
        clients.pop()
    return found


def test_requests_that_come_together_go_on_together():
    assert arrivals([0.0] * 4, 0.01) == pytest.approx([0.04] * 4)
    assert arrivals([0.0] * 4, 0.01, path=1.0) == pytest.approx([1.04] * 4)


def test_who_comes_meanwhile_waits_for_the_next_round():
    assert arrivals([0.0, 0.0, 0.005, 0.015, 1.0], 0.01) == pytest.approx([0.02, 0.02, 0.04, 0.04, 1.01])


def test_clients_that_are_answered_together_ask_together():
    workload = workload_from_requests([Request(0.0, 10, 10)] * 4, concurrency=2)
    clients = Clients(workload, costs=ServerCosts(0.01))
    assert clients.next_arrival == pytest.approx(0.02)
    clients.pop()
    clients.pop()
    assert clients.next_arrival is None
    clients.answer(1.0, 0)
    assert clients.next_arrival == pytest.approx(1.01)
    clients.answer(1.0, 1)
    assert clients.next_arrival == pytest.approx(1.02)


def test_servers_share_what_comes_together():
    assert arrivals([0.0] * 4, 0.01, servers=2) == pytest.approx([0.02] * 4)
    assert arrivals([0.0] * 5, 0.01, servers=2) == pytest.approx([0.03, 0.02, 0.03, 0.02, 0.03])
    assert arrivals([0.0, 0.001], 0.01, servers=2) == pytest.approx([0.01, 0.011])


def test_as_many_servers_as_there_are_more_requests_take_as_long():
    times = [0.0, 0.0, 0.003, 0.004, 0.02, 0.021, 0.022, 0.5]
    alone = arrivals(times, 0.01)
    for servers in (2, 3, 8):
        together = [time for time in times for _ in range(servers)]
        assert arrivals(together, 0.01, servers=servers)[::servers] == pytest.approx(alone)


def test_sessions_wait_for_the_same_thread():
    requests = [Request(0.0, 10, 10, session=index) for index in range(3)]
    clients = Clients(Workload(tuple(requests), in_turns=True), costs=ServerCosts(0.01))
    assert clients.next_arrival == pytest.approx(0.03)


def test_requests_of_a_round_reach_the_engine_one_behind_the_other():
    workload = workload_from_requests(Request(0.0, 10, 10) for _ in range(3))
    clients, found = Clients(workload, costs=ServerCosts(0.01, hand_over=0.001)), []
    while clients.next_arrival is not None:
        found.append(clients.next_arrival)
        clients.pop()
    assert found == pytest.approx([0.03, 0.031, 0.032])


def busy(servers: ApiServers, streams: int, tokens_per_second: float) -> ApiServers:
    """Servers that have sent so many tokens in the last second, to so many streams that go on."""
    servers.streams = streams + 10
    for number in range(10):
        servers.answer(0.1 * number, int(tokens_per_second / 10))
    return servers


def wait(count: int = 1, streams: int = 8, tokens_per_second: float = 1000.0, **costs: float) -> float:
    servers = busy(
        ApiServers(ServerCosts(**({"turn": 1e-3, "token": 2e-5, "part": 6e-5} | costs)), count),
        streams,
        tokens_per_second,
    )
    return sum(servers.ready(1.0 + place / 997, follows=False) - 1.0 - place / 997 for place in range(100)) / 100


def test_a_server_that_sends_nothing_delays_nobody():
    assert ApiServers(ServerCosts(1e-3, 2e-5, 6e-5)).ready(1.0, follows=False) == 1.0
    assert wait(token=0.0, part=0.0) == pytest.approx(0.0, abs=1e-12)


def test_requests_wait_longer_the_more_tokens_are_sent_and_without_bound_only_with_streams():
    waits = [wait(streams=100, tokens_per_second=rate) for rate in (100, 1000, 5000, 9000, 12000, 30000)]
    assert waits == sorted(waits)
    assert waits[0] < 1e-3
    assert waits[-1] > 20 * waits[1]
    assert wait(streams=200, tokens_per_second=30000) > 1.5 * wait(streams=100, tokens_per_second=30000)


def test_several_servers_and_fewer_parts_relieve():
    loaded = wait(streams=100, tokens_per_second=11000)
    assert wait(4, streams=100, tokens_per_second=11000) < loaded / 4
    assert wait(streams=100, tokens_per_second=11000, part=6e-5 / 8) < loaded / 4
