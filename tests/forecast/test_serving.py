"""A simulated run, summed up."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.forecast.slo import NAMES, percentiles
from infercast.serve import Request
from infercast.serve import simulate as simulate_replica
from infercast.serve.step import StepShape
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests


@pytest.fixture(scope="module")
def llama():
    return deploy("llama-3.1-8b", "h200-sxm", EngineSettings(max_model_len=16384))


@pytest.fixture(scope="module")
def forecast(llama):
    workload = synthetic_workload(
        rate=8, count=80, input_lengths="lognormal:600:0.8", output_lengths="lognormal:60:0.8", prefix_length=64
    )
    return simulate(llama, workload)


def test_percentiles_are_in_order(forecast):
    for latency in (forecast.ttft, forecast.tpot, forecast.inter_token, forecast.end_to_end):
        assert 0 < latency.p50 <= latency.p90 <= latency.p95 <= latency.p99 < math.inf
        assert latency.mean > 0


def test_a_request_is_its_first_token_and_the_rest(forecast):
    record, several = forecast.records[0], forecast.records[0].num_output > 1
    rest = record.tpot * (record.num_output[several] - 1)
    assert record.end_to_end[several] == pytest.approx(record.ttft[several] + rest)
    assert np.all(record.end_to_end >= record.ttft)


def test_every_gap_between_tokens_is_counted(forecast):
    gaps, counts = forecast.records[0].gaps
    assert counts.sum() == (forecast.records[0].num_output - 1).sum()
    assert (gaps * counts).sum() == pytest.approx(
        (forecast.records[0].last_token - forecast.records[0].first_token).sum()
    )


def test_rates_are_totals_over_the_duration(forecast):
    tokens = sum(request.num_output for request in forecast.workload.requests)
    assert forecast.output_tokens_per_second == pytest.approx(tokens / forecast.duration)
    assert forecast.requests_per_second == pytest.approx(80 / forecast.duration)


def test_levels_are_within_what_there_is(forecast, llama):
    assert 0 < forecast.running.mean <= forecast.running.peak <= llama.settings.max_num_seqs
    assert 0 < forecast.kv_usage.mean <= forecast.kv_usage.peak <= 1
    assert 0 <= forecast.waiting.mean <= forecast.waiting.peak
    assert 0 < forecast.prefix_hit_rate < 1


def test_an_idle_request_is_path_steps_and_path(llama):
    forecast = simulate(llama, workload_from_requests([Request(0.0, 4000, 2)]))
    timer, host = llama.timer(), llama.host
    prefill, decode = timer(StepShape([4000], [0], 1)), timer(StepShape([1], [4000], 1))
    way_in = host.request_path + 4000 * host.request_token + host.server_work + host.wake_up
    way_out = host.token_path + host.token_turn + host.stream_part
    gpu_seconds = prefill.host.plan + prefill.host.prepare + prefill.gpu_seconds[0] + prefill.host.process
    assert forecast.ttft.p50 == pytest.approx(way_in + gpu_seconds + way_out)
    assert forecast.tpot.p50 == pytest.approx(decode.gpu_seconds[0])


def test_a_short_idle_prompt_waits_for_two_steps_to_be_launched(llama):
    engine = replace(llama.replica(), launch_spread=0.0)
    record = simulate_replica(engine, workload_from_requests([Request(0.0, 100, 2)]))
    host, timer = llama.host, llama.timer()
    first, second = timer(StepShape([100], [0], 1)).host, timer(StepShape([1], [100], 1)).host
    launched = first.plan + first.prepare + first.launch + first.wake + second.plan + second.prepare + second.launch
    way_in = host.request_path + 100 * host.request_token + host.server_work + host.wake_up
    expected = way_in + launched + first.process + host.token_path + host.token_turn + host.stream_part
    assert record.ttft[0] == pytest.approx(expected)


def test_single_tokens_have_no_gaps(llama):
    forecast = simulate(llama, workload_from_requests([Request(0.0, 100, 1)]))
    assert forecast.tpot is None
    assert forecast.inter_token is None
    assert forecast.ttft == forecast.end_to_end


def test_the_engine_keeps_one_block_aside(llama):
    assert llama.replica().num_blocks == llama.memory.num_blocks - 1


@pytest.mark.parametrize(("asynchronous", "steps"), [(True, 2), (False, 1)])
def test_asynchronous_scheduling_keeps_two_steps_under_way(asynchronous, steps):
    deployment = deploy("qwen3-0.6b", "h200-sxm", EngineSettings(async_scheduling=asynchronous))
    assert deployment.replica().steps_under_way == steps


# Few distinct values, as the gaps of a run are, with repeats among them.
weighted = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=12)


@given(weighted)
def test_weighted_percentiles_equal_those_of_the_values_written_out(pairs):
    values, counts = np.array([value for value, _ in pairs], float), np.array([count for _, count in pairs])
    together, written_out = percentiles(values, counts), percentiles(np.repeat(values, counts))
    for name in NAMES:
        assert getattr(together, name) == pytest.approx(getattr(written_out, name), rel=1e-12)


def test_weighted_percentiles_by_hand():
    # 1, 1, 1, 3: the median lies between the second and third, p90 at 0.7 of the way from 1 to 3.
    latency = percentiles(np.array([3.0, 1.0]), np.array([1, 3]))
    assert (latency.mean, latency.p50) == (1.5, 1.0)
    assert latency.p90 == pytest.approx(1 + 2 * 0.7)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b", "deepseek-v2-lite", "qwen3-30b-a3b"])
@pytest.mark.parametrize("predictor", ["learned", "roofline"])
def test_jumping_the_clock_changes_no_bit_of_a_real_deployment(model, predictor):
    deployment = deploy(model, "h200-sxm", EngineSettings(max_num_batched_tokens=1024), predictor=predictor)
    workload = synthetic_workload(
        rate=20, count=40, input_lengths="lognormal:400:1.2:1:4000", output_lengths="uniform:1:90", prefix_length=100
    )
    replica = deployment.replica()
    stepped, jumped = (simulate_replica(replica, workload, jump=jump) for jump in (False, True))
    for name in ("started_at", "first_token", "last_token", "num_cached"):
        assert getattr(stepped, name).tobytes() == getattr(jumped, name).tobytes()
    for name, totals in stepped.phases.items():
        other = jumped.phases[name]
        assert (totals.seconds, totals.varying, totals.rows) == (other.seconds, other.varying, other.rows)


def test_layers_of_different_widths_hold_as_much_as_their_blocks_do():
    settings = EngineSettings(
        max_num_batched_tokens=512, max_num_seqs=64, max_model_len=8192, num_gpu_blocks_override=3300
    )
    deployment = deploy("gemma-4-26b-a4b", "h200-sxm", settings, predictor="roofline")
    replica = deployment.replica()
    # A window of 1,024 in five groups of blocks of 16, and one group of blocks of 32 that keeps all tokens.
    assert replica.kv_shape.most_blocks(8100, chunk=1) == 5 * 65 + 254
    record = simulate_replica(replica, workload_from_requests([Request(0.0, 8000, 100)] * 6))
    # Four that decode take 2,336 blocks and leave room for the 740 of a fifth prompt, five do not for a sixth.
    assert record.running.peak == 5
