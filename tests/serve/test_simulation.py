from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve.cache.blocks import KvShape
from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.loop import TELL_EVERY, Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import constant_timer
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import continued, synthetic_workload


def replica_of(steps_under_way: int = 2, *, policy: FcfsPolicy | None = None, **changes: Any) -> Replica:
    """Every step takes a second; blocks of four tokens."""
    arguments: dict[str, Any] = {"num_blocks": 100, "kv_shape": KvShape(4), **changes}
    policy = policy or FcfsPolicy(max_num_batched_tokens=1000, max_num_seqs=8)
    return Replica(timer=constant_timer(1.0), policy=policy, steps_under_way=steps_under_way, **arguments)


def serve(replica: Replica, *requests: Request, concurrency: int | None = None) -> Record:
    return simulate(replica, Workload(requests, concurrency))


def times(record: Record) -> list[tuple[float, float, float]]:
    """Start, first token and last token of each request."""
    return list(zip(record.started_at.tolist(), record.first_token.tolist(), record.last_token.tolist(), strict=True))


both = pytest.mark.parametrize("steps_under_way", [1, 2])


@both
@pytest.mark.parametrize("how", [{"rate": 0.4}, {"concurrency": 3}])
@pytest.mark.parametrize("engines", [1, 2])
def test_a_run_that_goes_on_is_the_run_of_all_requests(steps_under_way: int, how: dict[str, Any], engines: int) -> None:
    lengths = {"input_lengths": "uniform:1:30", "output_lengths": "uniform:1:9"}
    first = synthetic_workload(count=60, **how, **lengths)
    middle = continued(first, 100, 1000)
    assert middle is not None
    whole = continued(middle, 250, 1000)
    assert whole is not None
    following = iter([middle, whole, None])
    pool = Pool(same_engines(replica_of(steps_under_way), engines))
    at_once, in_parts = (
        simulate_fleet(pool, load, go_on=go_on) if engines > 1 else [simulate(pool.replicas[0], load, go_on=go_on)]
        for load, go_on in ((whole, lambda _: None), (first, lambda _: next(following)))
    )
    for one, other in zip(at_once, in_parts, strict=True):
        for name in ("sent_at", "started_at", "first_token", "last_token", "num_output"):
            assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        assert (one.prefilling.steps, one.decoding.steps) == (other.prefilling.steps, other.decoding.steps)
        assert one.decoding.seconds == other.decoding.seconds
        assert abs(len(one.marks) - len(other.marks)) <= 2


@both
def test_one_request(steps_under_way: int) -> None:
    # It starts when it arrives: its prompt takes until 1.5, two more tokens until 3.5.
    assert times(serve(replica_of(steps_under_way), Request(0.5, 10, 3))) == [(0.5, 1.5, 3.5)]


@both
def test_one_token_is_first_and_last(steps_under_way: int) -> None:
    assert times(serve(replica_of(steps_under_way), Request(2.0, 10, 1))) == [(2.0, 3.0, 3.0)]


def test_an_arrival_during_a_step_joins_the_next_one() -> None:
    record = serve(replica_of(1), Request(0.0, 10, 4), Request(0.5, 10, 2))
    assert times(record) == [(0.0, 1.0, 4.0), (1.0, 2.0, 3.0)]


def test_an_arrival_during_a_step_joins_the_one_after_the_next_if_that_is_planned_already() -> None:
    # The step from 1 to 2 was planned at 0; the one from 2 to 3 is planned at 1.
    record = serve(replica_of(2), Request(0.0, 10, 4), Request(0.5, 10, 2))
    assert times(record) == [(0.0, 1.0, 4.0), (2.0, 3.0, 4.0)]


@pytest.mark.parametrize(("steps_under_way", "started"), [(1, 1.0), (2, 2.0)])
def test_an_arrival_at_the_end_of_a_step_is_seen_by_the_plan_made_then(steps_under_way: int, started: float) -> None:
    record = serve(replica_of(steps_under_way), Request(0.0, 10, 5), Request(1.0, 10, 1))
    assert times(record)[1] == (started, started + 1.0, started + 1.0)


@both
def test_with_no_further_step_planned_an_arrival_starts_at_the_end_of_this_one(steps_under_way: int) -> None:
    record = serve(replica_of(steps_under_way), Request(0.0, 10, 1), Request(0.5, 10, 1))
    assert times(record) == [(0.0, 1.0, 1.0), (1.0, 2.0, 2.0)]


@both
def test_an_idle_engine_starts_at_once(steps_under_way: int) -> None:
    record = serve(replica_of(steps_under_way), Request(0.0, 10, 2), Request(7.25, 10, 2))
    assert times(record)[1] == (7.25, 8.25, 9.25)


@both
def test_three_prompts_in_chunks(steps_under_way: int) -> None:
    # Budget 4. Until 1: 4 of the first. Until 2: its other 2 and 2 of the second. Until 3: one token of the first,
    # the last of the second, both of the third.
    replica = replica_of(steps_under_way, policy=FcfsPolicy(max_num_batched_tokens=4, max_num_seqs=8))
    record = serve(replica, Request(0.0, 6, 2), Request(0.0, 3, 1), Request(0.0, 2, 1))
    assert times(record) == [(0.0, 2.0, 3.0), (1.0, 3.0, 3.0), (2.0, 3.0, 3.0)]


@both
def test_a_preempted_request_pauses(steps_under_way: int) -> None:
    # Three blocks: one for the first prompt, two for the second. After one token each the first needs another block,
    # so the second waits until the first is done at 3, and computes its 6 tokens again.
    replica = replica_of(steps_under_way, num_blocks=3, prefix_caching=False)
    record = serve(replica, Request(0.0, 4, 3), Request(0.0, 5, 3))
    assert times(record) == [(0.0, 1.0, 3.0), (0.0, 1.0, 5.0)]
    assert record.num_preemptions == 1


@both
def test_requests_of_the_same_moment_keep_their_order(steps_under_way: int) -> None:
    replica = replica_of(steps_under_way, policy=FcfsPolicy(max_num_batched_tokens=100, max_num_seqs=1))
    record = serve(replica, *(Request(0.5, 3, 1) for _ in range(4)))
    assert record.started_at.tolist() == [0.5, 1.5, 2.5, 3.5]


@both
def test_the_ways_to_and_from_the_engine_are_waited_for(steps_under_way: int) -> None:
    replica = replica_of(steps_under_way, request_path_seconds=0.25, token_path_seconds=0.5)
    record = serve(replica, Request(1.0, 4, 2))
    assert record.sent_at.tolist() == [1.0]
    # In the queue at 1.25; steps end at 2.25 and 3.25.
    assert times(record) == [(1.25, 2.75, 3.75)]


@both
def test_a_client_sends_when_its_answer_has_come(steps_under_way: int) -> None:
    # Sent at 0, queued at 0.25, done at 1.25, answered at 1.75: then the next one.
    replica = replica_of(steps_under_way, request_path_seconds=0.25, token_path_seconds=0.5)
    record = serve(replica, Request(0.0, 4, 1), Request(0.0, 4, 1), concurrency=1)
    assert record.sent_at.tolist() == [0.0, 1.75]
    assert times(record) == [(0.25, 1.75, 1.75), (2.0, 3.5, 3.5)]


@both
def test_a_closed_loop_has_no_more_requests_than_clients(steps_under_way: int) -> None:
    # Two clients: both answers come at 2, but the fourth request waits for the third's.
    replica = replica_of(steps_under_way)
    requests = (Request(0.0, 4, 2), Request(0.0, 4, 3), Request(0.0, 4, 1), Request(0.0, 4, 1))
    record = serve(replica, *requests, concurrency=2)
    assert record.sent_at.tolist() == [0.0, 0.0, 2.0, 3.0]


@both
def test_a_prefix_hit_is_recorded(steps_under_way: int) -> None:
    prefix = (Segment(1, 8),)
    record = serve(replica_of(steps_under_way), Request(0.0, 10, 1, prefix), Request(3.0, 10, 1, prefix))
    assert record.num_cached.tolist() == [0, 8]


def refused(replica: Replica, *requests: Request) -> str:
    with pytest.raises(InputError) as caught:
        serve(replica, *requests)
    return str(caught.value)


def test_an_empty_workload_is_refused() -> None:
    assert refused(replica_of()) == "the workload has no requests"


@pytest.mark.parametrize(("num_input", "num_output"), [(0, 5), (5, 0)])
def test_a_request_without_tokens_is_refused(num_input: int, num_output: int) -> None:
    assert refused(replica_of(), Request(0.0, 1, 1), Request(0.0, num_input, num_output)) == (
        f"request 1 has {num_input} input and {num_output} output tokens; both must be at least 1"
    )


def test_a_request_above_max_model_len_is_refused() -> None:
    replica = replica_of(max_model_len=20)
    serve(replica, Request(0.0, 15, 5))
    assert refused(replica, Request(0.0, 15, 6)) == (
        "request 0 needs 15 input + 6 output tokens, above max_model_len 20; shorten it or raise max_model_len"
    )


def test_a_request_that_would_never_fit_the_cache_is_refused() -> None:
    # Nothing is computed on the last token: 20 tokens in 5 blocks of 4.
    replica = replica_of(num_blocks=5, max_model_len=1000)
    serve(replica, Request(0.0, 15, 6))
    assert refused(replica, Request(0.0, 15, 7)) == (
        "request 0 needs 6 KV blocks for its 15 input + 7 output tokens, above the 5 there are; "
        "shorten it or give the cache more memory"
    )


def test_every_group_of_layers_counts_when_a_request_is_too_large_for_the_cache() -> None:
    replica = replica_of(num_blocks=5, kv_shape=KvShape(4, (0, 0)))
    serve(replica, Request(0.0, 8, 1))
    assert refused(replica, Request(0.0, 9, 1)).startswith("request 0 needs 6 KV blocks for its 9 input + 1 output")


def test_without_chunked_prefill_a_request_above_the_budget_is_refused() -> None:
    replica = replica_of(policy=FcfsPolicy(max_num_batched_tokens=10, max_num_seqs=8, chunked_prefill=False))
    serve(replica, Request(0.0, 9, 2))
    assert refused(replica, Request(0.0, 9, 3)) == (
        "request 0 may compute 11 tokens in one step, above max_num_batched_tokens 10; "
        "shorten it, raise max_num_batched_tokens or enable chunked prefill"
    )


SCRIPT = """
import hashlib
from infercast.serve.cache.blocks import KvShape
from infercast.serve.step import constant_timer
from infercast.serve import FcfsPolicy, Replica, simulate
from infercast.serve.workload.synthetic import synthetic_workload

workload = synthetic_workload(
    rate=16.0, count=200, input_lengths="uniform:1:90", output_lengths="uniform:1:60",
    prefix_length=24, prefix_groups=5, seed=7,
)
limits = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=16)
record = simulate(Replica(timer=constant_timer(0.0137), policy=limits, num_blocks=60, kv_shape=KvShape(8)), workload)
assert record.num_preemptions and record.num_cached.any()
arrays = (record.sent_at, record.started_at, record.first_token, record.last_token, record.num_cached, *record.gaps)
print(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
print(record.num_preemptions, record.running.area.hex(), record.kv_usage.area.hex())
"""


def test_one_seed_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_progress_is_told_of_requests_and_the_clock() -> None:
    told: list[tuple[int, float]] = []
    requests = tuple(Request(float(i), 1, 1) for i in range(2 * TELL_EVERY + 1))
    simulate(replica_of(), Workload(requests), progress=lambda sent, clock: told.append((sent, clock)))
    assert told == [(0, 0.0), (TELL_EVERY, float(TELL_EVERY)), (2 * TELL_EVERY, 2.0 * TELL_EVERY)]


def test_what_forecasts_leave_is_swept_now_and_then(monkeypatch):
    swept = []
    monkeypatch.setattr(gc, "collect", lambda: swept.append(1))
    for _ in range(3 * 64):
        serve(replica_of(), Request(0.0, 4, 4))
    assert len(swept) == 3
