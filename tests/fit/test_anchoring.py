"""Anchors of a GPU that nobody measured, from a folder of `infercast measure`."""

from pathlib import Path

import numpy as np
import pandas
import pytest

import infercast
from infercast.errors import InputError
from infercast.hardware import Gpu, load_gpu
from infercast.lab.fit.samples import read_corrections
from infercast.lab.fit.tables import read_table
from infercast.lab.measure.rows import DEFAULT, anchor_cases
from infercast.ops import Gemm
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned, default_artifact

GPU = load_gpu("gb200")
SHAPES = [case.shape for case in anchor_cases(24) if case.family == "gemm" and case.shape["dtype"] == "bf16"]
SLOWER = 1.3


def write_sweep(folder: Path, kernels: str, slower: float = SLOWER, gpu: Gpu = GPU) -> None:
    """Products that take longer by themselves than they are estimated to."""
    plain = Learned(default_artifact(), kernel_profile()).alone
    rows = []
    for shape in SHAPES:
        measured = 1e6 * slower * float(plain.estimate(Gemm(shape["m"], shape["n"], shape["k"]), gpu).seconds)
        rows.append({**shape, "gpu": gpu.name, "engine": "torch", "latency_us": measured, "burst_us": measured})
    pandas.DataFrame(rows).to_parquet(folder / "gemm.parquet")
    if not kernels:
        return
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
    before, after = plain.alone.estimate(op, GPU), corrected.alone.estimate(op, GPU)
    inside = corrected.estimate(op, GPU).seconds
    assert inside == pytest.approx(1.03 * after.seconds + 0.5e-6)  # what an engine adds to products by themselves
    assert after.source == "few-shot"
    assert after.seconds / before.seconds == pytest.approx(SLOWER, rel=0.05)
    assert after.high / after.low < before.high / before.low


@pytest.mark.parametrize("gpu", ["h100-sxm", "rtx-pro-6000"])
@pytest.mark.parametrize("kernels", ["vllm", ""])
def test_anchors_that_say_what_is_estimated_change_nothing(tmp_path: Path, gpu: str, kernels: str) -> None:
    write_sweep(tmp_path, kernels, slower=1.0, gpu=load_gpu(gpu))
    corrections = read_corrections(tmp_path, load_gpu(gpu), default_artifact(), kernel_profile())
    for sizes in ({"m": 1, "n": 4096, "k": 4096}, {"m": 4096, "n": 28672, "k": 4096}):
        corrected = Learned(default_artifact(), kernel_profile(), corrections=corrections)
        before, after = (infercast.estimate("gemm", gpu, predictor=each, **sizes) for each in ("learned", corrected))
        assert after.seconds == pytest.approx(before.seconds, rel=1e-9)


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


def test_sglangs_prompts_of_one_token_run_on_the_kernel_of_prompts(tmp_path: Path) -> None:
    """A thread block for each head of each: 256 x 40 of them take 70 rounds of 148 SMs, 216 us as measured."""
    row = {"gpu": "b200-sxm", "engine": "sglang", "batch": 256, "q_len": 1, "heads": 40, "kv_heads": 4, "head_dim": 128}
    row |= {"window": 0, "dtype": "bf16", "kv_dtype": "bf16", "kernel": "trtllm", "latency_us": 215.7}
    pandas.DataFrame([row, row | {"engine": "vllm"}]).to_parquet(tmp_path / "attention_prefill.parquet")
    rows = {part.engine: part for part in read_table(tmp_path / "attention_prefill.parquet", "attention_prefill")}
    assert rows["vllm"].other_seconds is None
    assert 1e-4 < rows["sglang"].other_seconds[0] < 2.1e-4


def test_anchors_hear_other_chips_where_physics_alone_is_believed() -> None:
    predictor = Learned(default_artifact(), kernel_profile(), tier="unseen", as_tabled=True)
    op, gpu = Gemm(64, 4096, 4096), load_gpu("b200-sxm")
    choice, learner = predictor.choose(op, gpu, ("bf16",)), predictor.learner(op, gpu, ("bf16",))
    assert choice is not None
    assert choice.entry.rows == 0
    assert learner is not None
    assert len(learner.leaves) > len(choice.forest.leaves)
