from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import continued, extended, scaled, synthetic_workload, workload_from_requests


def make(**changes: Any) -> Workload:
    arguments: dict[str, Any] = {
        "rate": 12.0,
        "count": 500,
        "input_lengths": "lognormal:700:0.9",
        "output_lengths": "lognormal:180:0.8",
    }
    return synthetic_workload(**{**arguments, **changes})


def column(workload: Workload, name: str) -> list[Any]:
    return [getattr(request, name) for request in workload.requests]


def test_open_loop() -> None:
    workload = make(count=1000)
    assert workload.rate == 12.0
    assert workload.concurrency is None
    assert workload.description == "1,000 requests, Poisson 12.0/s, input lognormal mean 700, output lognormal mean 180"
    assert column(workload, "arrival") == sorted(column(workload, "arrival"))
    assert workload.requests[-1].arrival == pytest.approx(1000 / 12.0, rel=0.1)
    first = workload.requests[0]
    assert [type(first.arrival), type(first.num_input), type(first.num_output)] == [float, int, int]


def test_closed_loop() -> None:
    workload = make(rate=None, concurrency=8)
    assert workload.concurrency == 8
    assert workload.rate is None
    assert set(column(workload, "arrival")) == {0.0}
    assert workload.description.startswith("500 requests, closed loop of 8 clients, ")
    assert make(rate=None, concurrency=8, arrival="burst") == workload


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrival": "constant", "rate": 0.02}, "constant 0.02/s, "),
        ({"arrival": "gamma", "rate": 1500.0, "burstiness": 0.5}, "gamma 1,500.0/s burstiness 0.5, "),
        ({"arrival": "burst", "rate": None}, "all at once, "),
        ({"input_lengths": 512}, "input 512, "),
        ({"input_lengths": parse_lengths("uniform:1:9", "input")}, "input uniform 1 to 9, "),
        ({"prefix_length": 1000}, "input lognormal mean 700 after a shared prefix of 1,000, "),
        ({"prefix_length": 64, "prefix_groups": 4}, "after one of 4 shared prefixes of 64, "),
    ],
)
def test_description_says_what_was_asked(changes: dict[str, Any], words: str) -> None:
    assert words in make(**changes).description


def test_same_seed_same_workload() -> None:
    assert make(seed=3, prefix_length=16, prefix_groups=5) == make(seed=3, prefix_length=16, prefix_groups=5)
    assert make(seed=3) != make(seed=4)


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"rate": 3.0}, {"arrival"}),
        ({"arrival": "gamma", "burstiness": 0.3}, {"arrival"}),
        ({"rate": None, "concurrency": 4}, {"arrival"}),
        ({"input_lengths": "uniform:1:100000"}, {"num_input"}),
        ({"output_lengths": "64"}, {"num_output"}),
        ({"prefix_groups": 3}, {"prefix"}),
    ],
)
def test_streams_are_independent(changes: dict[str, Any], changed: set[str]) -> None:
    base = {"prefix_length": 32, "prefix_groups": 7}
    before, after = make(**base), make(**{**base, **changes})
    names = ("arrival", "num_input", "num_output", "prefix")
    assert {name for name in names if column(before, name) != column(after, name)} == changed


def test_a_longer_workload_starts_like_a_shorter_one() -> None:
    assert make(count=100).requests == make(count=500).requests[:100]


def test_prefixes_are_shared_uniformly_and_precede_the_sampled_input() -> None:
    plain, prefixed = make(count=8000), make(count=8000, prefix_length=256, prefix_groups=4)
    assert [request.num_input - 256 for request in prefixed.requests] == column(plain, "num_input")
    groups = Counter(request.prefix for request in prefixed.requests)
    assert set(groups) == {(Segment(content=group, num_tokens=256),) for group in range(4)}
    assert all(count == pytest.approx(2000, rel=0.1) for count in groups.values())
    assert len({id(request.prefix) for request in prefixed.requests}) == 4
    assert set(column(plain, "prefix")) == {()}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rate": None}, "rate is missing: poisson arrivals need requests per second"),
        ({"arrival": "burst"}, "rate 12.0 was given, but a burst has none"),
        ({"arrival": "waves"}, "unknown arrival kind 'waves'"),
        ({"concurrency": 4}, "rate 12.0 and concurrency 4 exclude each other"),
        ({"rate": None, "concurrency": 0}, "concurrency must be at least 1 client, not 0"),
        ({"rate": None, "concurrency": 4, "arrival": "gamma"}, "arrival 'gamma' with burstiness 1.0 has no meaning"),
        ({"rate": None, "concurrency": 4, "burstiness": 0.5}, "burstiness 0.5 has no meaning in a closed loop"),
        ({"count": 0}, "count must be at least 1 request, not 0"),
        ({"input_lengths": "long"}, "input_lengths 'long' is not a length distribution"),
        ({"output_lengths": 0}, "output_lengths '0': the length must be a whole number"),
        ({"prefix_length": -1}, "prefix_length must be a number of tokens from 0 to 2147483647, not -1"),
        ({"prefix_length": 8, "prefix_groups": 0}, "prefix_groups must be a number from 1 to 2147483647, not 0"),
        ({"prefix_groups": 3}, "prefix_groups 3 needs prefix_length"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
    ],
)
def test_errors(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        make(**changes)
    assert problem in str(caught.value)


def test_scaled_arrives_faster_and_stops_earlier() -> None:
    workload = make(count=2000)
    faster = scaled(workload, rate_scale=2.0, limit=1500)
    assert faster.rate == 24.0
    assert column(faster, "arrival") == [arrival / 2.0 for arrival in column(workload, "arrival")[:1500]]
    assert column(faster, "num_input") == column(workload, "num_input")[:1500]
    assert faster.description == f"{workload.description}; the first 1,500 of them; 2 times the rate"


def test_scaled_by_nothing_changes_nothing() -> None:
    workload = make()
    assert scaled(workload) == workload
    assert scaled(workload, limit=10_000) == workload


def test_scaled_trace_has_no_rate_and_closed_loop_keeps_its_clients() -> None:
    trace = Workload((Request(0.0, 1, 1), Request(3.0, 1, 1, (Segment(5, 1),))))
    assert scaled(trace, rate_scale=0.5) == Workload(
        (Request(0.0, 1, 1), Request(6.0, 1, 1, (Segment(5, 1),))), description="0.5 times the rate"
    )
    closed = make(rate=None, concurrency=3)
    assert scaled(closed, limit=5).concurrency == 3
    with pytest.raises(InputError, match=r"rate_scale 2\.0 was given, but a closed loop has no rate"):
        scaled(closed, rate_scale=2.0)


@pytest.mark.parametrize("rate_scale", [0.0, -1.0, math.inf, math.nan])
def test_scaled_refuses_a_scale_that_is_not_positive_and_finite(rate_scale: float) -> None:
    with pytest.raises(InputError, match="rate_scale must be a positive, finite number"):
        scaled(make(), rate_scale=rate_scale)


def test_scaled_refuses_an_empty_result_and_endless_times() -> None:
    with pytest.raises(InputError, match="limit must be at least 1 request, not 0"):
        scaled(make(), limit=0)
    with pytest.raises(InputError, match="gives arrival times too large for a clock"):
        scaled(make(), rate_scale=1e-308)


def test_workload_from_requests_sorts_stably() -> None:
    late, first, second = Request(2.0, 5, 1), Request(1.0, 6, 1), Request(1.0, 7, 1)
    workload = workload_from_requests([late, first, second], concurrency=2)
    assert workload == Workload((first, second, late), concurrency=2, description="3 requests")


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (Request(-1.0, 1, 1), "request 1: arrival must be a number of seconds from 0 to 1e+10, not -1.0"),
        (Request(math.nan, 1, 1), "request 1: arrival must be a number of seconds from 0 to 1e+10, not nan"),
        (Request(0.0, 0, 1), "request 1: num_input must be at least 1 token, not 0"),
        (Request(0.0, 1, 0), "request 1: num_output must be at least 1 token, not 0"),
        (Request(0.0, 4, 1, (Segment(0, 0),)), "request 1: every segment of prefix must have at least 1 token"),
        (Request(0.0, 4, 1, (Segment(0, 5),)), "request 1: prefix has 5 tokens, more than num_input 4"),
    ],
)
def test_workload_from_requests_checks_each(request_: Request, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        workload_from_requests([Request(0.0, 1, 1), request_])
    assert str(caught.value) == problem


def test_workload_from_requests_needs_requests_and_clients() -> None:
    with pytest.raises(InputError, match="requests is empty"):
        workload_from_requests([])
    with pytest.raises(InputError, match="concurrency must be at least 1 client, not 0"):
        workload_from_requests([Request(0.0, 1, 1)], concurrency=0)


def test_scaled_to_a_rate() -> None:
    trace = Workload((Request(1.0, 1, 1), Request(3.0, 1, 1), Request(5.0, 1, 1)), description="a trace")
    faster = scaled(trace, rate=2.0)
    assert column(faster, "arrival") == [0.25, 0.75, 1.25]
    assert faster.description == "a trace; 4 times the rate, to 2 requests/s"
    with pytest.raises(InputError, match="all requests arrive at once"):
        scaled(trace, rate=2.0, limit=1)
    with pytest.raises(InputError, match="both say how fast"):
        scaled(trace, rate=2.0, rate_scale=3.0)


def test_spread_out_requests_have_the_rate_and_the_lengths_of_what_they_are_drawn_from() -> None:
    load = synthetic_workload(rate=12.0, count=1000, input_lengths="uniform:1:1000", spread_out=True)
    inputs = sorted(request.num_input for request in load.requests)
    assert inputs == list(range(1, 1001))
    assert load.requests[-1].arrival == pytest.approx(1000 / 12.0)
    gaps = np.diff([request.arrival for request in load.requests])
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.1)  # as exponential ones


def test_without_a_count_requests_are_the_first_of_more() -> None:
    first = synthetic_workload(rate=12.0)
    assert first.open_ended
    longer = extended(first, 4000, 10_000)
    assert len(longer.requests) == 4000
    assert longer.open_ended
    assert longer == extended(first, 4000, 10_000)
    onward = continued(first, 2000, 10_000)
    assert onward is not None
    assert onward.requests[:1500] == first.requests
    assert onward.requests[-1].arrival == pytest.approx(2000 / 12.0)
    assert onward.requests[1500].arrival > onward.requests[1499].arrival
    assert onward.description == first.description.replace("1,500", "2,000")
    assert onward.drawn is not None
    assert onward.drawn.count == 2000
    assert continued(first, 2000, 100) is None, "some of them would have to be cut"
    assert not synthetic_workload(rate=12.0, count=1500).open_ended
    assert not synthetic_workload(arrival="burst").open_ended
