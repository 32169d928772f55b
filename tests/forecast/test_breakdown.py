"""Every microsecond of a run has a place: parts add up to the run, to each TTFT and to each TPOT."""

from functools import cache

import numpy as np
import pytest

import infercast
from infercast.forecast.explain.breakdown import Breakdown, explain
from infercast.forecast.result import Forecast
from infercast.serve import Request
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests

RUNS = {
    "open": ("llama-3.1-8b", {}, {"rate": 12, "count": 80, "input_lengths": "lognormal:700:0.9", "output_lengths": 40}),
    "idle": ("qwen3-0.6b", {}, {"rate": 0.5, "count": 12, "input_lengths": 300, "output_lengths": 30}),
    "full": (
        "llama-3.1-8b",
        {"gpu_memory_utilization": 0.45, "max_model_len": 4096, "max_num_seqs": 64},
        {"concurrency": 64, "count": 96, "input_lengths": 1500, "output_lengths": 900},
    ),
    "single tokens": ("qwen3-0.6b", {}, {"arrival": "burst", "count": 20, "input_lengths": 900, "output_lengths": 1}),
}


@cache
def run(name: str) -> tuple[Forecast, Breakdown]:
    model, settings, workload = RUNS[name]
    gpu = "l40s" if name == "full" else "h200-sxm"
    deployment = infercast.deploy(model, gpu, infercast.EngineSettings(**settings))
    found = explain(deployment, synthetic_workload(**workload))
    return found.forecast, found


@pytest.fixture(params=RUNS)
def explained(request: pytest.FixtureRequest) -> tuple[Forecast, Breakdown]:
    return run(request.param)


def test_parts_add_up_to_the_run(explained: tuple[Forecast, Breakdown]) -> None:
    forecast, breakdown = explained
    parts = sum(each.total for each in breakdown.kernels) + breakdown.host.total + breakdown.idle_seconds
    assert parts == pytest.approx(forecast.duration, rel=1e-9)
    assert min(part.total for part in (*breakdown.kernels, breakdown.host)) >= 0
    assert breakdown.idle_seconds >= 0


def test_kernels_are_those_of_the_phases(explained: tuple[Forecast, Breakdown]) -> None:
    forecast, breakdown = explained
    decode = sum(part.seconds["decode"] for part in breakdown.kernels)
    prompts = sum(part.seconds["prefill"] + part.seconds["mixed"] for part in breakdown.kernels)
    phases = {phase.name: phase.gpu_seconds for phase in forecast.phases}
    assert decode == pytest.approx(phases.get("decode", 0.0), rel=1e-9)
    assert prompts == pytest.approx(phases["prefill"], rel=1e-9)
    assert sum(breakdown.steps.values()) == sum(phase.steps for phase in forecast.phases)


def test_parts_add_up_for_each_request(explained: tuple[Forecast, Breakdown]) -> None:
    forecast, breakdown = explained
    first, later = breakdown.first_tokens, breakdown.later_tokens
    np.testing.assert_allclose(sum(first.parts.values()), forecast.records[0].ttft, rtol=1e-9)
    assert min(part.min() for part in first.parts.values()) > -1e-9
    if later is not None:
        np.testing.assert_allclose(sum(later.parts.values()), forecast.records[0].tpot, rtol=1e-9)
        assert min(part.min() for part in later.parts.values()) > -1e-9


def test_own_prompts_add_up_to_what_prompts_took(explained: tuple[Forecast, Breakdown]) -> None:
    forecast, breakdown = explained
    if forecast.num_preemptions:
        return  # prompts that are computed again after a first token are nobody's first token
    own = breakdown.first_tokens.parts["own prompt"].sum()
    prompt_steps = sum(part.seconds["prefill"] + part.seconds["mixed"] for part in breakdown.kernels)
    decoding_there = sum(part.seconds["mixed"] for part in breakdown.kernels)
    assert prompt_steps - decoding_there <= own * (1 + 1e-9)
    assert own <= prompt_steps * (1 + 1e-9)


def test_watching_changes_nothing(explained: tuple[Forecast, Breakdown]) -> None:
    forecast, _ = explained
    again = infercast.simulate(forecast.deployment, forecast.workload)
    assert again.records[0].first_token.tobytes() == forecast.records[0].first_token.tobytes()
    assert again.records[0].last_token.tobytes() == forecast.records[0].last_token.tobytes()


def test_runs_cover_what_they_are_meant_to() -> None:
    assert run("idle")[1].idle_seconds > 0
    assert run("full")[0].num_preemptions > 0
    assert run("single tokens")[1].later_tokens is None
    assert not run("single tokens")[1].composition


def test_composition_counts_every_later_token() -> None:
    forecast, breakdown = run("open")
    assert breakdown.composition
    tokens = sum(each.tokens for each in breakdown.composition)
    assert tokens == int((forecast.records[0].num_output - 1).sum())
    for each in breakdown.composition:
        assert sum(each.families.values()) == pytest.approx(each.seconds)
    mean = sum(each.seconds * each.tokens for each in breakdown.composition) / tokens
    assert mean == pytest.approx(forecast.records[0].tpot.mean(), rel=0.1)


LAYOUTS = {
    "stages": ("llama-3.1-8b", {"pipeline_parallel_size": 2}, 2),
    "replicas": ("llama-3.1-8b", {"data_parallel_size": 3}, 3),
    "stages of replicas": ("llama-3.1-8b", {"data_parallel_size": 2, "pipeline_parallel_size": 4}, 8),
    "shared experts": ("qwen3-30b-a3b", {"data_parallel_size": 2, "enable_expert_parallel": True}, 2),
    "idle replicas": ("qwen3-0.6b", {"data_parallel_size": 40}, 40),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_of_replicas_and_stages_add_up(name: str) -> None:
    model, sizes, side_by_side = LAYOUTS[name]
    deployment = infercast.deploy(model, "h200-sxm", **sizes)
    lengths = {"input_lengths": "lognormal:700:0.9", "output_lengths": "lognormal:30:0.5"}
    workload = synthetic_workload(rate=20, count=30, **lengths)
    breakdown = explain(deployment, workload)
    forecast = breakdown.forecast
    assert breakdown.side_by_side == side_by_side
    parts = sum(each.total for each in breakdown.kernels) + breakdown.host.total + breakdown.idle_seconds
    assert parts == pytest.approx(side_by_side * forecast.duration, rel=1e-9)
    assert min(part.total for part in (*breakdown.kernels, breakdown.host)) >= 0
    assert breakdown.idle_seconds >= 0
    first, later = breakdown.first_tokens, breakdown.later_tokens
    assert first.requests.tolist() == list(range(30))
    np.testing.assert_allclose(sum(first.parts.values()), first.total, rtol=1e-9)
    assert first.total.mean() == pytest.approx(forecast.ttft.mean)
    assert later is not None
    np.testing.assert_allclose(sum(later.parts.values()), later.total, rtol=1e-9)
    assert min(part.min() for parts in (first, later) for part in parts.parts.values()) > -1e-9
    assert (not breakdown.composition) == ("pipeline_parallel_size" in sizes)
    if breakdown.composition:
        tokens = sum(each.tokens for each in breakdown.composition)
        assert tokens == sum(request.num_output - 1 for request in workload.requests)


def test_replicas_that_share_experts_wait_for_each_other() -> None:
    sizes = {"data_parallel_size": 2, "enable_expert_parallel": True}
    deployment = infercast.deploy("qwen3-30b-a3b", "h200-sxm", **sizes)
    # One long prompt, and a few that decode beside it on the other replica.
    requests = [Request(0.0, 100, 200), Request(0.3, 8000, 2)]
    breakdown = explain(deployment, workload_from_requests(requests))
    waiting = [part for part in breakdown.kernels if part.name == "waits for other replicas"]
    assert waiting
    assert waiting[0].total > 0


def test_a_lone_request_in_a_pipeline_is_explained_by_its_kernels() -> None:
    deployment = infercast.deploy("llama-3.1-8b", "h200-sxm", pipeline_parallel_size=2, api_server=False)
    workload = synthetic_workload(rate=1, count=1, input_lengths=4000, output_lengths=20)
    breakdown = explain(deployment, workload)
    assert breakdown.first_tokens.parts["own prompt"][0] > 0.9 * breakdown.first_tokens.total[0]
    assert breakdown.later_tokens is not None
    assert breakdown.later_tokens.parts["decoding"][0] > 0.6 * breakdown.later_tokens.total[0]
