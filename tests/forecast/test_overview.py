"""What a report shows is what the run did."""

from typing import Any

import numpy as np
import pytest

import infercast
from infercast.forecast.explain.overview import Overview, look_over
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.system import system_of
from infercast.serve.workload.synthetic import synthetic_workload

LENGTHS = {"input_lengths": "uniform:50:900", "output_lengths": "uniform:2:60"}


@pytest.fixture(scope="module")
def run() -> Any:
    workload = synthetic_workload(rate=20, count=80, prefix_length=160, **LENGTHS)
    return watch_run(system_of(infercast.deploy("llama-3.1-8b", "h200-sxm")), workload)


@pytest.fixture(scope="module")
def overview(run: Any) -> Overview:
    return look_over(run)


def test_watching_changes_nothing(run: Any) -> None:
    forecast = run.forecast
    plain = infercast.simulate(forecast.deployment, forecast.workload)
    assert (plain.ttft, plain.tpot, plain.duration) == (forecast.ttft, forecast.tpot, forecast.duration)


def test_every_request_is_in_a_histogram(overview: Overview) -> None:
    assert sum(overview.ttft.counts) == 80
    assert overview.tpot is not None
    assert sum(overview.tpot.counts) == 80
    assert overview.ttft.edges[0] < overview.forecast.ttft.p50 < overview.ttft.edges[-1]


def test_load_is_conserved(overview: Overview) -> None:
    load, forecast = overview.load, overview.forecast
    record = forecast.records[0]
    assert len(load.times) == len(load.running) <= 240
    assert load.width * len(load.times) == pytest.approx(forecast.duration)
    assert sum(load.output_tokens) * load.width == pytest.approx(int(record.num_output.sum()))
    in_system = np.sum(record.last_token - record.sent_at)  # Little's law: request seconds, counted in both ways
    assert (sum(load.running) + sum(load.waiting)) * load.width == pytest.approx(in_system)
    assert max(load.kv_usage) == pytest.approx(forecast.kv_usage.peak)


def test_the_slowest_are_explained_to_the_last_microsecond(overview: Overview) -> None:
    times = [each.ttft for each in overview.slowest]
    assert times == sorted(times, reverse=True)
    assert times[0] == overview.forecast.records[0].ttft.max()
    for each in overview.slowest:
        assert sum(each.parts.values()) == pytest.approx(each.ttft)


def test_no_kernel_is_above_the_roof(overview: Overview) -> None:
    assert [each.phase for each in overview.rooflines[0]] == ["prefill", "decode"]
    for roofline in overview.rooflines[0]:
        assert 0.5 < roofline.share <= 1
        assert {"gate_up_proj", "attention"} <= {point.name for point in roofline.points}
        for point in roofline.points:
            if point.family in ("gemm", "attention"):
                assert point.flops_per_second <= 1.001 * point.limit


def test_one_token_each_and_one_request() -> None:
    deployment = infercast.deploy("qwen3-0.6b", "h200-sxm")
    single = synthetic_workload(arrival="burst", count=1, input_lengths=20, output_lengths=1)
    overview = look_over(watch_run(system_of(deployment), single))
    assert overview.tpot is None
    assert len(overview.slowest) == 1
    assert sum(overview.ttft.counts) == 1


def test_several_engines_and_stages_are_shown_together() -> None:
    deployment = infercast.deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=2, pipeline_parallel_size=2)
    workload = synthetic_workload(rate=5, count=12, **LENGTHS)
    run = watch_run(system_of(deployment), workload)
    overview = look_over(run)
    parts = (
        sum(each.total for each in overview.breakdown.kernels)
        + overview.breakdown.host.total
        + overview.breakdown.idle_seconds
    )
    assert parts == pytest.approx(4 * run.forecast.duration)
    assert all(sum(each.parts.values()) == pytest.approx(each.ttft) for each in overview.slowest)
    assert sum(overview.ttft.counts) == 12
    tokens = sum(overview.load.output_tokens) * overview.load.width
    assert tokens == pytest.approx(sum(request.num_output for request in workload.requests))


def test_shares_of_latent_attention_agree_with_those_of_families() -> None:
    workload = synthetic_workload(rate=12, count=60, **LENGTHS)
    overview = look_over(watch_run(system_of(infercast.deploy("deepseek-v2-lite", "h200-sxm")), workload))
    prefill, decode = overview.rooflines[0]
    assert prefill.num_prompts >= 1
    assert prefill.prompt_tokens > 100
    assert (decode.num_prompts, decode.prompt_tokens) == (0, 0)
    for roofline, phase in zip(overview.rooflines[0], overview.forecast.phases, strict=True):
        whole = phase.gpu_seconds + phase.host_bound_seconds
        for family in phase.families:
            together = sum(point.share for point in roofline.points if point.family == family.family)
            assert together <= 1.0001 * family.seconds / whole
        shown = {point.name: point.share for point in roofline.points}
        experts = dict(next(family.kernels for family in phase.families if family.family == "moe"))["experts"]
        assert shown["experts"] == pytest.approx(experts / whole)
