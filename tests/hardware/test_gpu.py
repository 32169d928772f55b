"""The Gpu class itself: fallbacks between formats, and that it is a plain frozen value."""

import dataclasses
import pickle

import pytest

from infercast.errors import UnknownNameError
from infercast.hardware import load_gpu


@pytest.mark.parametrize(
    ("gpu", "dtype", "runs_as"),
    [
        ("h200-sxm", "bf16", "bf16"),
        ("h200-sxm", "fp8", "fp8"),
        ("h200-sxm", "fp4", "bf16"),  # weight-only: fp4 weights are widened, never multiplied in fp8
        ("a100-sxm", "fp8", "bf16"),
        ("a100-sxm", "int8", "int8"),
        ("t4", "bf16", "fp16"),
        ("t4", "fp8", "fp16"),
        ("t4", "tf32", "fp32"),
        ("v100-sxm", "int8", "fp16"),
        ("p100", "bf16", "fp16"),
        ("b200-sxm", "fp4", "fp4"),
        ("mi355x", "tf32", "fp32"),
    ],
)
def test_a_missing_format_runs_as_engines_run_it(gpu: str, dtype: str, runs_as: str) -> None:
    chip = load_gpu(gpu)
    assert chip.dense_flops(dtype) == chip.tensor_flops[runs_as]
    assert chip.supports(dtype) == (dtype == runs_as)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown tensor dtype 'fp64'.*known:.*bf16"):
        load_gpu("h200-sxm").dense_flops("fp64")
    with pytest.raises(UnknownNameError, match="'fp64'"):
        load_gpu("h200-sxm").supports("fp64")


def test_a_gpu_is_a_frozen_value() -> None:
    gpu = load_gpu("h200-sxm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.sms = 1  # type: ignore[misc]
    assert hash(gpu) == hash(dataclasses.replace(gpu))
    assert pickle.loads(pickle.dumps(gpu)) == gpu


def test_sustained_fraction() -> None:
    gpu = load_gpu("h200-sxm")
    assert gpu.sustained_fraction == gpu.sustained_clock / gpu.boost_clock
