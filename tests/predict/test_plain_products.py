"""Products in fp32 and kernels of many small thread blocks, against a profile of GLM-5 under vLLM 0.25 on an H200."""

import pytest

from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.ops.op import small_blocks
from infercast.predict.learned import make_predictor

H200 = load_gpu("h200-sxm")


@pytest.mark.parametrize(
    ("op", "microseconds"),
    [
        (Gemm(32, 256, 6144, "fp32", out_dtype="fp32"), 51.8),
        (Gemm(8192, 256, 6144, "fp32", out_dtype="fp32"), 508.3),
        (small_blocks(32 * 32, 258.0, 132.0), 2.1),
        (small_blocks(8192 * 32, 258.0, 132.0), 160.2),
        (small_blocks(8192 * 16, 1024.0, 512.0), 89.0),
    ],
)
def test_kernels_of_a_profile(op, microseconds):
    assert 1e6 * float(make_predictor().seconds(op, H200)) == pytest.approx(microseconds, rel=0.15)
