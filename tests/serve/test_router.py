"""Which engine a request goes to."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from infercast.errors import UnknownNameError
from infercast.serve.fleet.router import POLICIES, Engines, Loads, PrefixIndex, make_policy
from infercast.serve.workload.clients import Arrival
from infercast.serve.workload.request import Request, Segment

PLAIN = Request(0.0, 10, 10)


def unanswered(num_engines: int, num_requests: int = 100) -> list[SimpleNamespace]:
    """Engines that have said nothing of any request."""
    names = ("started_at", "first_token", "last_token")
    return [SimpleNamespace(**{name: np.full(num_requests, np.nan) for name in names}) for _ in range(num_engines)]


def choices(policy: str, requests: list[Request], num_engines: int = 3, **engines: int) -> list[int]:
    """Where requests go that are never answered."""
    loads = Loads(num_engines, unanswered(num_engines))
    choose = make_policy(policy, Engines(num_engines, **engines))
    chosen = []
    for number, request in enumerate(requests):
        chosen.append(choose(Arrival(request.arrival, number, request.arrival, request), loads))
        loads.sent(chosen[-1], request)
    return chosen


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"vllm", "random"}))
def test_equal_requests_go_round(policy: str) -> None:
    assert choices(policy, [PLAIN] * 7) == [0, 1, 2, 0, 1, 2, 0]


def test_the_emptiest_engine_is_chosen() -> None:
    loads, choose = Loads(2), make_policy("least_loaded", Engines(2))
    for engine in (0, 0, 1):
        loads.sent(engine, PLAIN)
    delivery = Arrival(0.0, 3, 0.0, PLAIN)
    assert choose(delivery, loads) == 1
    loads.answered(0, 5.0, 0, PLAIN)
    loads.answered(0, 6.0, 1, PLAIN)
    loads.move_to(5.5)
    assert loads.counts == [1, 1]
    assert loads.prompt_tokens == [10, 10]
    loads.move_to(6.0)
    assert choose(delivery, loads) == 0


def prompt(*contents: int, own: int = 10, length: int = 160) -> Request:
    """A prompt of segments of ten blocks each, and some tokens of its own."""
    prefix = tuple(Segment(content, length) for content in contents)
    return Request(0.0, length * len(contents) + own, 10, prefix)


def test_the_longest_match_is_followed() -> None:
    # Both begin alike, and differ only in their second segment: the first alone cannot tell them apart.
    first, second = prompt(1, 2), prompt(1, 3)
    chosen = choices("prefix_aware", [first, prompt(7, 8, 9), second, prompt(1, 2, 4), prompt(1, 3, 4)], 3)
    assert chosen[:3] == [0, 1, 2]
    assert chosen[3:] == [chosen[0], chosen[2]]


def test_a_match_does_not_outweigh_a_long_queue() -> None:
    chosen = choices("prefix_aware", [prompt(1)] * 60, 2)
    assert 20 < chosen.count(1) < 40


def test_prompts_that_no_longer_fit_in_the_cache_are_forgotten() -> None:
    requests = [prompt(1, 2), prompt(3, 4), prompt(5, 6), prompt(1, 2)]
    assert choices("prefix_aware", requests, 3)[3] == 0
    # A cache of one prompt has given up the first when it is sent another.
    again = [prompt(1, 2), prompt(3, 4), prompt(5, 6), prompt(1, 2)]
    assert choices("prefix_aware", again, 2, cache_tokens=330) == [0, 1, 0, 1]


def test_a_part_of_a_segment_is_a_match_of_that_part() -> None:
    short, long = Request(0.0, 70, 10, (Segment(1, 64), Segment(2, 6))), Request(0.0, 2010, 10, (Segment(1, 2000),))
    index = PrefixIndex(2, cache_tokens=10_000, block_size=16)
    index.add(0, 0, short)
    assert index.cached_tokens(long) == {0: 64}
    index.add(1, 1, long)
    assert index.cached_tokens(long) == {0: 64, 1: 2000}
    assert index.cached_tokens(short) == {0: 64, 1: 64}  # whole blocks, and never the whole prompt
    assert index.cached_tokens(PLAIN) == {}


def test_every_request_goes_where_vllm_sends_it() -> None:
    """Decisions of vLLM's own balancers, written down by benchmarks/scheduler/balance.py."""
    recorded = json.loads(Path(__file__).with_name("balancer_decisions.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "scheduler"))
        balance = importlib.import_module("balance")
        for case in recorded:
            assert [*balance.ours(case)] == case["chosen"]
    assert {case["version"] for case in recorded} == {"0.25", "0.32"}


def test_without_published_counts_every_server_of_vllm_takes_turns() -> None:
    times = unanswered(2)
    choose, loads = make_policy("vllm", Engines(2, publish_counts=False)), Loads(2, times)
    times[1].last_token[:] = 0.0  # whatever engines say
    chosen = [choose(Arrival(0.2 * n, n, 0.2 * n, PLAIN), loads) for n in range(8)]
    assert (chosen[0::2], chosen[1::2]) == ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize(("usage", "expected"), [(0.2, 0), (1.0, 1)])
def test_a_queue_on_a_full_cache_is_avoided(usage: float, expected: int) -> None:
    """Of vLLM 0.27: three requests against four, but one of the three waits, which counts where the cache is full."""
    times = unanswered(2)
    engines = Engines(2, weighs_cache=True, usage=lambda engine: usage)
    choose, loads = make_policy("vllm", engines), Loads(2, times)
    for number, engine in enumerate([0, 1, 1, 0, 0, 1, 1, 0]):
        assert choose(Arrival(0.0, number, 0.0, PLAIN), loads) == engine
    times[0].started_at[[0, 3]] = times[1].started_at[[1, 2, 5, 6]] = 0.05
    loads.answered(0, 0.06, 4, PLAIN)
    loads.move_to(0.11)
    # Each server has sent two to either engine, which counts as four, but for the first: one of its has ended.
    assert choose(Arrival(0.11, 8, 0.11, PLAIN), loads) == expected


def test_an_unknown_router_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown router 'dice'; known: dynamo, least_loaded, llm_d, prefix_aware"
    ):
        make_policy("dice", Engines(2))


def test_chance_sends_as_many_requests_to_each_engine_and_the_same_every_time() -> None:
    chosen = choices("random", [PLAIN] * 3000)
    assert all(900 < chosen.count(engine) < 1100 for engine in range(3))
    assert chosen == choices("random", [PLAIN] * 3000)
    assert chosen[:30] != [0, 1, 2] * 10


def turns(session: int, count: int) -> list[Request]:
    """A conversation: each prompt goes on with the answer before it."""
    found: list[Request] = []
    prefix: tuple[Segment, ...] = ()
    for turn in range(count):
        asked = 1000 * session + 2 * turn
        prefix = (*prefix, Segment(asked, 160))
        found.append(Request(0.0, sum(each.num_tokens for each in prefix), 320, prefix, asked + 1, session=session))
        prefix = (*prefix, Segment(asked + 1, 320))
    return found


def test_a_session_stays_where_it_began() -> None:
    first, second = turns(1, 3), turns(2, 3)
    order = [first[0], second[0], first[1], first[2], second[1], PLAIN]
    assert choices("session_affinity", order, 2) == [0, 1, 0, 0, 1, 1]


def test_a_router_that_engines_tell_of_their_blocks_finds_answers() -> None:
    before, after = turns(1, 2)
    plain, told = (PrefixIndex(2, 1 << 30, 16, answers=answers) for answers in (False, True))
    for index in (plain, told):
        index.add(1, 0, before)
    assert plain.cached_tokens(after) == {1: 160}
    assert told.cached_tokens(after) == {1: 480}


def test_llm_d_follows_the_prefix_unless_the_queue_there_is_longest() -> None:
    loads = Loads(2, unanswered(2))
    choose = make_policy("llm_d", Engines(2, cache_tokens=100_000))

    def at(time: float, number: int, request: Request) -> int:
        return choose(Arrival(time, number, time, request), loads)

    assert at(0.0, 0, prompt(1)) == 0
    assert at(0.01, 1, prompt(1)) == 0  # 3 for the prefix, and queues are not known yet
    assert at(0.02, 2, prompt(2)) == 1
    assert at(0.1, 3, prompt(1)) == 0  # two wait here and one there: 2.8 of 3 against 2 of 2
    assert at(0.11, 4, prompt(9, own=1000)) == 1
