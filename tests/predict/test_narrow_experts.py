"""Experts whose rows Triton loads value by value: what was measured of others does not stand for them."""

import pytest

from infercast.hardware import load_gpu
from infercast.ops import MoE
from infercast.predict.estimate import Estimate
from infercast.predict.learned import make_predictor

GPU = load_gpu("h200-sxm")


def estimate(inter: int, tokens: int, dtype: str = "bf16") -> Estimate:
    op = MoE(tokens, hidden=2816, inter=inter, experts=128, topk=8, dtype=dtype)
    return make_predictor("learned", "vllm").estimate(op, GPU)


@pytest.mark.parametrize(("tokens", "microseconds"), [(64, 261.0), (1024, 323.0)])
def test_rows_of_88_are_near_what_was_measured(tokens: int, microseconds: float) -> None:
    assert 1e6 * estimate(88, tokens).seconds == pytest.approx(microseconds, rel=0.2)  # benchmarks/results/tuning.md


@pytest.mark.parametrize("tokens", [16, 64, 1024])
def test_a_few_more_columns_are_quicker_if_rows_are_aligned(tokens: int) -> None:
    assert estimate(96, tokens).seconds < 0.75 * estimate(88, tokens).seconds


def test_in_fp8_nothing_like_it_was_measured() -> None:
    narrow, aligned = estimate(88, 64, "fp8"), estimate(96, 64, "fp8")
    assert (narrow.source, aligned.source) == ("physics", "measured")
    assert narrow.high / narrow.low > 2 * aligned.high / aligned.low
