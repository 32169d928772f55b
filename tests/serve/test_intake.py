"""One thread that takes requests in before the engine."""

from __future__ import annotations

import random

import pytest

from infercast.serve.workload.api_server import TURNS, ApiServers, EventLoop, ServerCosts, Steps
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


class Log:
    """Steps of an engine, as a record of a run has them."""

    def __init__(self, ends: list[float], tokens: int) -> None:
        self.ends, self.stretches, self.before_write = ends, [len(ends), tokens, tokens], None
        self.ahead = None


def wait(streams: int = 8, step: float = 0.01, count: int = 1, **costs: float) -> float:
    """Mean time in the servers of requests that come every 97 ms, while an engine puts out a token a stream."""
    costs = {"token": 2e-5, "part": 6e-5, "work": 3e-3} | costs
    servers, sent = ApiServers(ServerCosts(**costs), count), [0.5 + 0.097 * number for number in range(20)]
    servers.listen([Log([step * (1 + number) for number in range(round(3 / step))], streams)])
    for number, time in enumerate(sent):
        servers.put(time, number)
    left = servers.move_to(3.0)
    assert sorted(number for _, number, _ in left) == [*range(20)]
    return sum(end - began for end, _, began in left) / 20


def test_a_request_alone_takes_its_work():
    assert wait(streams=0) == pytest.approx(3e-3)


def test_requests_wait_for_what_is_sent_and_long_where_it_is_more_than_the_server_can_send():
    waits = [wait(streams) for streams in (1, 10, 50, 100, 140, 200)]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(3e-3, rel=0.1)
    assert waits[1] < 6e-3
    assert waits[-1] > 0.1  # a dozen turns, each of which serves 200 streams


def test_several_servers_and_fewer_parts_relieve():
    loaded = wait(150)
    assert wait(150, count=4) < loaded / 4
    assert wait(150, part=6e-6) < loaded / 4


def test_what_is_known_in_pieces_is_served_as_what_is_known_at_once():
    ends = [0.004 * (1 + number) for number in range(500)]
    whole, pieces = (ApiServers(ServerCosts(token=2e-5, part=6e-5, work=3e-3), 2) for _ in range(2))
    log = Log([], 60)
    whole.listen([Log(ends, 60)])
    pieces.listen([log])
    for servers in (whole, pieces):
        for number in range(40):
            servers.put(0.03 * number, number)
    log.stretches, found = [], []
    for at in range(0, 500, 20):
        log.ends += ends[at : at + 20]
        log.stretches += [20, 60, 60]
        soonest = pieces.soonest
        left = pieces.move_to(log.ends[-1])
        assert soonest is None or all(end >= soonest[0] for end, _, _ in left)
        found += left
    assert sorted(found) == sorted(whole.move_to(ends[-1]))


def test_a_log_that_is_emptied_leaves_its_last_steps():
    servers, log = ApiServers(ServerCosts(token=2e-5, part=6e-5, work=3e-3)), Log([0.1, 0.2], 50)
    servers.listen([log])
    log.before_write()
    log.ends, log.stretches = [0.3], [1, 50, 50]
    servers.put(0.2, 0)
    late = servers.move_to(0.4)[0][0]
    servers = ApiServers(ServerCosts(token=2e-5, part=6e-5, work=3e-3))
    servers.listen([Log([0.1, 0.2, 0.3], 50)])
    servers.put(0.2, 0)
    assert servers.move_to(0.4)[0][0] == late > 0.203


def turn_by_turn(costs: ServerCosts, share: float, steps: list[tuple[float, int]], sent: list[float]) -> list[float]:
    """When requests leave a server, every turn of its loop made by itself."""
    coming, inside, now, turn, parts, found = [*sent], [], 0.0, 0, 0, []
    while inside or coming:
        begin = now if inside or parts else max(now, min([coming[0], *(end for end, _ in steps[:1])]))
        turn += 1
        while coming and coming[0] <= begin:
            inside.append(turn + TURNS - 1)
            coming.pop(0)
        now, parts = begin + len(inside) * (costs.work / TURNS) + parts * costs.part, 0
        while steps and steps[0][0] <= begin:
            tokens = -int(-steps.pop(0)[1] * share // 1)
            now, parts = now + tokens * costs.token, max(parts, tokens)
        while inside and inside[0] <= turn:
            found.append(now)
            now += costs.hand_over
            inside.pop(0)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_turns_that_are_made_together_end_as_those_made_one_by_one(seed):
    drawn, costs = random.Random(seed), ServerCosts(token=2e-5, part=6e-5, work=3e-3, hand_over=1e-4)
    end, steps, sent = 0.0, [], [0.0]
    for _ in range(300):
        end += drawn.choice([1e-3, 8e-3, 0.03]) * drawn.random()
        steps.append((end, drawn.choice([1, 20, 200])))
    while sent[-1] < end:
        sent.append(sent[-1] + drawn.expovariate(30.0))
    loop, share = EventLoop(costs, 0.3), 0.3
    loop.steps = Steps(())
    loop.steps.known.extend(steps)
    loop.coming.extend((time, number) for number, time in enumerate(sent))
    found = [left for cut in (*sorted(end * drawn.random() for _ in range(50)), 2 * end) for left in loop.move_to(cut)]
    assert [end for end, _, _ in found] == turn_by_turn(costs, share, steps, sent)


def test_a_log_that_is_emptied_is_read_by_its_own_server_alone():
    servers, logs = ApiServers(ServerCosts(token=2e-5, part=6e-5), 3), [Log([0.1, 0.2], 50) for _ in range(3)]
    servers.listen(logs)
    logs[1].before_write()
    assert [len(loop.steps.known) for loop in servers.loops] == [0, 2, 0]
