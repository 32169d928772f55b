import pytest

from infercast.engine.settings import EngineSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.saturation import Saturation
from infercast.forecast.serving import simulate
from infercast.serve.workload import synthetic_workload


@pytest.fixture(scope="module")
def small():
    return deploy("qwen3-0.6b", "l4", EngineSettings(max_num_seqs=16, max_model_len=2048))


def run(deployment, **changes):
    options = {"count": 400, "input_lengths": 300, "output_lengths": "uniform:10:40", "rate": None, **changes}
    return simulate(deployment, synthetic_workload(**options))


@pytest.fixture(scope="module")
def most(small):
    """Requests a second when all of them are there from the start."""
    return run(small, arrival="burst").requests_per_second


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
    assert run(small, arrival="burst").saturation is None
    assert run(small, concurrency=200).saturation is None


def test_the_sentence_names_both_rates():
    sentence = Saturation(offered=50.0, capacity=12.34).sentence
    assert "50 requests/s arrive but only about 12.3 requests/s can be served" in sentence
