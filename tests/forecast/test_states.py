"""One word for how a server copes, where mathematics knows the word: a queue with fixed service times."""

from functools import cache

import numpy as np
import pytest

from infercast.forecast.steady import find_state, find_steady, full_rate, judged
from infercast.forecast.uncertainty import Batches
from infercast.serve import FcfsPolicy, Record, Replica, Request, Workload, simulate
from infercast.serve.step import constant_timer
from infercast.serve.workload.distributions import arrival_times
from infercast.serve.workload.synthetic import synthetic_workload

SERVICE = 0.5
"""Seconds of a step. One request of one input and one output token is served at a time."""
SERVER = Replica(
    timer=constant_timer(SERVICE),
    policy=FcfsPolicy(max_num_batched_tokens=1, max_num_seqs=1),
    num_blocks=2,
    steps_under_way=1,
)


def workload(kind: str, utilisation: float, count: int, seed: int = 0) -> Workload:
    rate = utilisation / SERVICE
    arrivals = arrival_times(kind, rate, count, np.random.default_rng(seed))
    return Workload(tuple(Request(arrival, 1, 1) for arrival in arrivals.tolist()), rate=rate)


def word(load: Workload) -> str:
    record = simulate(SERVER, load)
    return find_state(SERVER, load, record, find_steady(record, load)).word


def test_the_capacity_of_a_server_is_one_over_its_service_time() -> None:
    assert full_rate(SERVER, workload("poisson", 0.5, 50)) == pytest.approx(1 / SERVICE)


@pytest.mark.parametrize("count", [300, 3000])
@pytest.mark.parametrize(
    ("kind", "utilisation", "expected"),
    [
        ("poisson", 0.3, "stable"),
        ("poisson", 0.8, "stable"),
        ("poisson", 0.95, "stable"),
        ("poisson", 1.1, "overloaded"),
        ("poisson", 3.0, "overloaded"),
        ("constant", 0.99, "stable"),
        ("constant", 1.02, "overloaded"),
    ],
)
def test_the_word_is_what_theory_says(kind: str, utilisation: float, count: int, expected: str) -> None:
    assert word(workload(kind, utilisation, count)) == expected


@cache
def long_run(utilisation: float) -> tuple[Workload, Record]:
    load = workload("constant", utilisation, 21_000)
    return load, simulate(SERVER, load)


@pytest.mark.parametrize(
    ("utilisation", "estimate", "expected"),
    [(0.9, 0.85, "stable"), (0.9, 1.0, "stable"), (1.1, 1.05, "overloaded"), (1.1, 1.2, "overloaded")],
)
def test_a_long_run_corrects_an_estimate_of_what_can_be_served(
    utilisation: float, estimate: float, expected: str
) -> None:
    load, record = long_run(utilisation)
    state = find_state(SERVER, load, record, find_steady(record, load), capacity=lambda: estimate / SERVICE)
    assert state.word == expected


def test_a_rush_at_the_end_is_a_backlog() -> None:
    calm = workload("constant", 0.5, 300)
    last = calm.requests[-1].arrival
    rush = tuple(Request(last + 0.001 * number, 1, 1) for number in range(1, 101))
    assert word(Workload(calm.requests + rush, rate=400 / (last + 0.1))) == "backlogged"


def record_of(sent: list[float], stays: list[float]) -> Record:
    """A run in which each request stays as long as is said."""
    record = Record(len(sent), num_blocks=1)
    record.sent_at[:] = record.started_at[:] = sent
    record.first_token[:] = record.last_token[:] = np.add(sent, stays)
    return record


def test_ramp_up_and_drain_are_left_out() -> None:
    """Requests a second apart that stay for ten: the number in the system rises for ten seconds."""
    load = workload("constant", 0.5, 400)
    sent = [float(number) for number in range(400)]
    steady = find_steady(record_of(sent, [10.0] * 400), load)
    assert steady.reached
    assert 7 < steady.begin < 20
    assert steady.end == 389.0  # requests come for as long after it as one stays
    assert steady.num_requests == sum(steady.begin <= moment <= 389.0 for moment in sent)


def test_a_busy_engine_is_given_time_to_settle() -> None:
    """Requests that take four times as long as one alone approach their number in four times the time they stay."""
    load = workload("constant", 0.5, 400)
    sent, stays = [float(number) for number in range(400)], [1.0] * 5 + [4.0] * 395
    record = record_of(sent, stays)
    record.num_output[:] = 11
    record.first_token[:] = record.sent_at
    steady = find_steady(record, load)
    assert steady.reached
    assert 3 * (16 - 4) * 0.85 < steady.begin < 3 * 16
    short = record_of(sent[:100], stays[:100])
    short.num_output[:] = 11
    short.first_token[:] = short.sent_at
    assert not find_steady(short, workload("constant", 0.5, 100)).reached


def test_too_short_a_run_says_how_many_requests_would_do() -> None:
    load = workload("constant", 0.5, 40)
    short = find_steady(record_of([float(number) for number in range(40)], [30.0] * 40), load)
    assert not short.reached
    assert short.num_needed is not None
    assert f"about {short.num_needed:,} requests would do" in short.sentence
    enough = short.num_needed
    longer = workload("constant", 0.5, enough)
    assert find_steady(record_of([float(number) for number in range(enough)], [30.0] * enough), longer).reached


def test_a_queue_that_grows_has_no_steady_state() -> None:
    load = workload("poisson", 1.2, 2000)
    record = simulate(SERVER, load)
    steady = find_steady(record, load)
    assert not judged(steady, find_state(SERVER, load, record, steady)).reached


def test_all_at_once_has_no_steady_state() -> None:
    burst = Workload(tuple(Request(0.0, 1, 1) for _ in range(200)))
    steady = find_steady(simulate(SERVER, burst), burst)
    assert "do not come at a steady rate" in steady.sentence


def test_a_steady_part_has_the_wait_of_theory() -> None:
    """One server, Poisson arrivals and equal service times: Pollaczek and Khinchine, from an empty start."""
    utilisation = 0.7
    load = synthetic_workload(
        rate=utilisation / SERVICE, count=20_000, input_lengths=1, output_lengths=1, spread_out=True
    )
    record = simulate(SERVER, load)
    steady = find_steady(record, load)
    assert steady.reached
    batches = Batches(record, load, record.sent_at.min() + steady.begin, record.sent_at.min() + steady.end)
    expected = SERVICE * (1 + utilisation / 2 / (1 - utilisation))
    assert batches.values["e2e"].mean() == pytest.approx(expected, rel=0.05)
    assert abs(np.log(batches.values["e2e"].mean() / expected)) < 4 * batches.error("e2e", None)


def test_errors_by_batches_are_what_seeds_differ_by() -> None:
    means, errors = [], []
    for seed in range(14):
        load = synthetic_workload(
            rate=0.6 / SERVICE, count=1000, input_lengths=1, output_lengths=1, seed=seed, spread_out=True
        )
        record = simulate(SERVER, load)
        batches = Batches(record, load, float(record.sent_at.min()), float(record.sent_at.max()))
        means.append(np.log(batches.values["e2e"].mean()))
        errors.append(batches.error("e2e", None))
    assert 0.5 < float(np.mean(errors) / np.std(means, ddof=1)) < 2.0
