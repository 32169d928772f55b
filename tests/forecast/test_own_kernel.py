"""A kernel of one's own: formulas are arithmetic and nothing else, fits predict unseen shapes, and steps use them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import infercast
from infercast.forecast.deploy import load_model
from infercast.forecast.kernels import decode_shape, estimate_step
from infercast.forecast.own_kernel import OwnKernel, amounts_of, fit_kernel, read_kernel, with_own_kernels
from infercast.hardware import load_gpu

WORK = "bytes=2*(m*k+k*n+m*n); flops=2*m*n*k; tiles=ceil(m/128)*ceil(n/128)"


def table(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A made-up product: a launch, bytes, FLOP in whole rounds, and a few per cent of noise."""
    random = np.random.default_rng(seed)
    m, n, k = (2 ** random.integers(low, 14, count) for low in (0, 7, 7))
    rounds = np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / 132)
    us = 2 + 2 * (m * k + k * n + m * n) / 4e6 + rounds * 2 * 128 * 128 * k / 5e6
    return {"m": m, "n": n, "k": k, "us": us * random.lognormal(0, 0.03, count)}


@pytest.fixture(scope="module")
def fitted() -> OwnKernel:
    return fit_kernel(table(60), work=WORK)


def test_formulas_are_arithmetic_over_dimensions():
    sizes = {"m": np.array([1.0, 300.0]), "k": np.array([2.0, 3.0])}
    found = amounts_of("bytes=2*m*k+-1*k; tiles=max(ceil(m/128), k//2) ; flops=m%7*0+k**2", sizes)
    assert found["bytes"].tolist() == [2, 1797]
    assert found["tiles"].tolist() == [1, 3]
    assert found["flops"].tolist() == [4, 9]
    assert amounts_of("", sizes) == {}


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("bytes=__import__('os').getcwd()", "no number, no function"),
        ("bytes=m.real", "no number, no function"),
        ("bytes=[m for m in (1,)]", "no number, no function"),
        ("bytes=ceil(m, k)", "no number, no function"),
        ("bytes='a'*9", "no number, no function"),
        ("bytes=q", "over m, k: q is no number"),
        ("bytes=m+", "no arithmetic"),
        ("bytes=" + "(" * 900, "no arithmetic"),
        ("bytes=9**9**9**9", "above 0 and finite"),
        ("bytes=m-m", "above 0 and finite"),
        ("speed=1", "one of bytes, flops, tiles"),
        ("tiles=m", "beside tiles"),
        ("bytes=" + "1+" * 2000 + "1", "2000 characters"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(work, why):
    with pytest.raises(infercast.InputError, match=why):
        amounts_of(work, {"m": np.ones(2), "k": np.ones(2)})


def test_unseen_shapes_are_predicted_within_the_stated_error(fitted):
    others = table(400, seed=1)
    us = others.pop("us")
    found = fitted.predict(**others)
    errors = np.abs(found.seconds * 1e6 / us - 1)
    assert np.median(errors) < 0.08
    assert 0.6 < np.mean((found.low * 1e6 <= us) & (us <= found.high * 1e6)) <= 1
    assert fitted.errors["median_error"] == pytest.approx(np.median(errors), abs=0.04)
    assert found.source == "few-shot"
    assert {*np.unique(found.bound)} <= {"launch", "dram", "tensor"}


def test_a_fit_without_a_formula_does_nearly_as_well():
    others = table(200, seed=1)
    us = others.pop("us")
    found = fit_kernel(table(60)).predict(**others)
    assert np.median(np.abs(found.seconds * 1e6 / us - 1)) < 0.15
    assert {*found.bound} == {"unknown"}


def test_another_gpu_is_slower_as_its_roofline_is_with_a_wider_interval(fitted):
    shape = {"m": 4096, "n": 8192, "k": 8192}
    here, there = fitted.predict(**shape), fitted.predict("a100-sxm-80gb", **shape)
    peaks = load_gpu("h200-sxm").dense_flops("bf16") / load_gpu("a100-sxm-80gb").dense_flops("bf16")
    assert there.seconds / here.seconds == pytest.approx(peaks, rel=0.02)
    assert there.high / there.low > (here.high / here.low) ** 1.5
    assert there.source == "unseen"


def test_a_file_says_the_same_and_holds_no_code(fitted, tmp_path):
    fitted.write(tmp_path / "my.json")
    again = read_kernel(tmp_path / "my.json")
    assert float(again.predict(m=100, n=1000, k=1000).seconds) == float(fitted.predict(m=100, n=1000, k=1000).seconds)
    assert again.document() == fitted.document()
    for text in ("[]", "{", '{"format": "infercast kernel 1"}', json.dumps(fitted.facts | {"work": "bytes=x"})):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(infercast.FileFormatError, match="is no file of"):
            read_kernel(tmp_path / "bad.json")


def test_tables_that_make_no_kernel_are_refused(tmp_path):
    rows = table(12)
    with pytest.raises(infercast.InputError, match="at least 10 different shapes, not 5"):
        fit_kernel({name: each[:5] for name, each in rows.items()})
    with pytest.raises(infercast.InputError, match="needs a column of times"):
        fit_kernel({name: rows[name] for name in "mnk"})
    with pytest.raises(infercast.InputError, match="m must be whole numbers"):
        fit_kernel(rows | {"m": rows["m"] + 0.5})
    with pytest.raises(infercast.InputError, match="us must be above 0"):
        fit_kernel(rows | {"us": -rows["us"]})
    path = tmp_path / "rows.csv"
    path.write_text("m,us\n1,2\nx,3\n")
    with pytest.raises(infercast.FileFormatError, match=r"line 3: m must be a number, not 'x'"):
        fit_kernel(path)


def test_steps_take_its_times_in_place_of_a_family_or_on_top(fitted, tmp_path):
    fitted.write(path := tmp_path / "my.json")
    model, shape = load_model("llama-3.1-8b"), decode_shape(8, 512)
    plain = estimate_step(model, shape, gpu="h200-sxm")
    replaced, added = (
        estimate_step(
            model, shape, gpu="h200-sxm", predictor=with_own_kernels("learned", [f"{path}@{place}"], "vllm", model)
        )
        for place in ("gemm", "+gemm")
    )
    for before, own, both in zip(plain.kernels, replaced.kernels, added.kernels, strict=True):
        if before.family != "gemm":
            assert own.estimate == before.estimate
            continue
        assert own.estimate.source == "few-shot"
        assert both.seconds == pytest.approx(before.seconds + own.seconds, rel=0.05)  # the power limit aside
    for place, why in (("gem", "unknown kernel family"), ("norm", "takes m, n, k, which is not all in")):
        with pytest.raises(infercast.InputError, match=why):
            with_own_kernels("learned", [f"{path}@{place}"], "vllm", model)


def test_beyond_its_table_a_kernel_is_less_certain_the_further_away() -> None:
    kernel = fit_kernel({"m": [16, 32, 64, 128, 256] * 2, "us": [5, 6, 8, 12, 20] * 2} | {"n": [64] * 5 + [128] * 5})
    within, near, far = (kernel.predict(m=m, n=64) for m in (100, 512, 4096))
    widths = [float(np.log(each.high / each.low)) for each in (within, near, far)]
    assert widths[1] > widths[0] + 0.1
    assert widths[2] > widths[1] + 0.3
