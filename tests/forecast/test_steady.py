"""Runs without their ramp-up and drain."""

import numpy as np
import pytest

from infercast.errors import InputError, SaturatedError
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


def test_latencies_are_those_of_requests_sent_meanwhile(whole: Forecast, part: Forecast) -> None:
    record = whole.records[0]
    kept = record.sent_at - record.sent_at.min() >= whole.steady.begin
    assert part.ttft.mean == pytest.approx(record.ttft[kept].mean())
    assert part.end_to_end.p50 == pytest.approx(np.median(record.end_to_end[kept]))


def test_the_whole_run_is_the_default(whole: Forecast) -> None:
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
