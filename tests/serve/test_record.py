from __future__ import annotations

import numpy as np
import pytest

from infercast.serve.cache.blocks import KvShape
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import constant_timer
from infercast.serve.workload.request import Request, Workload


def serve(*requests: Request, max_num_seqs: int = 8, num_blocks: int = 8, seconds: float = 1.0) -> Record:
    """One step after the other, each a second long; blocks of four tokens."""
    limits = FcfsPolicy(max_num_batched_tokens=100, max_num_seqs=max_num_seqs)
    replica = Replica(
        timer=constant_timer(seconds),
        policy=limits,
        num_blocks=num_blocks,
        kv_shape=KvShape(4),
        prefix_caching=False,
        steps_under_way=1,
    )
    return simulate(replica, Workload(requests))


# The steps hold A, A and B, A and B, A: A's tokens come at 1, 2, 3 and 4, B's at 2 and 3.
TWO = (Request(0.0, 10, 4), Request(0.5, 10, 2))


def test_latencies_of_two_requests() -> None:
    record = serve(*TWO)
    assert record.ttft.tolist() == [1.0, 1.5]
    assert record.end_to_end.tolist() == [4.0, 2.5]
    assert record.tpot.tolist() == [1.0, 1.0]
    assert record.num_output.tolist() == [4, 2]


def test_a_single_token_has_no_time_per_token() -> None:
    assert serve(Request(0.0, 4, 1), Request(0.0, 4, 3)).tpot.tolist() == [1.0]


def test_gaps_are_counted_once_for_each_pair_of_tokens() -> None:
    gaps, counts = serve(*TWO).gaps
    assert np.repeat(gaps, counts).tolist() == [1.0] * 4


def test_a_preempted_request_has_a_long_gap() -> None:
    # Three blocks: the second answer has tokens at 1, 4 and 5, the first at 1, 2 and 3.
    gaps, counts = serve(Request(0.0, 4, 3), Request(0.0, 5, 3), num_blocks=3).gaps
    assert sorted(np.repeat(gaps, counts).tolist()) == [1.0, 1.0, 1.0, 3.0]


def test_running_sequences_are_weighted_by_time() -> None:
    running = serve(*TWO, seconds=0.5).running
    # B arrives at 0.5, when A's second step begins: again 1, 2, 2 and 1 sequences, for half a second each.
    assert (running.area, running.peak) == (3.0, 2)


def test_waiting_requests_are_weighted_by_time() -> None:
    # One at a time: the second waits during both steps of the first, and then nobody does.
    waiting = serve(Request(0.0, 4, 2), Request(0.0, 4, 1), max_num_seqs=1).waiting
    assert (waiting.area, waiting.peak) == (2.0, 1)


def test_cache_usage_is_weighted_by_time() -> None:
    # 10, 11 and 12 tokens in 3 of 8 blocks, then 13 tokens in 4.
    usage = serve(Request(0.0, 10, 4)).kv_usage
    assert (usage.area, usage.peak) == (3 * 3 / 8 + 4 / 8, 0.5)


def test_totals_of_the_phases() -> None:
    # B's prompt rides with a token of A: two prefill steps, with contexts 0, then 10 and 0; then two decode steps with
    # contexts 11 and 10, then 12.
    phases = serve(*TWO).phases
    prefill, decode = phases["prefill"], phases["decode"]
    assert (prefill.steps, prefill.tokens, prefill.sequences, prefill.context, prefill.sampled) == (2, 21, 3, 10, 3)
    assert (decode.steps, decode.tokens, decode.sequences, decode.context, decode.sampled) == (2, 3, 3, 33, 3)
    assert (prefill.seconds, decode.seconds, decode.varying) == (2.0, 2.0, [2.0])


def test_a_phase_that_never_was_has_no_kernels() -> None:
    phases = serve(Request(0.0, 4, 1)).phases
    assert phases["decode"].varying == []
    assert phases["prefill"].varying == [1.0]


@pytest.mark.parametrize(("time", "requests"), [(-0.1, 0), (0.0, 1), (0.5, 2), (2.9, 2), (3.0, 1), (4.0, 0)])
def test_requests_in_the_system_at_a_moment(time: float, requests: int) -> None:
    # A is there from 0 to 4, B from 0.5 to 3.
    assert serve(*TWO).in_system_at(time) == requests


def test_steps_that_take_no_time_still_have_a_first_token() -> None:
    record = serve(Request(0.0, 4, 2), Request(0.0, 4, 1), max_num_seqs=1, seconds=0.0)
    assert record.first_token.tolist() == [0.0, 0.0]
