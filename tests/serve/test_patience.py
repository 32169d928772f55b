"""Clients leave and send again: blocks are free at the next step, nothing else changes, and everyone is counted."""

from dataclasses import replace

import numpy as np
import pytest

from infercast import deploy
from infercast import simulate as forecast
from infercast.errors import InputError
from infercast.serve import Request, simulate
from infercast.serve.cache.blocks import KvShape
from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.step import constant_timer
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.patience import parse_patience, with_patience
from infercast.serve.workload.request import Patience, Workload
from infercast.serve.workload.synthetic import continued, redrawn, session_workload, synthetic_workload

FCFS = FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=8)
PREFILL_FIRST = PrefillFirstPolicy(max_running_requests=8, chunked_prefill_size=512)
TIMES = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached", "failed")


def engine(policy=FCFS, num_blocks=100, **others):
    size = 1 if policy is PREFILL_FIRST else 16
    blocks = {"num_blocks": num_blocks * 16 // size, "kv_shape": KvShape(size)}
    return Replica(timer=constant_timer(0.1), policy=policy, **blocks, **others)


def busy(rate=6.0, count=200, **options):
    return synthetic_workload(
        rate=rate, count=count, input_lengths="uniform:10:300", output_lengths="uniform:5:60", seed=2, **options
    )


def arrays(record):
    return [np.nan_to_num(getattr(record, name), nan=-1.0).tolist() for name in TIMES]


@pytest.mark.parametrize("policy", [FCFS, PREFILL_FIRST])
def test_blocks_of_who_left_are_free_in_the_next_step(policy):
    # The second request needs the blocks of the first, which would run for 80 more steps.
    requests = (Request(0.0, 1000, 100, patience=2.0), Request(0.1, 1000, 2))
    record = simulate(engine(policy, num_blocks=80), Workload(requests))
    assert record.failed.tolist() == [True, False]
    assert record.last_token[0] == 2.0
    assert 2.0 <= record.first_token[1] <= 2.5
    # Over a thousand tokens of prompt, and a token in each of some 18 steps
    assert 1000 < record.num_wasted < 1025
    assert record.num_left == 1


def test_answers_that_come_in_time_are_as_without_any_limit():
    plain = busy()
    patient = replace(plain, requests=tuple(replace(each, patience=1e6) for each in plain.requests))
    assert arrays(simulate(engine(), patient)) == arrays(simulate(engine(), plain))


@pytest.mark.parametrize("policy", [FCFS, PREFILL_FIRST])
@pytest.mark.parametrize("server", [ServerCosts(), ServerCosts(0.01, 0.001, 0.001, 0.001, 0.05)])
def test_jumps_change_nothing(policy, server):
    workload = with_patience(busy(rate=3.0), Patience(6.0, 1, 0.2, 0.7))
    runs = [simulate(engine(policy, server=server), workload, jump=jump) for jump in (True, False)]
    assert arrays(runs[0]) == arrays(runs[1])
    assert (runs[0].num_left, runs[0].num_wasted) == (runs[1].num_left, runs[1].num_wasted)
    assert runs[0].failed.any()


def test_who_sends_again_finds_the_prompt_in_the_cache():
    workload = with_patience(Workload((Request(0.0, 480, 30), Request(50.0, 480, 5))), Patience(2.0, 2))
    record = simulate(engine(), workload)
    assert record.failed.tolist() == [True, False]
    assert record.num_left == 3  # three tries
    assert record.last_token[0] == pytest.approx(6.0, abs=0.3)
    assert record.num_cached.tolist() == [464, 0]


def test_latency_of_a_second_try_counts_from_the_first():
    # Busy at first, so that the first try is in vain.
    requests = (Request(0.0, 512, 20), *(Request(0.0, 512, 12, patience=1.5, retries=4) for _ in range(12)))
    record = simulate(engine(num_blocks=300), Workload(requests))
    second = ~record.failed & (record.end_to_end > 1.5)
    assert second[1:].any()
    assert (record.sent_at == 0.0).all()


def test_share_of_requests_is_cancelled():
    workload = with_patience(busy(rate=0.5, count=400), Patience(float("inf"), 0, 0.25, 0.05), seed=2)
    assert np.mean([bool(each.patience) for each in workload.requests]) == pytest.approx(0.25, abs=0.05)
    record = simulate(engine(num_blocks=400), workload)
    assert record.failed.tolist() == [bool(each.patience) for each in workload.requests]
    assert redrawn(workload, seed=2, count=400).requests == workload.requests


@pytest.mark.parametrize("router", ["vllm", "least_loaded", "round_robin"])
def test_all_are_counted_in_a_fleet(router):
    workload = with_patience(busy(rate=12.0, count=300), Patience(5.0, 2, 0.1, 0.5))
    records = simulate_fleet(Pool(same_engines(engine(), 3), router), workload)
    ended = np.sum([~np.isnan(record.last_token) for record in records], axis=0)
    assert (ended == 1).all()
    assert sum(record.failed.sum() for record in records) > 0
    assert sum(record.num_left for record in records) > sum(record.failed.sum() for record in records)


def test_closed_loops_and_sessions_go_on():
    closed = with_patience(
        synthetic_workload(concurrency=16, count=100, input_lengths=100, output_lengths=40), Patience(5.0)
    )
    assert not np.isnan(simulate(engine(), closed).last_token).any()
    sessions = session_workload(
        concurrency=6, count=60, turns=3, input_lengths=100, turn_lengths=20, output_lengths=40, think=1.0
    )
    record = simulate(engine(), with_patience(sessions, Patience(4.2, 1)))
    assert not np.isnan(record.last_token).any()


def test_slo_counts_who_left():
    deployment = deploy("llama-3.1-8b", "h200-sxm")
    found = forecast(
        deployment, with_patience(busy(count=300), Patience(float("inf"), 0, 0.1, 0.01)), slo="ttft_p50<1s,ttft_p99<1s"
    )
    given_up = found.given_up
    assert given_up.requests == found.clients.failed.sum() > 10
    assert found.verdict.attainment == pytest.approx(1 - given_up.share, abs=0.02)
    assert not found.verdict.holds
    assert found.verdict.limits[1].value is None
    assert found.to_dict(intervals=False)["given_up"]["requests"] == given_up.requests


def test_two_pools_are_refused():
    with pytest.raises(InputError, match="not modelled with two pools"):
        forecast("llama-3.1-8b", gpu="h200-sxm", prefill_gpu="h200-sxm", rate=2.0, num_requests=20, client_timeout="5s")


@pytest.mark.parametrize(
    "given", [("x",), ("-1s",), (None, 2), ("3s", -1), (None, 0, "0.1"), (None, 0, "2@1s"), (None, 0, "0.1@soon")]
)
def test_other_words_are_refused(given):
    with pytest.raises(InputError, match=r"client_timeout|retries|cancel"):
        parse_patience(*given)


def test_words():
    assert parse_patience("500ms", 2, "0.1@2") == Patience(0.5, 2, 0.1, 2.0)
    assert parse_patience(30) == Patience(30.0)
    assert parse_patience(None) is None


def test_run_that_goes_on_has_the_same_clients():
    workload = with_patience(synthetic_workload(rate=5.0), Patience(3.0, 1))
    longer = continued(workload, 2000, 10**6)
    assert {(each.patience, each.retries) for each in longer.requests} == {(3.0, 1)}
    assert len({each.prefix[-1].content for each in longer.requests}) == 2000
