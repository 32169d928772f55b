"""``infercast estimate``: single kernels and tables of shapes."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

GEMM = ("gemm", "--m", 4096, "--n", 14336, "--k", 4096)
HEADS = ("--heads", 32, "--kv-heads", 8, "--head-dim", 128)


@pytest.mark.parametrize(
    "words",
    [
        GEMM,
        (*GEMM, "--dtype", "fp8"),
        ("prefill", "--batch", 2, "--q-len", 1000, "--prefix", 500, *HEADS),
        ("decode", "--batch", 32, "--kv-len", 1400, *HEADS, "--kv-dtype", "fp8"),
        ("moe", "--tokens", 512, "--hidden", 2048, "--inter", 768, "--experts", 128, "--topk", 8),
        ("norm", "--rows", 8192, "--width", 4096),
        ("activation", "--rows", 8192, "--width", 14336),
        ("rope", "--rows", 32, "--heads", 40, "--head-dim", 128),
        ("kv_write", "--rows", 32, "--width", 2048),
        ("quantise", "--rows", 4096, "--width", 4096),
        ("all_reduce", "--bytes", 1 << 20, "--gpus", 8),
        ("all_gather", "--bytes", 1 << 20, "--gpus", 2),
        ("reduce_scatter", "--bytes", 1 << 20, "--gpus", 4),
        ("all_to_all", "--bytes", 1 << 20, "--gpus", 8),
        ("send_recv", "--bytes", 1 << 20, "--gpus", 2),
        ("linear", "--m", 64, "--n", 512, "--k", 512, "--dtype", "fp32"),
        ("bmm", "--batch", 16, "--m", 64, "--n", 512, "--k", 512, "--dtype", "tf32"),
        ("conv2d", "--batch", 8, "--channels", 64, "--size", 56, "--out-channels", 64, "--kernel-size", 3),
        ("lstm", "--batch", 8, "--steps", 32, "--hidden", 512, "--layers", 2),
        ("softmax", "--rows", 4096, "--width", 1024, "--dtype", "fp32"),
        ("embedding", "--rows", 4096, "--width", 1024, "--vocabulary", 32000),
        ("topk", "--rows", 64, "--width", 32000, "--k", 50),
        ("sort", "--rows", 64, "--width", 1000),
        ("elementwise", "--elements", 1000000, "--kernel", "gelu"),
        ("reduction", "--rows", 1000, "--width", 1000, "--kernel", "argmax"),
        ("prefill", "--kernel", "fa2", "--batch", 2, "--q-len", 1000, *HEADS),
        ("prefill", "--kernel", "fa3", "--batch", 2, "--q-len", 1000, *HEADS),
        ("decode", "--kernel", "triton", "--batch", 32, "--kv-len", 1400, *HEADS),
        ("prefill", "--kernel", "cudnn", "--batch", 2, "--q-len", 1000, "--prefix", 500, *HEADS),
        ("gemm", "--kernel", "marlin", *GEMM[1:], "--weight-dtype", "int4"),
        ("gemm", "--kernel", "triton", *GEMM[1:], "--dtype", "fp8_block"),
        ("moe", "--kernel", "triton", "--tokens", 512, "--hidden", 2048, "--inter", 768, "--experts", 128, "--topk", 8),
    ],
)
def test_every_family_has_an_estimate(infercast: Any, words: tuple[object, ...]) -> None:
    estimate = infercast("estimate", *words, "--gpu", "h200-sxm", "--json").json
    shown = {"seconds", "low", "high"}
    assert set(estimate) == {*shown, "condition", "engine", "sustained", "source", "bound", "power"}
    assert estimate["condition"] == "alone"
    for each in (estimate, estimate["engine"], estimate["sustained"]):
        assert shown <= set(each)
        assert 0 < each["low"] <= each["seconds"] <= each["high"] < 1
        assert each["seconds"] >= estimate["seconds"]


def test_where_an_estimate_comes_from_is_said(infercast: Any) -> None:
    sources = {gpu: infercast("estimate", *GEMM, "--gpu", gpu, "--json").json["source"] for gpu in SOURCES}
    assert sources == SOURCES


SOURCES = {
    "h200-sxm": "measured",
    "h20": "sibling",
    "gb200": "sibling",
    "t4": "unseen",
    "mi300x": "published",
    "r9700": "typical",
}


def test_a_price_in_words(infercast: Any) -> None:
    text = infercast("estimate", *GEMM, "--gpu", "h200-sxm").out
    assert "gemm on NVIDIA H200" in text
    assert "80 % interval" in text
    assert "measured" in text


def test_a_table_comes_back_with_estimates(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text("name,m,n,k\nqkv,32,6144,4096\nup,32,28672,4096\n")
    rows = list(csv.DictReader(io.StringIO(infercast("estimate", "gemm", "--csv", path, "--gpu", "h200-sxm").out)))
    assert [row["name"] for row in rows] == ["qkv", "up"]
    among = [f"{each}_{end}" for each in ("engine", "sustained") for end in ("seconds", "low", "high")]
    found = ["seconds", "low", "high", "source", "bound", *among, "watts", "joules", "meter_watts"]
    assert list(rows[0]) == ["name", "m", "n", "k", *found]
    alone = infercast("estimate", "gemm", "--m", 32, "--n", 6144, "--k", 4096, "--gpu", "h200-sxm", "--json").json
    assert float(rows[0]["seconds"]) == pytest.approx(alone["seconds"])
    assert float(rows[0]["engine_low"]) == pytest.approx(alone["engine"]["low"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gem", "--m", 1), "unknown kernel family 'gem'; did you mean gemm?"),
        (("gemm", "--m", 1, "--n", 2), "gemm needs k; it takes m, n, k, dtype, weight_dtype"),
        (("gemm", "--m", 0, "--n", 2, "--k", 3), "m must be at least 1, not 0"),
        ((*GEMM, "--tokens", 3), "gemm has no 'tokens'"),
        ((*GEMM, "--dtype", "fp9"), "unknown dtype 'fp9'"),
        ((*GEMM, "--predictor", "magic"), "unknown predictor 'magic'"),
        ((*GEMM, "--predictor", "gone.npz"), "gone.npz: cannot be read"),
    ],
)
def test_what_makes_no_sense_is_said(infercast: Any, words: tuple[object, ...], sentence: str) -> None:
    result = infercast("estimate", *words, "--gpu", "h200-sxm")
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("m,n,k\n1,2,x\n", "line 2: k must be a whole number, not 'x'"),
        ("m,n\n1,2\n", "line 2: gemm needs k"),
        ("m,n,k\n", "has no rows below its header"),
    ],
)
def test_a_bad_table_is_named(infercast: Any, tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(content)
    result = infercast("estimate", "gemm", "--csv", path, "--gpu", "h200-sxm")
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def test_a_table_and_sizes_do_not_mix(infercast: Any, tmp_path: Path) -> None:
    assert "leave out --m" in infercast("estimate", "gemm", "--m", 3, "--csv", tmp_path, "--gpu", "h200-sxm").err


@pytest.mark.parametrize(("gpu", "predictor"), [("h200-sxm", "roofline"), ("mi300x", "learned")])
@pytest.mark.parametrize("words", [("decode", "--kv-len", 4096), ("prefill", "--q-len", 512)])
def test_one_batch_of_attention_is_one_estimate_whatever_it_rests_on(
    infercast: Any, gpu: str, predictor: str, words: tuple[object, ...]
) -> None:
    estimate = infercast(
        "estimate", *words, "--batch", 2, *HEADS, "--gpu", gpu, "--predictor", predictor, "--json"
    ).json
    assert 0 < estimate["low"] <= estimate["seconds"] <= estimate["high"] < 1


def test_the_old_name_works_with_a_notice(infercast: Any) -> None:
    sizes = ("gemm", "--m", 16, "--n", 4096, "--k", 4096, "--gpu", "h200-sxm", "--json")
    old, new = infercast("price", *sizes), infercast("estimate", *sizes)
    assert (old.code, old.out) == (0, new.out)
    assert (old.err, new.err) == ("infercast: the command price is estimate now; 1.0 drops the old name\n", "")


def test_kernels_of_one_family_are_told_apart(infercast: Any) -> None:
    asked = ("prefill", "--batch", 2, "--q-len", 2048, *HEADS, "--gpu", "h200-sxm", "--json")
    found = {name: infercast("estimate", *asked, "--kernel", name).json for name in ("fa2", "fa3", "cudnn", "triton")}
    assert found["fa3"]["seconds"] < found["fa2"]["seconds"]
    assert {each["source"] for each in found.values()} == {"measured"}
    assert len({each["seconds"] for each in found.values()}) == 4


def test_fp32_products_are_those_that_were_measured(infercast: Any) -> None:
    asked = (*GEMM, "--gpu", "h200-sxm", "--json", "--dtype")
    plain, tensor = (infercast("estimate", *asked, dtype).json for dtype in ("fp32", "tf32"))
    assert plain["source"] == tensor["source"] == "measured"
    assert 5 < plain["seconds"] / tensor["seconds"] < 12


def test_kernels_are_listed_with_what_they_rest_on(infercast: Any) -> None:
    rows = infercast("estimate", "--list-kernels", "--json").json
    by_name = {(row["family"], row["kernel"]): row for row in rows}
    assert by_name["prefill", "fa2"]["measured_on"] == "h200-sxm"
    assert "l40s" in by_name["gemm", "triton"]["measured_on"]
    assert all(0 <= row["error"] < 0.5 for row in rows)
    assert "conv2d" in infercast("estimate", "--list-kernels").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*GEMM, "--kernel", "fa2"), "unknown kernel of gemm 'fa2'"),
        ((*GEMM, "--kernel", "triton"), "triton of gemm has no format 'bf16'; it has fp8_block"),
        (("elementwise", "--elements", 8, "--kernel", "softmax"), "unknown kernel of elementwise 'softmax'"),
        (("softmax", "--rows", 8), "softmax needs width"),
        ((), "estimate needs a FAMILY"),
        (("softmax", "--rows", 8, "--width", 8, "--predictor", "roofline"), "not by the roofline"),
    ],
)
def test_a_kernel_that_is_not_there_is_refused(infercast: Any, words: tuple[object, ...], says: str) -> None:
    assert says in infercast("estimate", *words, "--gpu", "h200-sxm").sentence
