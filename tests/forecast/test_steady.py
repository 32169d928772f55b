"""Runs without their ramp-up and drain."""

import numpy as np
import pytest

from infercast.errors import InputError, SaturatedError
from infercast.forecast import steady as steady_module
from infercast.forecast.deploy import deploy
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate
from infercast.serve.workload.synthetic import synthetic_workload


def run(*, steady: bool, rate: float = 20.0, count: int = 400) -> Forecast:
    load = synthetic_workload(rate=rate, count=count, input_lengths=200, output_lengths="uniform:20:200")
    return simulate(deploy("qwen3-0.6b", "h200-sxm"), load, steady=steady)


@pytest.fixture(scope="module")
def whole() -> Forecast:
    return run(steady=False)


@pytest.fixture(scope="module")
def part() -> Forecast:
    return run(steady=True)


def test_rates_are_those_between_ramp_up_and_drain(whole: Forecast, part: Forecast) -> None:
    steady, record = whole.steady, whole.records[0]
    assert steady.reached
    begin, end = (record.sent_at.min() + moment for moment in (steady.begin, steady.end))
    finished = np.count_nonzero((record.last_token > begin) & (record.last_token <= end))
    assert part.requests_per_second == pytest.approx(finished / (end - begin))
    assert part.output_tokens_per_second > whole.output_tokens_per_second


def test_joules_watts_and_rates_are_those_of_one_part(part: Forecast) -> None:
    energy = part.energy
    assert energy is not None
    assert energy.gpus * energy.mean_watts == pytest.approx(energy.joules_per_request * part.requests_per_second)
    assert energy.gpus * energy.mean_watts == pytest.approx(
        energy.joules_per_output_token * part.output_tokens_per_second
    )


@pytest.fixture(scope="module")
def own() -> Forecast:
    """A run that decides its own length."""
    return simulate("qwen3-0.6b", gpu="h200-sxm", rate=20, input_len=200, output_len="uniform:20:200")


def test_a_run_decides_its_own_length_and_serves_what_comes(own: Forecast) -> None:
    assert own.steady_only
    assert own.steady.stopped == "precise"
    assert own.state.word == "stable"
    assert own.requests_per_second == 20.0
    assert own.output_tokens_per_second == pytest.approx(20.0 * 110)
    assert own.headline.startswith("stable: ")


def test_another_seed_and_a_longer_run_say_the_same(own: Forecast) -> None:
    options = {"rate": 20, "input_len": 200, "output_len": "uniform:20:200"}
    other = simulate("qwen3-0.6b", gpu="h200-sxm", seed=7, **options)
    longer = simulate("qwen3-0.6b", gpu="h200-sxm", seed=8, num_requests=5000, steady=True, **options)
    for run in (other, longer):
        assert own.tpot is not None
        assert run.tpot is not None
        assert own.ttft.p50 == pytest.approx(run.ttft.p50, rel=0.03)
        assert own.tpot.p50 == pytest.approx(run.tpot.p50, rel=0.03)


def test_too_few_requests_for_a_steady_state_have_no_cost_and_no_odds() -> None:
    load = synthetic_workload(rate=5, count=60, input_lengths=200, output_lengths=4000)
    short = simulate(deploy("qwen3-0.6b", "h200-sxm"), load)
    assert short.state.word == "filling"
    assert short.headline.startswith("filling if the host is the default one, as is assumed without --host: ")
    assert short.cost is None
    verdict = short.promised("ttft_p99<10s").verdict
    assert verdict is not None
    assert verdict.odds is None
    assert not verdict.holds


def test_latencies_are_those_of_requests_sent_meanwhile(whole: Forecast, part: Forecast) -> None:
    record = whole.records[0]
    sent = record.sent_at - record.sent_at.min()
    kept = (sent >= whole.steady.begin) & (sent <= whole.steady.end)
    assert part.ttft.mean == pytest.approx(record.ttft[kept].mean())
    assert part.end_to_end.p50 == pytest.approx(np.median(record.end_to_end[kept]))


def test_so_many_requests_are_all_of_them(whole: Forecast) -> None:
    assert whole.steady.stopped == "asked"
    assert not whole.steady_only
    assert whole.requests_per_second == pytest.approx(400 / whole.duration)


def test_a_run_without_a_steady_state_is_refused() -> None:
    with pytest.raises(InputError, match=r"not reached: there are too few requests; about 200 requests would do"):
        run(steady=True, rate=5, count=60)


def test_an_overloaded_run_is_refused_for_its_overload() -> None:
    with pytest.raises(SaturatedError, match="overloaded"):
        run(steady=True, rate=1e5)


def test_a_closed_loop_has_a_steady_part_after_its_first_wave() -> None:
    load = synthetic_workload(concurrency=8, count=400, input_lengths=200, output_lengths="uniform:20:200")
    steady = simulate(deploy("qwen3-0.6b", "h200-sxm"), load).steady
    assert steady.reached


def test_several_engines() -> None:
    load = synthetic_workload(rate=30, count=300, input_lengths=200, output_lengths="uniform:20:100")
    fleet = simulate(deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=2), load, steady=True)
    assert fleet.steady_only
    assert fleet.requests_per_second == pytest.approx(30, rel=0.15)


def test_a_run_that_goes_on_stays_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_module, "PRECISION", 1e-4)
    monkeypatch.setattr(steady_module, "MOST_FOR_PRECISION", 1_700)
    forecast = simulate(deploy("qwen3-0.6b", "h200-sxm"), rate=5)
    assert len(forecast.workload.requests) == 1_700
    assert forecast.steady.stopped == "limit"
