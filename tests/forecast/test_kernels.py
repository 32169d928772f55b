"""One step, kernel by kernel."""

import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.serve.step import StepShape

SETTINGS = EngineSettings(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)


@pytest.fixture(scope="module")
def llama():
    return deploy("llama-3.1-8b", "h200-sxm", SETTINGS)


def test_shapes_in_words():
    assert prefill_shape(100, cached=20) == StepShape([100], [20], 1)
    assert decode_shape(3, 500) == StepShape([1, 1, 1], [500, 500, 500], 3)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
@pytest.mark.parametrize("shape", [decode_shape(33, 900), prefill_shape(2000), StepShape([1, 300], [50, 0], 2)])
def test_the_kernels_add_up_to_what_the_timer_says(model, shape):
    deployment = deploy(model, "h200-sxm", SETTINGS, predictor="roofline")
    cost, estimate = estimate_step(deployment, shape), deployment.timer()(shape)
    assert cost.gpu.seconds + cost.gap_seconds == pytest.approx(estimate.gpu_seconds[0], rel=1e-12)
    assert sum(kernel.seconds for kernel in cost.kernels) == pytest.approx(cost.gpu.seconds, rel=1e-12)
    assert cost.seconds == pytest.approx(max(estimate.gpu_seconds[0], estimate.host.total), rel=1e-12)
    assert cost.host_seconds == estimate.host.total


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
@pytest.mark.parametrize(
    "shape",
    [
        decode_shape(33, 900),
        StepShape([1] * 40, list(range(100, 4100, 100)), 40),
        prefill_shape(2000),
        StepShape([100, 700, 1200], [0, 64, 2500], 3),
        StepShape([1] * 20 + [300], [500] * 20 + [0], 21),
    ],
)
def test_learned_prices_looked_up_on_a_grid_are_close_to_them(model, shape):
    # Attention is interpolated between grid points and taken as a batch of equal sequences.
    deployment = deploy(model, "h200-sxm", SETTINGS)
    cost, estimate = estimate_step(deployment, shape), deployment.timer()(shape)
    assert estimate.gpu_seconds[0] == pytest.approx(cost.gpu.seconds, rel=0.06)


def test_a_decode_step_is_padded_for_its_graph(llama):
    cost = estimate_step(llama, decode_shape(33, 900))
    assert (cost.launch, cost.num_tokens, cost.padded_tokens) == ("full graph", 33, 40)


def test_a_long_prompt_is_not(llama):
    cost = estimate_step(llama, prefill_shape(2000))
    assert (cost.launch, cost.padded_tokens) == ("eager", 2000)


def test_no_kernel_beats_the_rate_that_limits_it(llama):
    two = deploy("llama-3.1-8b", "h200-sxm", SETTINGS, tensor_parallel_size=2)
    for deployment in (llama, two):
        for kernel in estimate_step(deployment, prefill_shape(2000)).kernels:
            assert 0 < kernel.achieved < kernel.limit


def test_rates_are_those_of_the_bound(llama):
    kernels = {kernel.name: kernel for kernel in estimate_step(llama, prefill_shape(2000)).kernels}
    assert (kernels["gate_up_proj"].unit, kernels["gate_up_proj"].limit) == ("FLOP/s", 989.4e12)
    assert (kernels["activation"].unit, kernels["activation"].limit) == ("B/s", 4.8e12)


def test_collectives_count_what_crosses_the_links():
    eight = deploy("llama-3.1-8b", "h200-sxm", tensor_parallel_size=8, predictor="roofline")
    reduce = next(kernel for kernel in estimate_step(eight, prefill_shape(8000)).kernels if kernel.name == "all_reduce")
    # 8,000 x 4,096 x 2 bytes, 2 x 7 / 8 of them over 450 GB/s of links: all but the launch floor of the time.
    assert reduce.limit == 450e9
    assert reduce.achieved == pytest.approx(450e9, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (decode_shape(0, 10), "at least one sequence"),
        (StepShape([1, 1], [10], 1), "2 sequences and 1 contexts"),
        (prefill_shape(0), "at least one new token a sequence"),
        (decode_shape(1, -1), "a context of 0 or more"),
        (StepShape([5], [0], 2), "num_sampled 2 must lie between 0 and the batch of 1"),
        (prefill_shape(2049), "a step of 2049 tokens is above max_num_batched_tokens 2048"),
        (decode_shape(65, 10), "a batch of 65 is above max_num_seqs 64"),
        (decode_shape(1, 4096), "a sequence of 4097 tokens is above max_model_len 4096"),
    ],
)
def test_steps_that_no_scheduler_plans_are_refused(llama, shape, sentence):
    with pytest.raises(InputError, match=sentence):
        estimate_step(llama, shape)
