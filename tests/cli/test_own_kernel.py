"""``infercast kernel fit`` and what uses its file, ``diagnose --profile``, and ``infercast variants``."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

KERNELS = ("kernels", "llama-3.1-8b", "--gpu", "h200-sxm", "--decode", 8)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "my.csv"
    sizes = [(m, n, 1024) for m in (1, 16, 256, 2048) for n in (512, 4096, 16384)]
    times = "".join(f"{m},{n},{k},{3 + (m * k + k * n + m * n) / 2e6:.3f}\n" for m, n, k in sizes)
    path.write_text("m,n,k,microseconds\n" + times)
    return path


def test_a_fitted_kernel_is_asked_by_its_own_dimensions(infercast: Any, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "my.json"
    found = infercast(
        *("kernel", "fit", rows, "--gpu", "h200-sxm", "--out", out, "--json"),
        *("--work", "bytes=2*(m*k+k*n+m*n); flops=2*m*n*k"),
    ).json
    assert found["shapes"] == 12
    assert 0 <= found["median_error"] < 0.1
    asked = ("estimate", "m=64", "n=4096", "k=1024", "--kernel-file", out, "--gpu")
    here, there = (infercast(*asked, gpu, "--json").json for gpu in ("h200-sxm", "l40s"))
    assert here["seconds"] == pytest.approx(5.3e-6, rel=0.15)
    assert (here["source"], here.get("note")) == ("few-shot", None)
    assert "carried over by rooflines" in there["note"]
    step = infercast(*KERNELS, "--kernel-file", f"{out}@gemm", "--json").json
    assert {kernel["source"] for kernel in step["kernels"] if kernel["family"] == "gemm"} == {"few-shot"}
    assert "median error" in infercast("kernel", "fit", rows, "--gpu", "h200-sxm", "--out", out).out


def test_what_is_wrong_is_one_sentence(infercast: Any, rows: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "my.json")
    fit = ("kernel", "fit", rows, "--gpu", "h200-sxm", *out)
    assert "no number, no function" in infercast(*fit, "--work", "bytes=open('x')").sentence
    assert "can fit, not predict" in infercast("kernel", "predict", *fit[2:]).sentence
    infercast(*fit)
    asked = ("--kernel-file", out[1], "--gpu", "h200-sxm")
    assert "m=x must be DIMENSION=N" in infercast("estimate", "m=x", *asked).sentence
    assert "--n has no meaning with --kernel-file" in infercast("estimate", "m=3", "--n", 3, *asked).sentence
    assert "takes m, n, k, not m" in infercast("estimate", "m=3", *asked).sentence
    assert "must be FILE@FAMILY" in infercast(*KERNELS, "--kernel-file", out[1]).sentence
    assert "name one kernel family" in infercast("estimate", "gemm", "norm", "--gpu", "h200-sxm").sentence


def test_a_profile_stands_in_for_a_model(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"cat": "kernel", "name": "nvjet", "dur": 5, "args": {"stream": 7}}]}))
    asked = ("diagnose", "--profile", path, "--gpu", "h200-sxm")
    found = infercast(*asked, "--json").json
    assert (found["kernels"][0]["family"], found["shapeless_share"]) == ("gemm", 1.0)
    assert "nvjet" in infercast(*asked).out
    assert "--rate has no meaning with --profile" in infercast(*asked, "--rate", 3).sentence
    assert "say what to diagnose" in infercast("diagnose", "--gpu", "h200-sxm").sentence
    assert "say what to diagnose" in infercast(*asked, "llama-3.1-8b").sentence


def test_variants_print_their_front_and_write_all(infercast: Any, tmp_path: Path) -> None:
    sizes = ("--layers", "8:24:8", "--hidden", "1024,2048", "--heads", 16, "--kv-heads", 4, "--inter", 4096)
    asked = ("variants", "--gpu", "l40s", *sizes, "--quantization", "bf16,fp8")
    found = infercast(*asked, "--csv", tmp_path / "all.csv", "--json").json
    assert (found["variants"], found["by"]) == (12, "parameters")
    with (tmp_path / "all.csv").open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == 12
    assert {row["layers"] for row in written} == {"8", "16", "24"}
    latencies = [row["seconds"] for row in found["front"]]
    assert latencies == sorted(latencies)
    drawn = infercast(*asked, "--samples", 5, "--prefill", 128, "--front", "flops", "--json").json
    assert drawn["variants"] == 5
    assert "12 variants" in infercast(*asked).out
    assert "must be whole numbers" in infercast(*asked, "--layers", "8:x").sentence
    assert "unknown measure" in infercast(*asked, "--front", "speed").sentence
