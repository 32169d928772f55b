from __future__ import annotations

from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Request, Workload


def workload(*arrivals: float, concurrency: int | None = None) -> Workload:
    return Workload(tuple(Request(arrival, 1, 1) for arrival in arrivals), concurrency)


def test_an_open_loop_follows_the_clock() -> None:
    clients = Clients(workload(0.5, 2.0))
    assert clients.next_arrival == 0.5
    index, request, sent = clients.pop()
    assert (index, request.arrival, sent) == (0, 0.5, 0.5)
    assert clients.next_arrival == 2.0


def test_nobody_sends_after_the_last_request() -> None:
    clients = Clients(workload(0.0))
    clients.pop()
    assert clients.next_arrival is None


def test_the_way_into_the_engine_delays_the_arrival_but_not_the_sending() -> None:
    clients = Clients(workload(1.0), path_seconds=0.25)
    assert clients.next_arrival == 1.25
    assert clients.pop()[2] == 1.0


def test_answers_mean_nothing_to_an_open_loop() -> None:
    clients = Clients(workload(1.0, 5.0))
    clients.pop()
    clients.answer(2.0, 0)
    assert clients.next_arrival == 5.0


def test_a_closed_loop_waits_for_an_answer() -> None:
    clients = Clients(workload(0.0, 0.0, 0.0, concurrency=2))
    assert [clients.pop()[2] for _ in range(2)] == [0.0, 0.0]
    assert clients.next_arrival is None
    clients.answer(3.5, 0)
    assert clients.next_arrival == 3.5
    assert clients.pop()[0] == 2


def test_the_client_who_is_free_first_sends_first() -> None:
    clients = Clients(workload(0.0, 0.0, 0.0, 0.0, concurrency=2))
    clients.pop(), clients.pop()
    clients.answer(7.0, 0)
    clients.answer(4.0, 0)
    assert [clients.pop()[2], clients.pop()[2]] == [4.0, 7.0]


def test_a_closed_loop_sends_no_request_before_its_time() -> None:
    clients = Clients(workload(0.0, 9.0, concurrency=1))
    clients.pop()
    clients.answer(2.0, 0)
    assert clients.next_arrival == 9.0


def test_more_clients_than_requests_are_as_many_as_requests() -> None:
    clients = Clients(workload(0.0, 0.0, concurrency=50))
    clients.pop(), clients.pop()
    assert clients.next_arrival is None
