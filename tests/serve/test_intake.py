"""One thread that takes requests in before the engine."""

from __future__ import annotations

import pytest

from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request
from infercast.serve.workload.synthetic import workload_from_requests


def arrivals(times: list[float], turn: float, path: float = 0.0) -> list[float]:
    """When requests that are sent at these times reach the engine."""
    clients = Clients(workload_from_requests(Request(time, 10, 10) for time in times), path, 0.0, turn)
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
