"""SGLang as the simulation sees it."""

import pytest

from infercast.engines.base import Deployment
from infercast.engines.sglang.settings import SglangSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.serve import PrefillFirstPolicy
from infercast.serve.workload.synthetic import synthetic_workload


def deployed(model: str = "qwen3-0.6b", tensor: int = 1, data: int = 1, **settings: object) -> Deployment:
    asked = SglangSettings(**settings)  # type: ignore[arg-type]
    sizes = {"tensor_parallel_size": tensor, "data_parallel_size": data}
    return deploy(model, "h100-sxm", asked, predictor="roofline", **sizes)  # type: ignore[arg-type]


def policy_of(deployment: Deployment) -> PrefillFirstPolicy:
    policy = deployment.replica(lambda *_: None).policy  # type: ignore[arg-type, return-value]
    assert isinstance(policy, PrefillFirstPolicy)
    return policy


def test_its_rules() -> None:
    policy = policy_of(deployed())
    assert (policy.chunked_prefill_size, policy.max_prefill_tokens, policy.order) == (8192, 16384, "arrival")
    assert policy.first_ratio == pytest.approx(0.7)
    assert policy.least_ratio == pytest.approx(0.098)
    assert policy.ratio_decay == pytest.approx((0.7 - 0.098) / 600)
    assert not policy.mixed_chunk


def test_rules_that_were_asked_for() -> None:
    policy = policy_of(deployed(schedule_policy="lpm", enable_mixed_chunk=True, schedule_conservativeness=2.0))
    assert (policy.order, policy.mixed_chunk, policy.first_ratio) == ("longest_match", True, 1.0)
    assert policy_of(deployed(schedule_policy="lpm", disable_radix_cache=True)).order == "arrival"
    assert policy_of(deployed(chunked_prefill_size=-1)).chunked_prefill_size is None


def test_prompts_are_tried_in_every_step_where_windows_have_a_pool() -> None:
    assert policy_of(deployed("gpt-oss-20b")).tries_always
    assert not policy_of(deployed("gpt-oss-20b", disable_hybrid_swa_memory=True)).tries_always


def test_groups_are_less_careful() -> None:
    groups = deployed("qwen3-30b-a3b", 2, 2, enable_dp_attention=True)
    assert policy_of(groups).first_ratio == pytest.approx(0.21)
    assert groups.shares_experts
    assert not deployed("qwen3-30b-a3b", 1, 2).shares_experts


def test_overlap() -> None:
    assert deployed().replica(lambda *_: None).steps_under_way == 2  # type: ignore[arg-type, return-value]
    assert deployed(disable_overlap_schedule=True).replica(lambda *_: None).steps_under_way == 1  # type: ignore[arg-type, return-value]


def test_prompts_of_a_step() -> None:
    given = {"arrival": "burst", "count": 8, "input_lengths": 100, "output_lengths": 2}
    few, all_at_once = (
        simulate(deployed(prefill_max_requests=most), synthetic_workload(**given))  # type: ignore[arg-type]
        for most in (2, None)
    )
    assert few.ttft.p99 > 1.5 * all_at_once.ttft.p99  # four steps of prompts, not one


def test_declared_answers_keep_others_out() -> None:
    deployment = deployed(max_total_tokens=20_000)
    given = {"concurrency": 64, "count": 64, "input_lengths": 100, "output_lengths": 20}
    plain = simulate(deployment, synthetic_workload(**given))  # type: ignore[arg-type]
    declared = simulate(deployment, synthetic_workload(**given, declared_length=4096))  # type: ignore[arg-type]
    assert plain.running.peak == 64
    assert declared.running.peak < 20
