"""Engines beside a clock: the times of a simulated run, and nothing left behind by clients that leave."""

from math import inf
from random import Random
from typing import Any

import pytest

from infercast.engines.base import engine_named
from infercast.forecast.deploy import deploy
from infercast.forecast.system import System, system_of, two_pools
from infercast.serve import Workload
from infercast.serve.fleet.live import LiveSystem
from infercast.serve.workload.synthetic import synthetic_workload

COUNT = 120


def draw(rate: float, seed: int = 0) -> Workload:
    lengths = {"input_lengths": "lognormal:600:0.8:8:4000", "output_lengths": "lognormal:60:0.7:1:300"}
    return synthetic_workload(rate=rate, count=COUNT, seed=seed, **lengths)


def live_of(system: System) -> LiveSystem:
    if system.wire is None:
        return LiveSystem(system.pools[0].engines)
    size = system.pools[1].deployment.model.sequence_bytes
    return LiveSystem(system.pools[0].engines, system.pools[1].engines, system.wire, size)


def drive(live: LiveSystem, workload: Workload, leaving: dict[int, float] | None = None) -> dict[int, tuple[Any, ...]]:
    """First time, last time and tokens of each request, on a clock that stops wherever something happens."""
    seen: dict[int, tuple[Any, ...]] = {}
    requests, left = [*workload.requests], sorted((time, index) for index, time in (leaving or {}).items())
    while requests or left or live.next_event < inf:
        arrival = requests[0].arrival if requests else inf
        now = min(live.next_event, arrival, left[0][0] if left else inf)
        for emission in live.advance(now):
            for tokens in emission.tokens:
                first, _, number, _ = seen.get(tokens.request, (emission.time, 0.0, 0, False))
                seen[tokens.request] = first, emission.time, number + tokens.number, tokens.is_last
        if arrival <= now:
            live.submit(requests.pop(0), arrival)
        if left and left[0][0] <= now:
            index = left.pop(0)[1]
            if not seen.get(index, (0, 0, 0, False))[3]:
                live.abort(index, now)
                seen.pop(index, None)
    return seen


def systems() -> dict[str, System]:
    plain = deploy("llama-3.1-8b", "h200-sxm")
    drafts = '{"method": "ngram", "num_speculative_tokens": 3}'
    return {
        "vllm": system_of(plain),
        "sglang": system_of(deploy("llama-3.1-8b", "h200-sxm", engine="sglang")),
        "replicas": system_of(deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=3), "prefix_aware"),
        "pipeline": system_of(deploy("qwen3-0.6b", "h200-sxm", pipeline_parallel_size=2)),
        "drafts": system_of(
            deploy("qwen3-0.6b", "h200-sxm", engine_named("vllm").settings({"speculative_config": drafts}))
        ),
        "pools": two_pools(plain, plain, instances=(2, 1)),
    }


@pytest.mark.parametrize("name", ["vllm", "sglang", "replicas", "pipeline", "drafts", "pools"])
def test_a_live_run_has_the_times_of_a_simulated_one(name: str) -> None:
    system, workload = systems()[name], draw(30.0)
    expected = system.serve(workload).clients
    seen = drive(live_of(system), workload)
    assert len(seen) == COUNT
    for index, (first, last, number, is_last) in seen.items():
        assert is_last
        assert number == workload.requests[index].num_output
        assert first == pytest.approx(expected.first_token[index], abs=1e-9)
        assert last == pytest.approx(expected.last_token[index], abs=1e-9)


@pytest.mark.parametrize("name", ["vllm", "sglang", "replicas", "drafts"])
def test_clients_that_leave_free_their_blocks(name: str) -> None:
    system, workload, random = systems()[name], draw(60.0, seed=1), Random(0)
    leaving = {
        index: each.arrival + 2 * random.random()
        for index, each in enumerate(workload.requests)
        if random.random() < 0.5
    }
    live = live_of(system)
    seen = drive(live, workload, leaving)
    assert all(is_last for *_, is_last in seen.values())
    assert {*range(COUNT)} - {*leaving} <= {*seen}
    for engine in live.pools[0].engines:
        assert engine.loop.scheduler.cache.num_held == 0
        assert not engine.outstanding
        assert not engine.loop.scheduler.waiting
        assert not engine.loop.scheduler.running


def test_after_all_have_left_others_are_served() -> None:
    live, workload = live_of(systems()["vllm"]), draw(500.0)
    index = live.submit(workload.requests[0], 0.0)
    live.advance(0.03)
    live.abort(index, 0.03)
    live.advance(1.0)
    other = live.submit(workload.requests[1], 2.0)
    done = [tokens for emission in live.advance(60.0) for tokens in emission.tokens if tokens.is_last]
    assert [each.request for each in done] == [other]
