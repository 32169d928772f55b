"""Intervals follow from what is uncertain, and from nothing else."""

from dataclasses import replace
from math import exp, hypot, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import infercast
from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast import intervals as module
from infercast.forecast import uncertainty as sources
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import Intervals, forecast_intervals, half_widths, longer, slowed
from infercast.forecast.kernels import decode_shape, estimate_shape, estimate_step, prefill_shape
from infercast.forecast.simulate import simulate
from infercast.forecast.slo import NAMES, Percentiles
from infercast.forecast.uncertainty import (
    EIGHTY,
    HOST_SPREAD,
    SLOWER_ELSEWHERE,
    Uncertainty,
    chance_of,
    results_of,
    spread_of,
    step_uncertainty,
    uncertainty_of,
)
from infercast.predict.estimate import SOURCES
from infercast.serve import simulate as simulate_replica
from infercast.serve.workload.synthetic import synthetic_workload


@pytest.fixture(scope="module")
def forecast() -> Any:
    workload = synthetic_workload(rate=8, count=60, input_lengths="uniform:50:900", output_lengths="uniform:2:60")
    return simulate(deploy("llama-3.1-8b", "h200-sxm", engine="vllm@0.25"), workload)


@pytest.fixture(scope="module")
def around(forecast: Any) -> Intervals:
    return forecast_intervals(forecast)


def test_every_number_lies_in_its_interval(forecast: Any, around: Intervals) -> None:
    for latency in ("ttft", "tpot", "inter_token", "end_to_end"):
        values, band = getattr(forecast, latency), getattr(around, latency)
        for name in NAMES:
            low, value, high = getattr(band.low, name), getattr(values, name), getattr(band.high, name)
            assert 0 < low <= value <= high < 3 * low
    for rate in ("output_tokens_per_second", "requests_per_second"):
        low, high = getattr(around, rate)
        assert low < getattr(forecast, rate) < high


def test_the_same_every_time_and_the_forecast_is_left_alone(forecast: Any, around: Intervals) -> None:
    before = forecast.records[0].ttft.copy()
    assert forecast_intervals(forecast) == around
    assert np.array_equal(before, forecast.records[0].ttft)


def test_without_uncertainty_there_is_no_width(forecast: Any) -> None:
    nothing = Uncertainty(0.0, 0.0, 0.0)
    no_luck = np.zeros(len(forecast.workload.requests))
    widths = half_widths(
        forecast.system.pools[0].replica,
        nothing,
        lambda engine: simulate_replica(engine, forecast.workload).ttft,
        no_luck,
    )
    assert not widths.combined.any()


def test_chance_is_for_percentiles_of_few() -> None:
    few, many = np.geomspace(1.0, 100.0, 101), np.geomspace(1.0, 100.0, 10_001)
    assert chance_of(few, 0.5) == pytest.approx(log(100) * EIGHTY * 0.5 / 101**0.5, rel=0.1)
    assert chance_of(many, 0.5) == pytest.approx(log(100) * EIGHTY * 0.5 / 10_001**0.5, rel=0.02)
    assert chance_of(np.ones(7), 0.99) == 0.0
    assert chance_of(np.array([2.0]), 0.9) == 0.0


def test_a_gpu_that_is_never_waited_for_passes_its_error_on() -> None:
    """One request decodes on a large model: every step takes what its kernels take."""
    workload = synthetic_workload(arrival="burst", count=1, input_lengths=100, output_lengths=50)
    alone = simulate(deploy("llama-3.1-8b", "h200-sxm"), workload)
    about = uncertainty_of(alone.deployment, alone.records[0])
    replica = alone.system.pools[0].replica
    by_gpu, by_host, *_ = half_widths(
        replica, about, lambda engine: simulate_replica(engine, workload).tpot, np.zeros(1)
    )
    assert by_gpu[0] == pytest.approx(about.decodes, rel=0.02)
    assert abs(by_host[0]) < 0.01


def test_the_host_decides_the_first_token_of_a_short_prompt() -> None:
    workload = synthetic_workload(arrival="burst", count=1, input_lengths=20, output_lengths=2)
    alone = simulate(deploy("qwen3-0.6b", "h200-sxm"), workload)
    about = uncertainty_of(alone.deployment, alone.records[0])
    replica = alone.system.pools[0].replica
    by_gpu, by_host, *_ = half_widths(
        replica, about, lambda engine: simulate_replica(engine, workload).ttft, np.zeros(1)
    )
    assert abs(by_gpu[0]) < 1e-9
    assert by_host[0] == pytest.approx(about.host, rel=0.02)


def test_a_gpu_that_nobody_measured_is_less_certain() -> None:
    settings = EngineSettings(max_model_len=8192)
    steps = [
        estimate_shape(deploy("llama-3.1-8b", gpu, settings), decode_shape(32, 1000)) for gpu in ("h200-sxm", "a40")
    ]
    known, unknown = map(step_uncertainty, steps)
    assert 2 * known < unknown


def test_errors_of_kernels_cancel_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    step = estimate_shape(deploy("llama-3.1-8b", "h200-sxm"), decode_shape(8, 500))
    widths = []
    for common in (0.0, 0.1, 1.0):
        monkeypatch.setattr(sources, "COMMON", dict.fromkeys(SOURCES, common))
        widths.append(step_uncertainty(step))
    assert widths == sorted(widths)
    whole = step.gpu
    assert widths[-1] == pytest.approx(log(float(whole.high) / float(whole.low)) / 2, rel=0.1)


def test_every_source_says_what_its_errors_have_in_common() -> None:
    assert set(sources.COMMON) == set(SOURCES)


def test_slowed_times_are_so_many_times_longer(forecast: Any) -> None:
    twice = slowed(forecast.system.pools[0].replica, prompts=2.0, decodes=3.0, host=5.0)
    shape = decode_shape(4, 100)
    plain, longer = forecast.system.pools[0].replica.timer(shape), twice.timer(shape)
    assert longer.gpu_seconds == [3.0 * seconds for seconds in plain.gpu_seconds]
    assert longer.host.launch == 5.0 * plain.host.launch
    assert twice.token_path_seconds == 5.0 * forecast.system.pools[0].replica.token_path_seconds


def test_a_long_run_is_judged_by_its_first_requests(forecast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("LEAST_REQUESTS", "MOST_REQUESTS"):
        monkeypatch.setattr(module, bound, 20)
    replica, own = forecast.system.pools[0].replica, forecast.clients
    short = replace(forecast.workload, requests=forecast.workload.requests[:20])
    about = uncertainty_of(forecast.deployment, forecast.records[0])
    stayed = np.percentile(own.end_to_end[:20], 90)
    counted = np.count_nonzero(own.sent_at[:20] <= own.sent_at[19] - stayed)
    assert 10 < counted < 20
    slower = [simulate_replica(longer(replica, about, **{end: True}), short).ttft for end in ("gpu", "host")]
    expected = hypot(*(log(each[:counted].mean() / own.ttft[:counted].mean()) for each in slower))
    given = replace(forecast, workload=replace(forecast.workload, drawn=None))
    slow = 1 + SLOWER_ELSEWHERE / EIGHTY
    assert forecast_intervals(given).ttft.high.mean == pytest.approx(forecast.ttft.mean * exp(slow * expected))


def test_slower_runs_are_held_against_the_run_itself(forecast: Any) -> None:
    about, no_luck = [uncertainty_of(forecast.deployment, forecast.records[0])], np.zeros(4 * len(NAMES) + 1)
    widths = [
        module.system_half_widths(forecast.system, forecast.workload, about, results_of, no_luck, served)
        for served in (None, forecast.clients)
    ]
    assert np.array_equal(widths[0].combined, widths[1].combined)


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    workload = synthetic_workload(rate=5, count=3, input_lengths=10, output_lengths=1)
    around = forecast_intervals(simulate(deploy("qwen3-0.6b", "h200-sxm"), workload))
    assert around.tpot is None
    assert around.ttft.low.p50 < around.ttft.high.p50


def test_several_engines() -> None:
    deployment = deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=2)
    workload = synthetic_workload(rate=20, count=30, input_lengths=200, output_lengths=20)
    fleet = simulate(deployment, workload)
    around = forecast_intervals(fleet)
    assert around.ttft.low.p50 < fleet.ttft.p50 < around.ttft.high.p50


def test_wires_between_nodes_are_less_certain() -> None:
    ends = []
    for network, size in ((None, 8), ("infiniband-ndr", 16)):
        deployment = infercast.deploy("llama-3.3-70b", "h100-sxm", tensor_parallel_size=size, network=network)
        step = estimate_step(deployment, prefill_shape(1024))
        ends.append(step_uncertainty(step, across_nodes=deployment.crosses_nodes))
    assert ends[1] > ends[0] + 0.05


def test_host_times_seen_in_one_other_model_are_less_certain() -> None:
    spreads = []
    for name in ("llama-3.1-8b", "deepseek-v2-lite", "deepseek-v2"):
        deployment = infercast.deploy(name, "h200-sxm", tensor_parallel_size=8 if name == "deepseek-v2" else 1)
        spreads.append(spread_of(deployment).host)
    assert spreads[0] == spreads[1] == HOST_SPREAD
    assert spreads[2] > 1.2 * HOST_SPREAD


def test_nothing_is_faster_than_a_bound() -> None:
    deployment = deploy("qwen2.5-0.5b", "h200-sxm", predictor="roofline")
    forecast = simulate(deployment, synthetic_workload(rate=4, count=20, input_lengths=500, output_lengths=20))
    intervals = forecast_intervals(forecast)
    assert forecast.kind == "bound"
    assert intervals.tpot.low.mean == pytest.approx(forecast.tpot.mean)
    assert intervals.tpot.high.mean > forecast.tpot.mean
    assert intervals.output_tokens_per_second[1] == pytest.approx(forecast.output_tokens_per_second)


def test_what_is_typical_gains_no_more_than_the_hardware_allows() -> None:
    """A decode step that reads 70B weights cannot be shorter than reading them."""
    deployment = deploy("llama-3.3-70b-fp8", "mi300x")
    forecast = simulate(deployment, synthetic_workload(rate=1, count=20, input_lengths=500, output_lengths=50))
    intervals = forecast_intervals(forecast)
    reading = deployment.memory.weights / deployment.gpu.dram_bandwidth
    assert forecast.kind == "estimate"
    assert forecast.source == "published"
    assert reading < intervals.tpot.low.mean < forecast.tpot.mean < intervals.tpot.high.mean


def crossing(p50: float, p99: float) -> Intervals:
    """Of a forecast whose p99 is told apart better or worse than its p50."""
    values = Percentiles(10.0, 9.0, 9.2, 9.4, 10.0)
    outcome = SimpleNamespace(
        ttft=values,
        tpot=values,
        inter_token=values,
        end_to_end=values,
        output_tokens_per_second=5.0,
        requests_per_second=1.0,
    )
    widths = np.array([*[0.1, p50, 0.2, 0.3, p99] * 4, 0.1])
    return module.around(outcome, widths)  # type: ignore[arg-type]


@pytest.mark.parametrize(("p50", "p99"), [(0.1, 0.9), (0.9, 0.1)])
def test_ends_grow_with_the_percentile_and_hold_it(p50: float, p99: float) -> None:
    """What most requests stay above, fewer do; if nine in ten are below a time, so is half of them."""
    band = crossing(p50, p99).ttft
    for end in band:
        assert list(end.values[1:]) == sorted(end.values[1:])
    assert all(
        low <= value <= high
        for low, value, high in zip(band.low.values, (10.0, 9.0, 9.2, 9.4, 10.0), band.high.values, strict=True)
    )


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_no_time_is_below_physics(gpu: str) -> None:
    """Whatever may be off, a decode step reads all weights but the table of embeddings."""
    deployment = deploy("llama-3.1-8b", gpu)
    run = simulate(deployment, synthetic_workload(rate=2, count=40, input_lengths=500, output_lengths=40))
    gains = sources.gains_of(deployment, run.records[0])
    table = 2 * deployment.model.vocabulary * deployment.model.hidden
    reading = (deployment.memory.weights - table) / deployment.gpu.dram_bandwidth
    wide = module.around(run, np.full(21, 2.0), gains)
    assert wide.tpot is not None
    assert 0.99 * reading < wide.tpot.low.p50 < run.tpot.p50  # of the average step
    assert 0 < gains.prompts < 3


def test_parts_are_the_whole_and_evidence_narrows_it(forecast: Any, around: Intervals) -> None:
    for name, rests in around.rests.items():
        parts = np.arcsinh([rests.kernels, rests.host, rests.release, rests.luck])
        assert np.sqrt(np.square(parts).sum()) == pytest.approx(np.arcsinh(rests.whole))
        band = getattr(around, name)
        assert log(band.high.p50 / band.low.p50) / 2 == pytest.approx(np.arcsinh(rests.whole))
        assert rests.luck < rests.calibrated < rests.whole
        assert rests.probed < rests.whole
        assert rests.release == 0.0  # 0.25 was measured


def test_a_host_that_was_measured_narrows_as_said() -> None:
    workload = synthetic_workload(rate=8, count=60, input_lengths=300, output_lengths=20)
    plain = deploy("qwen3-0.6b", "h200-sxm")
    known = replace(plain, host=replace(plain.host, is_measured=True))
    before, after = (forecast_intervals(simulate(each, workload)) for each in (plain, known))
    assert before.rests["ttft"].host > 3 * before.rests["ttft"].kernels
    assert after.rests["ttft"].whole == pytest.approx(before.rests["ttft"].probed, rel=0.15)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm"])
@pytest.mark.parametrize(("model", "size"), [("llama-3.1-8b", 1), ("gpt-oss-120b", 2)])
def test_the_default_release_is_known_within_an_eighth(gpu: str, model: str, size: int) -> None:
    """Apart from luck and queues: what one step of decoding may be off."""
    deployment = deploy(model, gpu, tensor_parallel_size=size)
    run = simulate(deployment, synthetic_workload(rate=1, count=20, input_lengths=500, output_lengths=40))
    most = 1.12 if model == "llama-3.1-8b" else 1.15  # kernels that choose gpt-oss's experts are new
    assert uncertainty_of(deployment, run.records[0]).decodes < log(most)
