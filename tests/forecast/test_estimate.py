"""Estimates by the public call: one kernel, arrays of them, and models that do not exist."""

import sys
from pathlib import Path

import numpy as np
import pytest

import infercast
import infercast.predict.learned
from infercast.forecast.estimate import build_op, rank_tiles
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.variants import estimate_variants, variant_grid
from infercast.hardware import load_gpu
from infercast.ops import Gemm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/accuracy"))
from own_sweep import scored

GPU = load_gpu("h200-sxm")


def test_sizes_and_operators_are_two_ways_to_ask_the_same():
    by_name = infercast.estimate("gemm", "h200-sxm", m=100, n=4096, k=4096, dtype="fp8")
    assert by_name == infercast.estimate(Gemm(100, 4096, 4096, "fp8"), load_gpu("h200-sxm"))
    assert by_name.source == "measured"


@pytest.mark.parametrize("predictor", ["learned", "roofline"])
def test_arrays_are_estimated_as_their_elements(predictor):
    m, k = np.array([1, 100, 4096]), np.array([512, 4096, 1024])
    together = infercast.estimate("gemm", "h100-sxm", predictor=predictor, m=m.tolist(), n=2048, k=k)
    for index in range(3):
        alone = infercast.estimate("gemm", "h100-sxm", predictor=predictor, m=int(m[index]), n=2048, k=int(k[index]))
        assert float(np.ravel(alone.seconds)[0]) == pytest.approx(together.seconds[index], rel=1e-9)


HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}
LAYOUTS = [
    ("gemm", {}, [{"m": m, "n": 4096, "k": 512} for m in (1, 100, 5000)]),
    ("gemm", {"dtype": "fp8"}, [{"m": m, "n": 4096, "k": 512} for m in (1, 100, 5000)]),
    ("decode", {**HEADS, "window": 1024}, [{"batch": 3, "kv_len": keys} for keys in (1, 500, 9000)]),
    (
        "prefill",
        HEADS,
        [{"batch": 2, "q_len": 77, **more} for more in ({}, {"prefix": 500}, {"prefix": 0}, {"q_len": 1})],
    ),
    ("moe", {"hidden": 2048, "inter": 768, "experts": 128, "topk": 8}, [{"tokens": each} for each in (1, 9, 4000)]),
]


@pytest.mark.parametrize(("kernel", "layout", "shapes"), LAYOUTS)
@pytest.mark.parametrize("gpu", ["h200-sxm", "h100-sxm", "b200-sxm"])
def test_kernels_of_a_known_layout_are_estimated_as_the_first_one(gpu, kernel, layout, shapes):
    for condition in ("alone", "engine"):
        infercast.estimate(kernel, gpu, condition=condition, **shapes[0], **layout)
        for sizes in shapes:
            by_name = infercast.estimate(kernel, gpu, condition=condition, **sizes, **layout)
            assert by_name == infercast.estimate(build_op(kernel, {**sizes, **layout}), gpu, condition=condition)
    for name in shapes[0].keys() - layout.keys():
        for wrong, says in ((0, "at least 1, not 0"), (2**31, "at most 2147483647")):
            with pytest.raises(infercast.InputError, match=f"{name} must be {says}"):
                infercast.estimate(kernel, gpu, **{**shapes[0], **layout, name: wrong})


def test_an_engine_adds_to_a_kernel_alone_and_the_power_limit_to_a_long_load():
    sizes = {"m": np.array([1, 64, 8192]), "n": 4096, "k": 4096}
    alone, engine, lasting = (
        infercast.estimate("gemm", "h200-sxm", condition=each, **sizes) for each in ("alone", "engine", "sustained")
    )
    assert np.array_equal(alone.seconds, infercast.estimate("gemm", "h200-sxm", **sizes).seconds)
    assert engine.seconds == pytest.approx(1.03 * alone.seconds + 0.5e-6)  # predict/families/gemm.py
    assert lasting.seconds[:2] == pytest.approx(alone.seconds[:2])  # reading weights stays within the limit
    assert lasting.seconds[2] > 1.1 * alone.seconds[2]
    for each in (alone, engine, lasting):  # the interval is of the number beside it
        assert each.low / each.seconds == pytest.approx(alone.low / alone.seconds, rel=0.06)
    steps = infercast.predict.learned.make_predictor()
    assert engine.seconds == pytest.approx(steps.estimate(Gemm(sizes["m"], 4096, 4096), GPU).seconds)
    with pytest.raises(infercast.UnknownNameError, match="unknown condition 'warm'"):
        infercast.estimate("gemm", "h200-sxm", condition="warm", m=1, n=1, k=1)


def test_collectives_by_themselves_wait_for_nobody():
    sizes = {"bytes": 1 << 20, "gpus": 4}
    alone, engine = (
        infercast.estimate("all_reduce", "h200-sxm", condition=each, **sizes) for each in ("alone", "engine")
    )
    assert engine.seconds > alone.seconds


ROWS = Path(__file__).parents[2] / "measurements/h200-sxm"


@pytest.mark.parametrize("family", ["gemm", "attention_prefill", "attention_decode", "moe", "elementwise"])
def test_rows_that_we_measured_are_estimated_within_their_intervals(family):
    found = list(scored(ROWS, (family,), sample=400, every=4))
    assert found
    for score in found:
        if score.condition == "alone":
            assert score.mean <= 0.045, score
            assert score.inside >= 0.72, score


def test_an_operator_brings_its_own_sizes():
    with pytest.raises(infercast.InputError, match="leave out m"):
        infercast.estimate(Gemm(1, 2, 3), "h200-sxm", m=4)


def test_unknown_kernels_and_sizes_are_named():
    with pytest.raises(infercast.UnknownNameError, match="gemmm"):
        infercast.estimate("gemmm", "h200-sxm", m=4)
    with pytest.raises(infercast.InputError, match="m must be at least 1"):
        infercast.estimate("gemm", "h200-sxm", m=np.array([3, 0]), n=1, k=1)


LLAMA = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "inter": 14336}


@pytest.mark.parametrize(("batch", "context"), [(1, 500), (8, 1000), (64, 3000)])
def test_a_variant_that_exists_costs_what_the_model_costs(batch, context):
    deployment = infercast.deploy("llama-3.1-8b", "h200-sxm")
    step = estimate_step(deployment, decode_shape(batch, context))
    variant = estimate_variants("h200-sxm", batch=batch, context=context, **LLAMA)
    assert float(variant.gpu_seconds) == pytest.approx(float(step.gpu.seconds), rel=1e-12)
    assert float(variant.seconds) == pytest.approx(step.seconds, rel=1e-12)
    assert int(variant.parameters) == 8_030_261_248


def test_a_small_variant_waits_for_its_host():
    sizes = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "inter": 8192, "head_dim": 64}
    variant = estimate_variants("h200-sxm", batch=16, context=2000, **sizes)
    step = estimate_step("llama-3.2-1b", decode_shape(16, 2000), gpu="h200-sxm")
    assert float(variant.gpu_seconds) < step.host_seconds
    assert float(variant.seconds) == pytest.approx(step.seconds, rel=1e-12)


def test_a_grid_of_variants_is_its_variants_one_by_one():
    layers, hidden = np.array([16, 32])[:, None], np.array([2048, 3072, 4096])
    grid = estimate_variants("a100-sxm-80gb", **{**LLAMA, "layers": layers, "hidden": hidden})
    assert grid.seconds.shape == grid.parameters.shape == (2, 3)
    one = estimate_variants("a100-sxm-80gb", **{**LLAMA, "layers": 32, "hidden": 3072})
    assert float(one.seconds) == pytest.approx(grid.seconds[1, 1], rel=1e-12)
    assert np.all(np.diff(grid.gpu_seconds, axis=0) > 0)


def test_variants_need_all_sizes_and_no_others():
    with pytest.raises(infercast.InputError, match="needs inter"):
        estimate_variants("h200-sxm", **{name: LLAMA[name] for name in ("layers", "hidden", "heads", "kv_heads")})
    with pytest.raises(infercast.InputError, match="has no width"):
        estimate_variants("h200-sxm", width=3, **LLAMA)
    with pytest.raises(infercast.InputError, match="hidden must be whole numbers of at least 1, not 0"):
        estimate_variants("h200-sxm", **{**LLAMA, "hidden": 0})


EXPERTS = {**LLAMA, "experts": 8, "topk": 2, "vocabulary": 32_000}


@pytest.mark.parametrize("quantization", ["bf16", "fp8"])
@pytest.mark.parametrize(("model", "sizes"), [("llama-3.1-8b", LLAMA), ("mixtral-8x7b", EXPERTS)])
@pytest.mark.parametrize("prompt", [None, 1500])
def test_variants_with_experts_formats_and_prompts_cost_what_models_cost(model, sizes, quantization, prompt):
    shape = decode_shape(8, 1000) if prompt is None else prefill_shape(prompt)
    deployment = infercast.deploy(model, "h200-sxm", quantization=None if quantization == "bf16" else quantization)
    step = estimate_step(deployment, shape)
    asked = {"batch": 8, "context": 1000, "prompt": prompt, "quantization": quantization}
    variant = estimate_variants("h200-sxm", **asked, **sizes)
    assert float(variant.seconds) == pytest.approx(step.seconds, rel=1e-9)
    assert float(variant.weight_bytes) == pytest.approx(deployment.memory.weights, rel=1e-9)


def test_a_grid_mixes_formats_and_experts_and_leaves_out_what_is_no_model():
    axes = {"layers": [16, 32], "hidden": [2048, 4096], "heads": [16, 32], "kv_heads": [8, 32], "inter": [2048]}
    grid = variant_grid({**axes, "experts": [0, 8], "quantization": ["bf16", "fp8"]})
    assert len(grid["heads"]) == 2 * 2 * 3 * 2 * 2
    found = estimate_variants("l40s", **grid)
    for place in (0, 17, 40):
        one = estimate_variants("l40s", **{name: each[place].item() for name, each in grid.items()})
        assert float(one.seconds) == pytest.approx(found.seconds[place], rel=1e-9)
    drawn = variant_grid(axes, samples=50, seed=3)
    assert set(drawn["layers"].tolist()) == {16, 32}
    with pytest.raises(infercast.InputError, match="no combination makes a model"):
        variant_grid({**axes, "kv_heads": [7]})


def test_the_front_holds_the_largest_at_every_latency():
    hidden, layers = np.meshgrid(np.arange(1024, 8192, 512), np.arange(8, 64, 8))
    found = estimate_variants("l40s", **{**LLAMA, "hidden": hidden, "layers": layers})
    front = found.pareto()
    seconds, parameters = found.seconds.ravel(), found.parameters.ravel()
    for place in np.flatnonzero(found.fits.ravel()):
        as_fast = front[seconds[front] <= seconds[place]]
        assert parameters[as_fast].max() >= parameters[place]
    assert found.fits.ravel()[front].all()
    assert not found.fits.all()
    assert list(found.to_dict()["front"][0]) == list(found.columns())


@pytest.mark.parametrize("gpu", ["h200-sxm", "a100-sxm", "l40s"])
@pytest.mark.parametrize("m", [1, 256, 4096])
def test_tiles_of_a_product_are_ranked_below_what_the_library_reaches(gpu: str, m: int) -> None:
    sizes = {"m": m, "n": 4096, "k": 4096}
    best = infercast.estimate("gemm", gpu, **sizes)
    rows = rank_tiles(load_gpu(gpu), sizes, best)
    assert rows[0]["seconds"] == pytest.approx(float(best.seconds))
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert all(row["times_as_long"] == pytest.approx(row["seconds"] / rows[0]["seconds"]) for row in rows)
    assert all(row["watts"] <= load_gpu(gpu).tdp for row in rows)
    assert rows[-1]["times_as_long"] > 1.05


def test_a_kernel_of_one_vendor_is_not_estimated_on_another() -> None:
    with pytest.raises(infercast.InputError, match="cudnn of prefill is a kernel of NVIDIA's GPUs, and mi300x is none"):
        infercast.estimate("prefill", "mi300x", kernel="cudnn", batch=1, q_len=512, heads=8, kv_heads=8, head_dim=128)
