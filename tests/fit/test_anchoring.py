"""Anchors of a GPU that nobody measured, from a folder of `infercast measure`."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from infercast.errors import InputError
from infercast.fit.anchoring import read_corrections
from infercast.hardware import load_gpu
from infercast.measure.plan.anchors import DEFAULT, anchor_cases
from infercast.ops import Gemm
from infercast.predict.default import default_artifact
from infercast.predict.learned import Learned
from infercast.predict.profile import kernel_profile

GPU = load_gpu("gb200")
SHAPES = [case.shape for case in anchor_cases(24) if case.family == "gemm" and case.shape["dtype"] == "bf16"]
SLOWER = 1.3


def write_sweep(folder: Path, kernels: str) -> None:
    """Products that take longer than they are estimated to, and attention that takes no time."""
    plain = Learned(default_artifact(), kernel_profile())
    rows = []
    for shape in SHAPES:
        seconds = float(plain.estimate(Gemm(shape["m"], shape["n"], shape["k"]), GPU).seconds)
        measured = 1e6 * (SLOWER * seconds - 0.5e-6) / 1.03  # what an engine adds to a kernel apart
        rows.append({**shape, "gpu": GPU.name, "engine": "torch", "latency_us": measured, "burst_us": measured})
    pandas.DataFrame(rows).to_parquet(folder / "gemm.parquet")
    (folder / "meta.toml").write_text(f'gpu = "{GPU.name}"\nkernels = "{kernels}"\n')


@pytest.mark.parametrize("kernels", ["vllm", "torch"])
def test_products_of_a_sweep_correct_an_engines(tmp_path: Path, kernels: str) -> None:
    (tmp_path / GPU.name).mkdir()
    write_sweep(tmp_path / GPU.name, kernels)
    profile = kernel_profile()
    corrections = read_corrections(tmp_path, GPU, default_artifact(), profile)
    assert set(corrections) == {("gemm", "bf16")}
    plain = Learned(default_artifact(), profile)
    corrected = Learned(default_artifact(), profile, corrections=corrections)
    op = Gemm(256, 6144, 4096)
    before, after = plain.estimate(op, GPU), corrected.estimate(op, GPU)
    assert after.source == "few-shot"
    assert after.seconds / before.seconds == pytest.approx(SLOWER, rel=0.05)
    assert after.high / after.low < before.high / before.low


def test_rows_of_another_gpu_do_not_count(tmp_path: Path) -> None:
    write_sweep(tmp_path, "vllm")
    with pytest.raises(InputError, match="no kernel family with at least 4 rows of h20"):
        read_corrections(tmp_path, load_gpu("h20"), default_artifact(), kernel_profile())


def test_the_list_has_all_kernels_and_its_beginning_too() -> None:
    cases, few = anchor_cases(), anchor_cases(8)
    assert len(cases) == 8 * DEFAULT
    assert {case.key for case in few} <= {case.key for case in cases}
    assert len({case.key for case in cases}) == len(cases)
    assert {case.family for case in few} == {"gemm", "attention_prefill", "attention_decode", "moe"}
    assert max(case.flops for case in cases) <= 2e12
    assert np.isfinite([case.flops for case in cases]).all()
