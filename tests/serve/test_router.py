"""Which engine a request goes to."""

import pytest

from infercast.errors import UnknownNameError
from infercast.serve.request import Request, Segment
from infercast.serve.router import Loads, make_policy

PLAIN = Request(0.0, 10, 10)


def choices(policy: str, requests: list[Request], num_engines: int = 3) -> list[int]:
    """Where requests go that are never answered."""
    loads, choose = Loads(num_engines), make_policy(policy, num_engines)
    chosen = []
    for request in requests:
        chosen.append(choose(request, loads))
        loads.sent(chosen[-1])
    return chosen


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "prefix_aware"])
def test_equal_requests_go_round(policy: str) -> None:
    assert choices(policy, [PLAIN] * 7) == [0, 1, 2, 0, 1, 2, 0]


def test_the_emptiest_engine_is_chosen() -> None:
    loads, choose = Loads(2), make_policy("least_loaded", 2)
    loads.sent(0)
    loads.sent(0)
    loads.sent(1)
    assert choose(PLAIN, loads) == 1
    loads.answered(0, 5.0)
    loads.answered(0, 6.0)
    loads.move_to(5.5)
    assert loads.counts == [1, 1]
    loads.move_to(6.0)
    assert choose(PLAIN, loads) == 0


def test_a_prefix_is_followed_until_its_engine_is_too_full() -> None:
    shared = Request(0.0, 10, 10, (Segment("a", 8),))
    other = Request(0.0, 10, 10, (Segment("b", 8),))
    assert choices("prefix_aware", [shared, other, shared, other, shared]) == [0, 1, 0, 1, 0]
    assert 0 < choices("prefix_aware", [shared] * 60, 2).count(1) < 60


def test_an_unknown_router_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown router 'random'; known: least_loaded, prefix_aware, round_robin"
    ):
        make_policy("random", 2)
