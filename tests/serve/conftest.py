"""Random small engines and workloads, and all that a run leaves behind in a form that can be compared."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from infercast.serve.cache.shape import KvShape
from infercast.serve.record import Record
from infercast.serve.scheduler.policy import FirstCome
from infercast.serve.simulation import Replica
from infercast.serve.step import HostCost, StepEstimate, StepShape, StepTimer
from infercast.serve.workload.request import Request, Segment, Workload

Scenario = tuple[Replica, Workload]


def batch_timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    """Dense work by tokens, attention by contexts with a slowest sequence, and a host that is sometimes slower."""
    assert steps >= 1
    assert steps == 1 or shape.is_decode
    contexts = np.array(shape.computed) + np.array(shape.new_tokens) + np.arange(steps)[:, None]
    dense = np.full(steps, 0.0071 * shape.num_tokens + 0.0013 * shape.num_sampled)
    attention = 0.00037 * contexts.sum(axis=1) + 0.011 * np.sqrt(contexts.max(axis=1))
    batch = len(shape.new_tokens)
    by_hand = 0.0 if shape.is_decode else 0.031
    host = HostCost(0.0031 + 0.0011 * batch, 0.0077, 0.013 + by_hand, 0.0023 + 0.0029 * batch, 0.041)
    return StepEstimate((dense + attention).tolist(), [dense.tolist(), attention.tolist()], host)


@st.composite
def _requests(draw: st.DrawFn) -> Request:
    segments = st.builds(Segment, st.integers(0, 2), st.integers(1, 9))
    prefix = tuple(draw(st.lists(segments, max_size=3)))
    num_input = sum(segment.num_tokens for segment in prefix) + draw(st.integers(not prefix, 12))
    # Long answers now and then: a jump takes up to 32 steps.
    num_output = draw(st.one_of(st.integers(1, 12), st.integers(1, 12), st.integers(30, 80)))
    arrival = draw(st.one_of(st.just(0.0), st.integers(0, 8).map(float), st.floats(0.0, 6.0)))
    return Request(arrival, num_input, num_output, prefix, draw(st.sampled_from([None, None, 0, 1])))


@st.composite
def _scenarios(draw: st.DrawFn) -> Scenario:
    requests = draw(st.lists(_requests(), min_size=1, max_size=7))
    requests.sort(key=lambda request: request.arrival)
    longest = max(request.num_input + request.num_output for request in requests)
    chunked = draw(st.sampled_from([True, True, True, False]))
    limits = FirstCome(
        max_num_batched_tokens=draw(st.integers(1, 24)) if chunked else longest + draw(st.integers(0, 8)),
        max_num_seqs=draw(st.integers(1, 6)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5])),
        chunked_prefill=chunked,
        spares_lone_prompts=draw(st.booleans()),
        settles=(settles := draw(st.sampled_from([False, False, True]))),
    )
    shape = KvShape(
        block_size=draw(st.integers(1, 5)),
        windows=draw(st.sampled_from([(0,), (0,), (0,), (0, 0), (6,), (0, 5), (0, 4, 9)])),
    )
    # At least what the longest request needs, seldom enough for all of them.
    steps_under_way = draw(st.integers(1, 2))
    most = shape.most_blocks(longest - 1, limits.max_num_batched_tokens * (steps_under_way if settles else 1))
    replica = Replica(
        timer=batch_timer,
        policy=limits,
        num_blocks=most + draw(st.integers(0, 8)),
        kv_shape=shape,
        prefix_caching=draw(st.sampled_from([True, True, False])),
        sparse_windows=settles,
        steps_under_way=steps_under_way,
        request_path_seconds=draw(st.sampled_from([0.0, 0.07])),
        request_token_seconds=draw(st.sampled_from([0.0, 0.003])),
        token_path_seconds=draw(st.sampled_from([0.0, 0.013])),
        token_turn_seconds=draw(st.sampled_from([0.0, 0.0017])),
        wake_up_seconds=draw(st.sampled_from([0.0, 0.019])),
        max_model_len=longest,
    )
    return replica, Workload(tuple(requests), draw(st.sampled_from([None, None, 1, 2, 3])))


@pytest.fixture(scope="session")
def timer() -> StepTimer:
    """Step times that depend on the batch and on its contexts."""
    return batch_timer


@pytest.fixture(scope="session")
def scenarios() -> st.SearchStrategy[Scenario]:
    """Engines with chunking, small caches, shared prefixes and windows, and the requests they have to serve."""
    return _scenarios()


@pytest.fixture(scope="session")
def plain_cache() -> Any:
    """The cache block by block."""
    return runpy.run_path(str(Path(__file__).with_name("plain_cache.py")))["PlainCache"]


@pytest.fixture(scope="session")
def facts() -> Callable[[Record], dict[str, Any]]:
    """Everything a record holds, exact to the bit."""

    def take(record: Record) -> dict[str, Any]:
        arrays = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached")
        result: dict[str, Any] = {name: getattr(record, name).tobytes() for name in arrays}
        gaps, counts = record.gaps
        result["gaps"] = np.repeat(gaps, counts).tobytes()
        result["num_preemptions"] = record.num_preemptions
        for name in ("running", "waiting", "kv_usage"):
            gauge = getattr(record, name)
            result[name] = (float(gauge.area).hex(), float(gauge.peak).hex())
        for phase, totals in record.phases.items():
            result[phase] = (
                (totals.steps, totals.tokens, totals.sequences, totals.context, totals.sampled),
                totals.seconds.hex(),
                ([seconds.hex() for seconds in totals.varying], totals.rows),
            )
        return result

    return take


@pytest.fixture(scope="session")
def plain() -> Callable[[Replica, Workload], Record]:
    """The plain engine's simulation."""
    return runpy.run_path(str(Path(__file__).with_name("plain_engine.py")))["simulate"]
