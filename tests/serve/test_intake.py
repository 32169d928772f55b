"""One thread that takes requests in before the engine."""

from __future__ import annotations

import pytest

from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import workload_from_requests


def arrivals(times: list[float], turn: float, path: float = 0.0, servers: int = 1) -> list[float]:
    """When requests that are sent at these times reach the engine."""
    clients = Clients(workload_from_requests(Request(time, 10, 10) for time in times), path, 0.0, turn, servers)
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
    clients = Clients(workload, turn_seconds=0.01)
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
    clients = Clients(Workload(tuple(requests), in_turns=True), turn_seconds=0.01)
    assert clients.next_arrival == pytest.approx(0.03)
