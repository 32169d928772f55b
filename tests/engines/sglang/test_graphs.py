"""Which steps of SGLang replay a graph, and what they are padded to."""

import pytest

from infercast.engines.host import Launch
from infercast.engines.sglang.engine import SglangGraphs, decode_sizes, kept_sizes, prefill_sizes

GRAPHS = SglangGraphs(decode_sizes(256), prefill_sizes(8192))


def test_sizes() -> None:
    assert decode_sizes(512)[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert decode_sizes(512)[-3:] == (480, 496, 512)
    assert decode_sizes(30) == (1, 2, 4, 8, 12, 16, 24, 30)
    assert len(prefill_sizes(8192)) == 58
    assert prefill_sizes(100) == (4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 80, 96)


def test_sizes_that_can_come() -> None:
    assert kept_sizes((1, 2, 4, 8), 100) == (1, 2, 4, 8)
    assert kept_sizes((1, 2, 4, 8), 6) == (1, 2, 4, 6)
    assert kept_sizes((1, 2, 4, 8), 5, multiple=2) == (2, 4, 6)
    assert kept_sizes((), 6) == ()


@pytest.mark.parametrize(
    ("tokens", "is_decode", "launch", "padded"),
    [
        (1, True, Launch.FULL_GRAPH, 1),
        (13, True, Launch.FULL_GRAPH, 16),
        (257, True, Launch.EAGER, 257),
        (1, False, Launch.EAGER, 1),  # four times as long
        (2, False, Launch.PIECEWISE_GRAPHS, 4),
        (100, False, Launch.PIECEWISE_GRAPHS, 112),
        (8192, False, Launch.PIECEWISE_GRAPHS, 8192),
        (8193, False, Launch.EAGER, 8193),
    ],
)
def test_a_step(tokens: int, is_decode: bool, launch: Launch, padded: int) -> None:
    assert GRAPHS.launch(tokens, is_decode) == (launch, padded)


def test_none() -> None:
    nothing = SglangGraphs((), ())
    assert nothing.sizes == ()
    assert nothing.launch(5, is_decode=True) == (Launch.EAGER, 5)
