import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.predict.estimate import SOURCES
from infercast.serve import Request
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests

MODELS = ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"]


def run(model, workload, **options):
    return simulate(deploy(model, "h200-sxm", EngineSettings(max_model_len=16384, **options)), workload)


@pytest.fixture(scope="module", params=MODELS)
def forecast(request):
    workload = synthetic_workload(rate=10, count=30, input_lengths="uniform:10:3000", output_lengths="uniform:1:60")
    return run(request.param, workload)


def test_families_add_up_to_the_phase(forecast):
    assert [phase.name for phase in forecast.phases] == ["prefill", "decode"]
    for phase in forecast.phases:
        assert sum(family.seconds for family in phase.families) == pytest.approx(phase.gpu_seconds, rel=1e-9)
        assert sum(family.share for family in phase.families) == pytest.approx(1, rel=1e-9)


def test_kernels_add_up_to_their_family_largest_first(forecast):
    for family in (family for phase in forecast.phases for family in phase.families):
        seconds = [part for _, part in family.kernels]
        assert sum(seconds) == pytest.approx(family.seconds, rel=1e-12)
        assert seconds == sorted(seconds, reverse=True)


def test_families_are_named_once_with_their_bound(forecast):
    for phase in forecast.phases:
        names = [family.family for family in phase.families]
        assert len(set(names)) == len(names)
        assert all(family.bound and family.source in SOURCES for family in phase.families)


def test_a_phase_is_its_gpu_time_and_the_wait_for_the_host(forecast):
    for phase in forecast.phases:
        assert phase.seconds == pytest.approx(phase.gpu_seconds + phase.host_bound_seconds)


def test_every_token_is_in_a_phase(forecast):
    computed = sum(phase.tokens for phase in forecast.phases)
    # The last token of an answer is not computed again. Nothing is preempted or cached here.
    assert computed == sum(request.num_input + request.num_output - 1 for request in forecast.workload.requests)


def test_a_run_without_decoding_has_one_phase():
    forecast = run("llama-3.1-8b", workload_from_requests([Request(0.0, 100, 1)]))
    assert [phase.name for phase in forecast.phases] == ["prefill"]


def test_an_average_step_may_be_larger_than_any_planned_one():
    # Steps of 8,192 tokens of one prompt and 7,808 of two: two prompts of 5,333 tokens on average.
    forecast = run("llama-3.1-8b", workload_from_requests([Request(0.0, 10_000, 1), Request(0.0, 6_000, 1)]))
    (prefill,) = forecast.phases
    assert (prefill.steps, prefill.tokens) == (2, 16_000)
    assert prefill.families[0].bound == "tensor"


@pytest.mark.parametrize("stages", [2, 8])
def test_shares_of_a_pipeline_are_of_the_time_of_all_stages(stages):
    workload = synthetic_workload(concurrency=64, count=96, input_lengths=600, output_lengths=20)
    deployment = deploy("llama-3.1-8b", "h200-sxm", pipeline_parallel_size=stages, predictor="roofline")
    for phase in simulate(deployment, workload).phases:
        shares = [family.seconds / phase.whole for family in phase.families]
        assert sum(shares) + phase.host_bound_seconds / phase.whole == pytest.approx(1)
        assert phase.whole >= phase.gpu_seconds
        assert phase.waits_for == "host, other stages"
