"""One question along an axis."""

import math

import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.progress import time_budget
from infercast.forecast.simulate import simulate
from infercast.forecast.slo import attainment, parse_slo
from infercast.forecast.sweep import at_load, axis_of, find_intervals, parse_numbers, sweep
from infercast.serve.workload.synthetic import scaled, synthetic_workload, workload_from_requests

SLO = "ttft_p99<1s,tpot_p95<90ms"
SETTINGS = EngineSettings(max_model_len=4096, max_num_seqs=32)


def load(rate=2.0, count=120):
    return synthetic_workload(rate=rate, count=count, input_lengths="uniform:50:300", output_lengths="uniform:20:80")


@pytest.fixture(scope="module")
def found():
    return sweep("qwen2.5-7b", "l4", load(), rates=[8, 0.5, 2], slo=SLO, settings=SETTINGS, price=0.7)


def test_each_point_is_a_simulation_of_it_alone(found):
    deployment = deploy("qwen2.5-7b", "l4", SETTINGS)
    alone = simulate(deployment, load(rate=2.0))
    point = found.points[1]
    assert (point.label, point.number) == ("2", 2)
    assert point.forecast.ttft == alone.ttft
    assert point.forecast.tpot == alone.tpot
    assert point.attainment == attainment(alone.clients, parse_slo(SLO))


def test_points_come_in_order_with_goodput_and_cost(found):
    assert [point.label for point in found.points] == ["0.5", "2", "8"]
    for point in found.points:
        assert 0 <= point.goodput <= point.forecast.requests_per_second * 1.001
        assert point.per_hour == 0.7
        expected = 0.7 / 3600 / point.forecast.output_tokens_per_second * 1e6
        told = point.per_million_output_tokens
        assert told is None if point.is_overloaded else told == pytest.approx(expected)
    assert found.points[-1].is_overloaded


def test_the_knee_and_the_promise_lie_between_points(found):
    assert found.light_ttft == pytest.approx(found.points[0].forecast.ttft.p50, rel=0.3)
    assert 0 < found.capacity < math.inf
    for edge in (found.knee, found.promise):
        assert edge.reached
        assert 0.5 <= edge.value < 8
    assert not found.points[2].holds
    assert found.points[0].holds


def test_an_edge_that_is_not_reached_says_so():
    found = sweep("qwen2.5-7b", "l4", load(), rates=[0.2, 0.4], slo="ttft_p99<100s", settings=SETTINGS)
    assert (found.promise.value, found.promise.reached) == (0.4, False)
    never = sweep("qwen2.5-7b", "l4", load(), rates=[0.2], slo="ttft_p99<1us", settings=SETTINGS)
    assert (never.promise.value, never.promise.reached) == (None, True)


def test_clients_are_whole_numbers():
    found = sweep("qwen2.5-7b", "l4", load(), concurrencies=[1, 4], settings=SETTINGS)
    assert [point.forecast.workload.concurrency for point in found.points] == [1, 4]
    assert found.promise is None
    assert found.points[0].forecast.ttft.p50 < 1.5 * found.light_ttft


def test_a_setting_may_not_fit_and_says_so():
    found = sweep("llama-3.3-70b", "l4", load(), vary=("tensor_parallel_size", [1, 8]), quantization="fp8",
                  settings=SETTINGS)  # fmt: skip
    small, large = found.points
    assert "does not fit" in small.problem
    assert small.forecast is None
    assert large.forecast.gpus == 8
    assert found.knee is None
    assert found.price.per_hour > 0


def test_settings_change_one_thing():
    found = sweep("qwen2.5-7b", "l4", load(4.0), vary=("max_num_seqs", [2, 32]), settings=SETTINGS)
    few, many = (point.forecast for point in found.points)
    assert few.deployment.settings.max_num_seqs == 2
    assert many.ttft.p99 < few.ttft.p99


def test_other_gpus_have_other_prices():
    found = sweep("qwen2.5-0.5b", "l4", load(), vary=("gpu", ["l4", "h100-sxm"]))
    assert found.price is None
    assert found.points[0].per_hour < found.points[1].per_hour


def test_a_trace_is_scaled_and_may_be_sent_by_clients():
    trace = workload_from_requests(load().requests)
    assert at_load(trace, "rate", 5.0).requests == scaled(trace, rate=5.0).requests
    assert at_load(trace, "concurrency", 3).concurrency == 3
    with pytest.raises(InputError, match="rates have no meaning for clients"):
        at_load(workload_from_requests(load().requests, concurrency=2), "rate", 2.0)


def test_numbers_as_people_write_them():
    assert parse_numbers("1:40:4", "--rates") == (1.0, 14.0, 27.0, 40.0)
    assert parse_numbers("1,2.5", "--rates") == (1.0, 2.5)
    assert parse_numbers("1:4:7", "--concurrencies", whole=True) == (1.0, 2.0, 3.0, 4.0)
    for wrong in ("", "a", "1:2", "4:1:3", "1:2:1", "1:2:9999"):
        with pytest.raises(InputError, match="--rates must be FROM:TO:COUNT or numbers"):
            parse_numbers(wrong, "--rates")


def test_one_axis_only():
    with pytest.raises(InputError, match="a sweep goes along one axis"):
        axis_of([1.0], [2])
    with pytest.raises(InputError, match="a sweep goes along one axis"):
        axis_of()
    with pytest.raises(InputError, match="rate must be a positive number, not -1"):
        axis_of([-1])
    with pytest.raises(InputError, match="rate must be 1 to 200 different values"):
        axis_of([1, 1])


def test_intervals_of_rows_are_found_while_there_is_time():
    swept = sweep("qwen2.5-7b", "l4", load(), rates=[0.5, 2], settings=SETTINGS)
    rows = [point.forecast for point in swept.points]
    for row in rows:
        row._kept.pop("intervals", None)
    with time_budget(1e-9):
        assert not find_intervals(swept)
    assert not any(row.has_kept("intervals") for row in rows)
    assert find_intervals(swept)
    assert [row.has_kept("intervals") for row in rows] == [row.state.is_steady for row in rows]
