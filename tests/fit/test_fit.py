"""Fitting: what physics does not know is learned, on the GPU itself and, through physics, on others."""

import numpy as np
import pytest

from infercast.errors import FileFormatError, InputError
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import read_samples
from infercast.lab.fit.train import Settings, boost, fit_artifact
from infercast.ops import Gemm, MoE
from infercast.ops.op import norm
from infercast.predict.families.gemm import GEMM
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned
from training.evaluate import score

M = np.array([1, 16, 64, 1024])


def factor(artifact, gpu, **options):
    """Estimate over physics: what was learned."""
    op = Gemm(M, 2048, 4096)
    predictor = Learned(artifact, kernel_profile(), as_tabled=True, **options)
    estimate = predictor.estimate(op, load_gpu(gpu))
    return estimate, estimate.seconds / GEMM.physics(op, load_gpu(gpu)).seconds


def test_a_measured_gpu_gets_what_was_measured(artifact):
    estimate, learned = factor(artifact, "a100-sxm")
    assert estimate.source == "measured"
    assert np.allclose(learned, [1.2, 1.2, 1.5, 1.5], rtol=0.03)


def test_a_sibling_borrows(artifact):
    estimate, learned = factor(artifact, "h200-sxm")
    assert estimate.source == "sibling"
    assert np.allclose(learned, [1.2, 1.2, 1.5, 1.5], rtol=0.03)


def test_an_unseen_gpu_gets_the_pooled_model_shrunk(artifact):
    estimate, learned = factor(artifact, "l40s")
    assert estimate.source == "unseen"
    assert learned[0] < learned[-1]
    assert np.all((learned > 1.15) & (learned < 1.55))


def test_a_tier_can_be_asked_for(artifact):
    assert factor(artifact, "a100-sxm", tier="unseen")[0].source == "unseen"
    assert factor(artifact, "h100-sxm", tier="sibling")[0].source == "unseen"  # no other Hopper was fitted on


def test_what_was_never_tabled_is_priced_by_physics(artifact):
    predictor = Learned(artifact, kernel_profile())
    assert predictor.estimate(norm(64, 4096, residual=True), load_gpu("a100-sxm")).source == "physics"
    assert predictor.estimate(MoE(64, 2048, 768, 128, 8), load_gpu("a100-sxm")).source == "physics"
    assert predictor.estimate(Gemm(64, 4096, 4096), load_gpu("r9700")).source == "typical"


def test_the_same_data_give_the_same_bytes(tables, tmp_path):
    samples = read_samples(tables, ["gemm"], ["a100-sxm"])
    for name in ("one.npz", "two.npz"):
        fit_artifact(samples, tmp_path / name, {})
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert all(np.array_equal(one[key], two[key]) for key in one)


def evaluate(tables, artifact, **changes):
    options = {"families": ["gemm"], "gpus": ["h200-sxm"], "tier": None, "in_sample": False, **changes}
    return score(tables, artifact, kernel_profile(), **options)


def test_rows_of_another_gpu_are_scored(tables, artifact):
    result = evaluate(tables, artifact)
    found = result["families"]["gemm"]["gpus"]["h200-sxm"]
    assert found["rows"] == 343
    assert found["mape"] < 0.03
    assert found["by_dtype"]["bf16"]["median_ape"] <= found["by_dtype"]["bf16"]["p90_ape"]
    assert set(result["overall"]) >= {"rows", "mape", "median_ape", "p90_ape", "coverage80"}


def test_rows_that_were_fitted_on_are_refused(tables, artifact):
    with pytest.raises(InputError, match=r"fitted on rows of a100-sxm.*--in-sample"):
        evaluate(tables, artifact, gpus=["a100-sxm", "h200-sxm"])
    assert evaluate(tables, artifact, gpus=["a100-sxm"], in_sample=True)["overall"]["mape"] < 0.03


def test_the_measured_tier_hides_whole_groups(tables):
    result = evaluate(tables, None, tier="measured")
    assert result["overall"]["rows"] == 343  # few rows: every fifth is hidden in turn
    assert result["overall"]["rows"] % 7 == 0  # all token counts of an (n, k) pair are hidden together
    assert result["overall"]["mape"] < 0.05


def test_nothing_to_fit_is_said(tables):
    with pytest.raises(InputError, match="no rows"):
        read_samples(tables, ["gemm"], ["b200-sxm"])
    with pytest.raises(FileFormatError, match=r"moe\.parquet.*missing"):
        read_samples(tables, ["moe"])


def test_rows_of_one_shape_teach_a_constant():
    forest = boost(np.ones((3, 5)), np.array([1.0, 2.0, 4.0]), Settings(trees=3))
    for count in (1, 4, 3000):
        np.testing.assert_array_equal(forest.predict(np.zeros((count, 5))), 2.0)
