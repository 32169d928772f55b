from dataclasses import replace

import numpy as np
import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.forecast.steady import OVERLOADED, State, full_rate, typical
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests


@pytest.fixture(scope="module")
def small():
    return deploy("qwen3-0.6b", "l4", EngineSettings(max_num_seqs=16, max_model_len=2048))


def run(deployment, **changes):
    options = {"count": 400, "input_lengths": 300, "output_lengths": "uniform:10:40", "rate": None, **changes}
    return simulate(deployment, synthetic_workload(**options))


@pytest.fixture(scope="module")
def most(small):
    """Requests a second of the engine when all of them are there from the start, with no API server to take them in."""
    alone = deploy("qwen3-0.6b", "l4", small.asked.args[2], api_server=False)
    return run(alone, arrival="burst").requests_per_second


@pytest.mark.parametrize("times", [2, 5, 50])
def test_too_many_arrivals_saturate_at_the_capacity(small, most, times):
    found = run(small, rate=times * most).saturation
    assert found is not None
    assert found.offered == times * most
    assert found.capacity == pytest.approx(most, rel=0.15)


def test_arrivals_as_good_as_at_once_still_have_a_capacity(small, most):
    assert run(small, rate=1e6).saturation.capacity == pytest.approx(most, rel=0.15)


def test_a_short_run_of_a_deployment_that_can_keep_up_is_not_saturated(small, most):
    # The backlog of the first moments grows in any run; what counts is the rate that could be kept up.
    assert run(small, rate=0.7 * most, count=60).saturation is None


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_light_load_is_not_saturated(small, most, share):
    assert run(small, rate=share * most).saturation is None


def test_bursts_and_closed_loops_have_no_rate_to_saturate(small):
    burst, closed = run(small, arrival="burst"), run(small, concurrency=200)
    assert (burst.saturation, burst.state.word) == (None, "backlogged")
    assert (closed.saturation, closed.state.word) == (None, "stable")


def test_a_burst_that_fits_in_one_batch_leaves_no_backlog(small):
    assert run(small, arrival="burst", count=8).state.word == "stable"


@pytest.mark.parametrize("count", [20, 400])
def test_the_word_follows_the_capacity_that_is_told(small, count):
    """What one message calls the capacity is served at 0.97 of it, and never at 1.05."""
    capacity = run(small, rate=1e4, count=count).state.capacity
    below, above = (run(small, rate=share * capacity, count=count) for share in (0.97, 1.05))
    assert below.state.word in ("stable", "filling")
    assert above.state.word == "overloaded"
    assert above.state.capacity == pytest.approx(capacity)
    assert "requests come faster than they can be served" in above.steady.sentence


def test_the_capacity_does_not_depend_on_seed_or_count(small):
    drawn = {"input_lengths": "lognormal:300:0.9:1:1500", "output_lengths": "lognormal:30:0.9:1:300"}
    told = {run(small, rate=1e4, seed=seed, count=count, **drawn).state.capacity for seed, count in ((0, 20), (1, 300))}
    assert len(told) == 1


def test_a_few_requests_of_many_are_as_long_as_all(small):
    many = synthetic_workload(
        rate=1, count=5000, input_lengths="lognormal:300:1.2:1:1500", output_lengths="lognormal:30:0.9:1:300"
    )
    replica = small.replica()
    few = typical(replace(many, drawn=None), replica).requests
    assert len(few) == 1000
    for name in ("num_input", "num_output"):
        of_all, of_few = (np.mean([getattr(each, name) for each in some]) for some in (many.requests, few))
        assert of_few == pytest.approx(of_all, rel=0.01)


def test_a_full_cache_counts(small):
    """As many seats as ever, but blocks for five of them: the capacity is that of the cache."""
    replica = small.replica()
    workload = synthetic_workload(rate=5.0, count=200, input_lengths=300, output_lengths="uniform:10:40")
    assert full_rate(replace(replica, num_blocks=110), workload) < 0.8 * full_rate(replica, workload)


def test_a_trace_that_comes_too_fast_is_overloaded_but_its_numbers_are_real(small, most):
    drawn = synthetic_workload(rate=2 * most, count=400, input_lengths=300, output_lengths="uniform:10:40")
    trace = simulate(small, workload_from_requests(drawn.requests))
    assert trace.state.word == "overloaded"
    assert trace.saturation is None


def test_the_sentence_names_both_rates():
    sentence = State(OVERLOADED, offered=50.0, capacity=12.34).sentence
    assert "50 requests/s arrive but only about 12.3 requests/s can be served" in sentence
