"""Replicas fail and come back: every request is answered once, nothing is lost but time, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercast.errors import InputError
from infercast.serve import Request
from infercast.serve.cache.blocks import KvShape
from infercast.serve.fleet.pool import Outages, Pool, same_engines, simulate_fleet
from infercast.serve.fleet.router import POLICIES
from infercast.serve.loop import Replica
from infercast.serve.record import ServedRequests
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.step import constant_timer
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.request import Workload
from infercast.serve.workload.synthetic import session_workload, synthetic_workload

FCFS = FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=8)
PREFILL_FIRST = PrefillFirstPolicy(max_running_requests=8, chunked_prefill_size=512)
TIMES = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached")


def pool(count=3, router="least_loaded", policy=FCFS, outages=None, **others):
    size = 1 if policy is PREFILL_FIRST else 16
    blocks = {"num_blocks": 4800 // size, "kv_shape": KvShape(size)}
    engine = Replica(timer=constant_timer(0.1), policy=policy, **blocks, **others)
    return Pool(same_engines(engine, count), router, outages=outages)


def busy(rate=8.0, count=150, seed=2, **options):
    return synthetic_workload(
        rate=rate, count=count, input_lengths="uniform:10:300", output_lengths="uniform:5:60", seed=seed, **options
    )


def arrays(records):
    return [np.nan_to_num(getattr(each, name), nan=-1.0).tolist() for each in records for name in TIMES]


def check(workload, records):
    ended = np.sum([~np.isnan(record.last_token) for record in records], axis=0)
    assert (ended == 1).all()
    served = ServedRequests(records)
    assert served.num_output.tolist() == [request.num_output for request in workload.requests]
    if workload.concurrency is None and not workload.in_turns:
        assert served.sent_at.tolist() == [request.arrival for request in workload.requests]
    assert (served.sent_at <= served.started_at).all()
    assert (served.started_at < served.first_token).all()
    assert (served.first_token <= served.last_token).all()
    for number, record in enumerate(records):
        own = served.engine == number
        for outage in record.outages:
            inside = (served.started_at[own] > outage.begin) & (served.started_at[own] < outage.end)
            assert not inside.any()
    return served


@settings(max_examples=25, deadline=None)
@given(
    router=st.sampled_from(sorted(POLICIES)),
    policy=st.sampled_from([FCFS, PREFILL_FIRST]),
    count=st.integers(1, 4),
    rate=st.floats(1.0, 12.0),
    mtbf=st.floats(5.0, 60.0),
    seconds=st.floats(0.5, 30.0),
    seed=st.integers(0, 9),
    server=st.sampled_from([ServerCosts(), ServerCosts(0.01, 0.001, 0.001, 0.001, 0.05)]),
)
def test_every_request_is_answered_once(router, policy, count, rate, mtbf, seconds, seed, server):
    workload = busy(rate, seed=seed, prefix_length=64, prefix_groups=5)
    fleet = pool(count, router, policy, Outages(seconds, mtbf=mtbf, seed=seed), server=server)
    records = simulate_fleet(fleet, workload)
    check(workload, records)
    assert arrays(simulate_fleet(fleet, workload)) == arrays(records)
    if any(each.retried for record in records for each in record.outages):
        other = simulate_fleet(replace(fleet, outages=replace(fleet.outages, seed=seed + 1)), workload)
        assert arrays(other) != arrays(records)


@pytest.mark.parametrize("router", POLICIES)
@pytest.mark.parametrize("policy", [FCFS, PREFILL_FIRST])
def test_an_outage_after_the_last_answer_changes_nothing(router, policy):
    plain = simulate_fleet(pool(router=router, policy=policy), busy())
    end = max(np.nanmax(record.last_token) for record in plain)
    late = simulate_fleet(pool(router=router, policy=policy, outages=Outages(9.0, ((1, end + 1.0, 9.0),))), busy())
    assert arrays(late) == arrays(plain)
    assert not any(record.outages for record in late)
    assert [record.gaps[0].tolist() for record in late] == [record.gaps[0].tolist() for record in plain]


def test_what_was_computed_is_computed_again():
    requests = (Request(0.0, 160, 40), Request(0.0, 160, 40))
    records = simulate_fleet(pool(2, outages=Outages(50.0, ((0, 2.05, 50.0),))), Workload(requests))
    check(Workload(requests), records)
    (outage,) = records[0].outages
    # The prompt, and a token in each of some 20 steps
    assert (outage.begin, outage.end, outage.retried) == (2.05, 52.05, 1)
    assert 175 < outage.wasted < 182
    assert np.isnan(records[0].last_token).all()
    assert records[1].last_token[0] == pytest.approx(2.05 + 4.1, abs=0.25)
    assert records[1].last_token[1] == pytest.approx(4.0, abs=0.25)


def test_requests_wait_for_the_only_replica_which_has_an_empty_cache():
    requests = [Request(float(at), 160, 2) for at in (0, 10, 30, 41)]
    prefix = synthetic_workload(rate=1.0, count=1, prefix_length=144, input_lengths=16, output_lengths=2).requests[0]
    workload = Workload(tuple(replace(prefix, arrival=each.arrival) for each in requests))
    (record,) = simulate_fleet(pool(1, outages=Outages(20.0, ((0, 20.0, 20.0),))), workload)
    assert record.num_cached.tolist() == [0, 144, 0, 144]
    assert record.first_token[2] == pytest.approx(40.1, abs=0.15)
    assert record.outages[0].retried == 0


@pytest.mark.parametrize("router", ["vllm", "round_robin", "least_loaded"])
def test_the_others_share_what_comes_meanwhile(router):
    records = simulate_fleet(pool(4, router, outages=Outages(30.0, ((1, 5.0, 30.0),))), busy(6.0, 300))
    served = check(busy(6.0, 300), records)
    meanwhile = np.bincount(served.engine[(served.started_at > 6.0) & (served.started_at < 34.0)], minlength=4)
    assert meanwhile[1] == 0
    assert max(meanwhile) < 1.5 * sorted(meanwhile)[1]


def test_closed_loops_and_sessions_go_on():
    outages = Outages(4.0, mtbf=6.0, seed=3)
    closed = synthetic_workload(concurrency=16, count=150, input_lengths=100, output_lengths=40)
    sessions = session_workload(
        concurrency=6, count=60, turns=3, input_lengths=100, turn_lengths=20, output_lengths=40, think=1.0
    )
    for workload in (closed, sessions):
        records = simulate_fleet(pool(2, outages=outages), workload)
        check(workload, records)
        assert sum(outage.retried for record in records for outage in record.outages) > 0


def test_times_of_outages():
    named = Outages(9.0, ((1, 50.0, 5.0), (1, 10.0, 20.0), (0, 5.0, 1.0)))
    assert [*named.of(1)] == [(10.0, 30.0), (50.0, 55.0)]
    assert [*replace(named, since=20.0).of(1)] == [(0.0, 10.0), (30.0, 35.0)]
    drawn = Outages(9.0, mtbf=100.0, seed=1)
    gaps = []
    end = 0.0
    for _, (begin, back) in zip(range(2000), drawn.of(0), strict=False):
        gaps.append(begin - end)
        assert back - begin == pytest.approx(9.0)
        end = back
    assert np.mean(gaps) == pytest.approx(100.0, rel=0.06)
    assert next(drawn.of(0)) != next(drawn.of(1))


def test_a_replica_that_hardly_ever_serves_is_refused():
    with pytest.raises(InputError, match="hardly ever end"):
        simulate_fleet(pool(1, outages=Outages(0.1, mtbf=0.3)), Workload((Request(0.0, 100, 400),)))
