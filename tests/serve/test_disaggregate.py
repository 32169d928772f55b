"""Prompts on one pool, decoding on another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infercast.serve.fleet.pool import Pool, same_engines
from infercast.serve.fleet.two_pools import Handover, Link, simulate_disaggregated
from infercast.serve.loop import Replica
from infercast.serve.record import ServedRequests
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.step import StepEstimate, StepShape, constant_timer
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import continued, synthetic_workload


def by_tokens(shape: StepShape, steps: int = 1) -> StepEstimate:
    return constant_timer(0.001 + 0.001 * shape.num_tokens)(shape, steps)


def run(
    requests: tuple[Request, ...], *, prefill: int = 1, decode: int = 1, rate: float = 1e9, **workload: Any
) -> Handover:
    replica = Replica(
        timer=by_tokens,
        policy=FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=64),
        num_blocks=4000,
        steps_under_way=1,
    )
    pools = (Pool(same_engines(replica, engines)) for engines in (prefill, decode))
    link = Link(rate, decode * rate, latency=0.5)
    return simulate_disaggregated(*pools, link, lambda tokens: 10.0 * tokens, Workload(requests, **workload))


def test_a_request_takes_its_prompt_the_wire_and_its_tokens() -> None:
    done = run((Request(1.0, 100, 11),), rate=1000.0)
    prompts, served = ServedRequests(done.prefill), ServedRequests(done.decode)
    assert prompts.sent_at.tolist() == [1.0]
    assert done.ready.tolist() == pytest.approx([1.0 + 0.101])
    assert done.received.tolist() == pytest.approx([1.101 + 0.5 + 1.0])
    # Its keys and values are there: the first token takes one step of one token, as the others do.
    assert served.first_token.tolist() == pytest.approx([2.601 + 0.002])
    assert served.tpot.tolist() == pytest.approx([0.002])


def test_long_prompts_take_no_step_of_decoding() -> None:
    done = run((Request(0.0, 5, 200), Request(0.05, 500, 2)))
    served = ServedRequests(done.decode)
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
    sent, ended = ServedRequests(done.prefill).sent_at, ServedRequests(done.decode).last_token
    assert max(np.count_nonzero((sent <= time) & (ended > time)) for time in sent) == 3
    assert (ended > done.received).all()
    assert ServedRequests(done.decode).num_output.tolist() == [request.num_output for request in requests]


def random_run(use: float, *, prefill: int = 4, decode: int = 4, prompt: int = 100) -> tuple[Handover, float]:
    """Poisson arrivals that keep each sender's link, or all receivers, busy for that share; and one transfer's time."""
    count, transfer = 3000, 0.01
    bytes_per_second = 10.0 * prompt / transfer
    slowest = min(prefill, decode)
    arrivals = np.cumsum(np.random.default_rng(3).exponential(transfer / (use * slowest), count))
    requests = tuple(Request(float(arrival), prompt, 1) for arrival in arrivals)
    replica = Replica(
        timer=constant_timer(1e-5),
        policy=FcfsPolicy(max_num_batched_tokens=4096, max_num_seqs=64),
        num_blocks=40_000,
        steps_under_way=1,
    )
    pools = (Pool(same_engines(replica, engines), "round_robin") for engines in (prefill, decode))
    link = Link(bytes_per_second, decode * bytes_per_second)
    return simulate_disaggregated(*pools, link, lambda tokens: 10.0 * tokens, Workload(requests)), transfer


def test_a_link_that_is_hardly_used_is_not_waited_for() -> None:
    done, transfer = random_run(0.004)
    assert (done.began - done.ready).mean() < 0.01 * transfer
    assert (np.diff(done.began[np.argsort(done.ready, kind="stable")]) >= 0).all()


@pytest.mark.parametrize("use", [0.3, 0.6])
def test_waiting_for_one_sender_is_that_of_an_m_d_1_queue(use: float) -> None:
    done, transfer = random_run(use, prefill=1, decode=1)
    theory = use / (2 * (1 - use)) * transfer
    assert (done.began - done.ready).mean() == pytest.approx(theory, rel=0.2)
    free = 0.0
    for ready, began in zip(done.ready.tolist(), done.began.tolist(), strict=True):  # Lindley's recursion
        assert began == pytest.approx(max(ready, free))
        free = began + transfer


def test_waiting_for_shared_receivers_is_that_of_an_m_d_1_queue() -> None:
    # Many senders, each hardly used, into one receiver.
    done, transfer = random_run(0.5, prefill=16, decode=1)
    assert (done.began - done.ready).mean() == pytest.approx(0.5 * transfer, rel=0.2)


def test_a_slow_prompt_does_not_hold_up_the_link() -> None:
    # The second engine's long prompt is ready late; what the first computes meanwhile leaves at once.
    requests = (Request(0.0, 5, 2), Request(0.0, 500, 2), *(Request(0.05 * i, 5, 2) for i in range(1, 9)))
    done = run(requests, prefill=2, rate=1e6)
    assert (done.began - done.ready).max() < 1e-3


@pytest.mark.parametrize(("servers", "taken_in"), [(1, 3.0), (2, 1.5)])
def test_the_first_pool_takes_requests_in_as_one_engine_does(servers: int, taken_in: float) -> None:
    replica = Replica(
        timer=by_tokens,
        policy=FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=64),
        num_blocks=4000,
        steps_under_way=1,
        server=ServerCosts(0.5),
    )
    pools = Pool(same_engines(replica, 2), servers=servers), Pool(same_engines(replica, 1))
    workload = Workload((Request(0.0, 100, 2),) * 6)
    done = simulate_disaggregated(*pools, Link(1e9, 1e9), lambda tokens: 10.0 * tokens, workload)
    started = ServedRequests(done.prefill).started_at
    assert started.min() == pytest.approx(taken_in)
    assert ServedRequests(done.decode).first_token.min() < taken_in + 1.0  # the second pool has them from the first


def test_a_run_that_goes_on_is_the_run_of_all_requests() -> None:
    first = synthetic_workload(rate=3.0, count=60, input_lengths="uniform:1:90", output_lengths="uniform:1:9")
    whole = continued(first, 200, 1000)
    assert whole is not None
    following, replica = (
        iter([whole, None]),
        Replica(
            timer=by_tokens,
            policy=FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=64),
            num_blocks=4000,
            steps_under_way=2,
        ),
    )
    pools, link = (Pool(same_engines(replica, 2)), Pool(same_engines(replica, 2))), Link(1e4, 2e4, latency=0.5)
    at_once, in_parts = (
        simulate_disaggregated(*pools, link, lambda tokens: 10.0 * tokens, load, go_on=go_on)
        for load, go_on in ((whole, lambda _: None), (first, lambda _: next(following)))
    )
    assert np.array_equal(np.stack(at_once[2:]), np.stack(in_parts[2:]))
    for one, other in zip(at_once.prefill + at_once.decode, in_parts.prefill + in_parts.decode, strict=True):
        for name in ("sent_at", "started_at", "first_token", "last_token", "num_output"):
            assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
