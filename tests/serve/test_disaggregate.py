"""Prompts on one pool, decoding on another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infercast.engine.step import StepEstimate, StepShape, constant_timer
from infercast.serve.disaggregate import Handover, Link, simulate_disaggregated
from infercast.serve.fleet import Pool, same_engines
from infercast.serve.limits import Limits
from infercast.serve.request import Request, Workload
from infercast.serve.served import Served
from infercast.serve.simulation import Replica


def by_tokens(shape: StepShape, steps: int = 1) -> StepEstimate:
    return constant_timer(0.001 + 0.001 * shape.num_tokens)(shape, steps)


def run(
    requests: tuple[Request, ...], *, prefill: int = 1, decode: int = 1, rate: float = 1e9, **workload: Any
) -> Handover:
    replica = Replica(by_tokens, Limits(512, 64), num_blocks=4000, steps_under_way=1)
    pools = (Pool(same_engines(replica, engines)) for engines in (prefill, decode))
    link = Link(rate, decode * rate, latency=0.5)
    return simulate_disaggregated(*pools, link, lambda tokens: 10.0 * tokens, Workload(requests, **workload))


def test_a_request_takes_its_prompt_the_wire_and_its_tokens() -> None:
    done = run((Request(1.0, 100, 11),), rate=1000.0)
    prompts, served = Served(done.prefill), Served(done.decode)
    assert prompts.sent_at.tolist() == [1.0]
    assert done.ready.tolist() == pytest.approx([1.0 + 0.101])
    assert done.received.tolist() == pytest.approx([1.101 + 0.5 + 1.0])
    # Its keys and values are there: the first token takes one step of one token, as the others do.
    assert served.first_token.tolist() == pytest.approx([2.601 + 0.002])
    assert served.tpot.tolist() == pytest.approx([0.002])


def test_long_prompts_take_no_step_of_decoding() -> None:
    done = run((Request(0.0, 5, 200), Request(0.05, 500, 2)))
    served = Served(done.decode)
    assert served.tpot[0] < 0.0035  # 501 ms of prompt would show


def test_the_wire_carries_one_sequence_of_an_engine_at_a_time() -> None:
    requests = tuple(Request(0.0, 100, 2) for _ in range(4))
    one = run(requests, rate=1000.0)
    assert (one.began >= one.ready - 1e-12).all()
    assert np.diff(np.sort(one.began)).tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert (one.began - one.ready).max() > 2.0


def test_receivers_are_shared_by_all_senders() -> None:
    requests = tuple(Request(0.0, 100, 2) for _ in range(4))
    many = run(requests, prefill=4, rate=1000.0)
    assert np.diff(np.sort(many.began)).tolist() == pytest.approx([1.0, 1.0, 1.0])
    wide = run(requests, prefill=4, decode=4, rate=1000.0)
    assert np.diff(np.sort(wide.began)).tolist() == pytest.approx([0.25, 0.25, 0.25])


def test_a_closed_loop_waits_for_the_second_pool() -> None:
    requests = tuple(Request(0.0, 20 + index % 30, 5 + index % 9) for index in range(40))
    done = run(requests, prefill=2, decode=2, concurrency=3)
    sent, ended = Served(done.prefill).sent_at, Served(done.decode).last_token
    assert max(np.count_nonzero((sent <= time) & (ended > time)) for time in sent) == 3
    assert (ended > done.received).all()
    assert Served(done.decode).num_output.tolist() == [request.num_output for request in requests]
