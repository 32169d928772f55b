"""Ceilings lie between the hard limit and what is forecast, and closing a gap touches the chosen kernels only."""

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.hardware import load_gpu
from infercast.ops import Attention, Collective, Gemm, MoE, Op
from infercast.ops.op import norm
from infercast.predict.ceilings import CEILINGS, AtCeiling, default_ceilings, features_of, signature_of
from infercast.predict.families import family_of
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import limit_seconds

SIZES = np.array([1, 7, 64, 700, 8192])
OPS: list[Op] = [
    Gemm(SIZES, 4096, 4096),
    Gemm(SIZES, 28_672, 4096, "fp8"),
    MoE(SIZES, 2048, 768, 128, 8),
    Attention(np.ones((5, 1), dtype=int), SIZES[:, None] + 1, 32, 8, 128, 128, sequences=8),
    Attention(SIZES[:, None], SIZES[:, None], 32, 8, 128, 128),
    Collective("all_reduce", SIZES * 8192, 4),
    norm(SIZES, 4096, residual=True),
]


@pytest.mark.parametrize("name", ["a100-sxm", "l40s", "h200-sxm", "b200-sxm", "h20"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.family} {op.compute_dtype}")
def test_no_ceiling_is_below_the_hard_limit(op: Op, name: str) -> None:
    gpu = load_gpu(name)
    ceiling = default_ceilings().seconds(op, gpu)
    assert ceiling.shape == SIZES.shape
    assert features_of(op, gpu).shape[1] == len(CEILINGS.features[family_of(op).name])
    assert (ceiling >= limit_seconds(op, gpu)).all()
    assert (ceiling > 1e-7).all()
    assert (ceiling < 20 * (limit_seconds(op, gpu) + 5e-6)).all()


@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.family} {op.compute_dtype}")
def test_features_do_not_tell_gpus_of_one_size_apart(op: Op) -> None:
    rows = features_of(op, load_gpu("h200-sxm"))
    assert rows.shape[0] == SIZES.size
    assert np.isfinite(rows).all()


def test_large_products_reach_most_of_the_peak_somewhere() -> None:
    gpu, op = load_gpu("h200-sxm"), Gemm(8192, 8192, 8192)
    assert 0.7 < float(limit_seconds(op, gpu)[0] / default_ceilings().seconds(op, gpu)[0]) <= 1.0


def test_closing_brings_chosen_kernels_down_and_leaves_others() -> None:
    gpu, base = load_gpu("l40s"), make_predictor()
    chosen, other = Gemm(1024, 28_672, 4096), Gemm(1024, 4096, 4096)
    closing = AtCeiling(base, default_ceilings(), {signature_of(Gemm(1, 28_672, 4096))})
    assert closing.estimate(chosen, gpu).seconds < base.estimate(chosen, gpu).seconds
    assert float(np.ravel(closing.seconds(chosen, gpu))[0]) == pytest.approx(closing.estimate(chosen, gpu).seconds)
    assert closing.estimate(other, gpu) == base.estimate(other, gpu)
    assert closing.explain(chosen, gpu) == base.explain(chosen, gpu)


def test_a_kernel_that_nobody_measured_has_no_ceiling() -> None:
    op, gpu = Gemm(16, 4096, 4096, "bf16", "int4"), load_gpu("h200-sxm")
    assert default_ceilings().knows(op)
    strange = MoE(16, 2048, 768, 128, 8, weight_dtype="int8")
    assert not default_ceilings().knows(strange)
    with pytest.raises(InputError, match="not known"):
        default_ceilings().seconds(strange, gpu)
