"""The step timer against the same kernels timed one at a time."""

import gc
import weakref

import numpy as np
import pytest

from infercast import deploy as deploy_named
from infercast.engines.base import build_deployment, engine_named
from infercast.engines.tables import in_parts
from infercast.engines.vllm.settings import EngineSettings
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.models.read import read_model
from infercast.ops import Call, Collective
from infercast.predict.board_power import THROTTLED, throttle, throttle_decoding, weight_of
from infercast.predict.roofline import Roofline
from infercast.serve.step import StepShape

MODELS = {
    "dense": "llama-3.1-8b",
    "experts": "qwen3-30b-a3b",
    "latent": "deepseek-v2-lite",
    "windowed": "gpt-oss-20b",
    "two widths of attention": "gemma-4-31b",
}
SETTINGS = EngineSettings(max_num_batched_tokens=1024, max_num_seqs=64, max_model_len=8192)
SHAPES = {
    "decode": StepShape([1] * 5, [700, 30, 8000, 1, 128], 5),
    "prefill in piecewise graphs": StepShape([300], [0], 1),
    "prefill without graphs": StepShape([1000], [500], 1),
    "part of a prompt": StepShape([1000], [0], 0),
    "mixed": StepShape([1, 1, 200, 40], [700, 30, 0, 64], 4),
}


def deployment_of(model, tensor=1, settings=SETTINGS):
    layout = ParallelLayout(tensor)
    return build_deployment(read_model(model), load_gpu("h200-sxm"), settings, layout, Roofline())


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def deployment(request):
    return deployment_of(request.param)


@pytest.fixture(scope="module")
def timer(deployment):
    return deployment.timer()


def kernel_seconds(timer, shape):
    """Seconds of each kernel of one step."""
    estimate = timer(shape)
    varying = [kernel[0] for kernel in estimate.varying]
    return timer.kernel_seconds([{row: 1} for row in estimate.rows], varying, {estimate.rows[0]: estimate.slowed})


def priced_apart(deployment, shape):
    """GPU seconds of a step: every kernel lowered and timed by itself."""
    model, layout = deployment.model, deployment.layout
    _, padded = deployment.graphs.launch(shape.num_tokens, shape.is_decode)
    queries = np.array(shape.new_tokens)
    by_tokens = token_calls(model, layout, padded)
    calls = [
        *by_tokens,
        *attention_calls(model, layout, queries, queries + np.array(shape.computed)),
        *head_calls(model, layout, max(1, shape.num_sampled)),
    ]
    alone = {id(call): deployment.predictor.estimate(call.op, deployment.gpu).seconds for call in calls}
    seconds = {id(call): call.count * float(np.ravel(call.slower * alone[id(call)])[0]) for call in calls}
    slower = throttle_decoding if shape.is_decode else throttle
    felt = by_tokens if shape.is_decode else calls
    throttled = [call for call in felt if call.op.family in THROTTLED]
    products = (call for call in by_tokens if call.op.family in THROTTLED)
    operations = sum(call.count * call.op.flops * weight_of(call.op.compute_dtype) for call in products)
    gaps = deployment.host_model.gap_seconds
    together = sum(seconds[id(call)] for call in felt) + (0.0 if shape.is_decode else gaps)
    longer = slower(deployment.gpu, operations, together) - 1
    return sum(seconds.values()) + gaps + longer * sum(seconds[id(call)] for call in throttled)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_step_is_the_sum_of_its_kernels(deployment, timer, shape):
    estimate = timer(shape)
    assert estimate.gpu_seconds[0] == pytest.approx(priced_apart(deployment, shape), rel=1e-12)
    assert kernel_seconds(timer, shape).shape == (len(timer.kernels),)
    assert kernel_seconds(timer, shape).sum() == pytest.approx(estimate.gpu_seconds[0], rel=1e-12)


def test_several_steps_equal_them_one_by_one_to_the_bit(timer):
    shape = SHAPES["decode"]
    together = timer(shape, steps=20)
    for step in range(20):
        alone = timer(StepShape(shape.new_tokens, [context + step for context in shape.computed], 5))
        assert together.host == alone.host
        assert together.gpu_seconds[step] == alone.gpu_seconds[0]
        assert [kernel[step] for kernel in together.varying] == [kernel[0] for kernel in alone.varying]
        assert together.rows == alone.rows


def test_every_size_within_the_settings_has_an_estimate(timer):
    sizes = [StepShape([tokens], [0], 1) for tokens in range(2, 1025)]
    sizes += [StepShape([1] * batch, [100] * batch, batch) for batch in range(1, 65)]
    seconds = np.array([timer(shape).gpu_seconds[0] for shape in sizes])
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds > 0)


def test_kernels_of_the_other_kind_of_step_take_no_time():
    timer = deployment_of("deepseek-v2-lite").timer()
    names = [name for name, _ in timer.kernels]
    decode = dict(zip(names, kernel_seconds(timer, SHAPES["decode"]), strict=True))
    prefill = dict(zip(names, kernel_seconds(timer, SHAPES["prefill without graphs"]), strict=True))
    assert (decode["attention_prompt"], decode["kv_b_proj"], prefill["attention_latent"]) == (0, 0, 0)
    assert min(decode["attention_latent"], decode["q_absorb"], prefill["attention_prompt"], prefill["kv_b_proj"]) > 0


def dense_seconds(timer, batch):
    """Seconds of each kernel that depends on the padded token count alone."""
    kernels = kernel_seconds(timer, StepShape([1] * batch, [500] * batch, batch))
    apart = ("attention", "lm_head", "sampling")
    return [seconds for (name, _), seconds in zip(timer.kernels, kernels, strict=True) if name not in apart]


def test_33_sequences_cost_the_dense_kernels_of_40():
    timer = deployment_of("llama-3.1-8b").timer()
    assert dense_seconds(timer, 33) == dense_seconds(timer, 40)
    assert dense_seconds(timer, 33) != dense_seconds(timer, 32)


def test_eager_engines_do_not_pad():
    settings = EngineSettings(max_num_batched_tokens=1024, max_num_seqs=64, max_model_len=8192, enforce_eager=True)
    timer = deployment_of("llama-3.1-8b", settings=settings).timer()
    assert dense_seconds(timer, 33) != dense_seconds(timer, 40)


def test_a_small_model_waits_for_its_host():
    estimate = deployment_of("qwen3-0.6b").timer()(StepShape([1], [100], 1))
    assert estimate.gpu_seconds[0] < estimate.host.total


def test_a_large_model_hides_its_host():
    estimate = deployment_of("llama-3.1-8b").timer()(StepShape([1], [100], 1))
    assert estimate.gpu_seconds[0] > estimate.host.total


def test_the_timer_and_the_deployment_agree_on_the_host(deployment, timer):
    for shape in SHAPES.values():
        assert timer(shape).host == deployment.host_cost(shape)


def test_two_gpus_share_the_work_and_talk():
    one, two = (deployment_of("llama-3.1-8b", tensor).timer() for tensor in (1, 2))
    shape = StepShape([1000], [0], 1)
    assert two(shape).gpu_seconds[0] < one(shape).gpu_seconds[0]
    assert {"all_reduce", "logits_gather"} == {name for name, _ in two.kernels} - {name for name, _ in one.kernels}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_limits_that_nothing_reaches_change_no_step(engine: str) -> None:
    bounds = engine_named(engine).bounds
    settings = (dict(zip(bounds, values, strict=True)) for values in ((2048, 256, 8192), (4000, 256, 100_000)))
    known = [deploy_named("llama-3.2-1b", "h200-sxm", engine_named(engine).settings(each)).timer() for each in settings]
    shapes = [
        StepShape([1] * 37, [300 + 11 * index for index in range(37)], 37),
        StepShape([1] * 201, [1000] * 201, 201),
        StepShape([700, 1000], [1500, 0], 2),
        StepShape([1, 1, 900], [4000, 10, 3000], 3),
        StepShape([2017], [0], 1),
    ]
    for shape in shapes:
        one, other = (timer(shape) for timer in known)
        assert one.gpu_seconds == other.gpu_seconds
        assert one.host == other.host


def test_halves_of_a_step_hide_each_other_s_exchanges() -> None:
    calls = [Call(name, Collective("all_to_all", 1.0, 2)) for name in ("experts", "experts_dispatch")]
    # By tokens from 0 on: the kernels take 1 + n, exchanges n or three times as long.
    tokens = np.arange(9.0)
    short, long = (np.column_stack([1.0 + tokens, times * tokens]) for times in (1.0, 3.0))
    (few,) = in_parts([short], calls, 2, 4)
    assert few[:4].tolist() == short[:4].tolist()
    assert few[8].tolist() == [2 * 5.0, 0.0]  # two halves of 4 tokens
    (many,) = in_parts([long], calls, 2, 4)
    assert many[8].tolist() == [2 * 5.0, 2 * 12.0 - 2 * 5.0]
    assert in_parts([short], calls, 1)[0] is short


@pytest.mark.parametrize("draft", [None, '{"method": "ngram", "num_speculative_tokens": 3}'])
def test_a_timer_goes_with_its_tables_as_soon_as_nobody_has_it(draft):
    deployment = deploy_named("qwen2.5-0.5b", "l4", speculative_config=draft)
    gc.disable()
    try:
        timer = deployment.timer()
        timer(StepShape([1] * 5, [700, 30, 8000, 1, 128], 5))
        gone = weakref.ref(timer)
        del timer
        assert gone() is None
    finally:
        gc.enable()
