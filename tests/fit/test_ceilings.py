"""Ceilings are the lowest tenth of what was measured, whoever measured it and however often."""

import sys
from pathlib import Path

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.lab.fit.tables import Rows
from infercast.ops import Gemm
from infercast.predict.ceilings import CEILINGS
from infercast.predict.fitted import load_artifact
from infercast.predict.identity import SWEEP

FOLDER = Path(__file__).parents[2] / "benchmarks" / "accuracy"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)
sys.path.append(str(FOLDER))
from ceilings import QUANTILE, Measured, are_cold, fit_ceilings, leave_out, quantising, read_measured  # noqa: E402 - it is there only now

SWEEPS = Path(__file__).parents[2] / "measurements"


def measured(gpus: tuple[str, ...], rows: int = 1500) -> Measured:
    """Kernels that take 1 to 2 times the limit for a small feature and 2 to 4 times for a large one."""
    random = np.random.default_rng(7)
    size = rows * len(gpus)
    features = random.uniform(0, 2, (size, 3))
    excess = np.log(1 + random.uniform(0, 1, size)) + np.log(2) * (features[:, 0] > 1)
    return Measured(features, excess, random.integers(0, 200, size), np.ones(size), np.repeat(gpus, rows))


def test_one_in_ten_beats_a_ceiling(tmp_path: Path) -> None:
    rows = measured(("h200-sxm", "l40s"))
    (entry,) = fit_ceilings({("gemm", "bf16"): rows}, tmp_path / "ceilings.npz", {"what": "a test"})
    assert entry.held_out_error == pytest.approx(QUANTILE, abs=0.06)
    found = load_artifact(tmp_path / "ceilings.npz", CEILINGS).find("gemm", "*", "*", "bf16")
    assert found is not None
    small, large = found[1].predict(np.array([[0.5, 1, 1], [1.5, 1, 1]]))
    assert np.exp(small) == pytest.approx(1.1, abs=0.1)
    assert np.exp(large) == pytest.approx(2.2, abs=0.2)


def test_a_gpu_left_out_is_held_against_the_others() -> None:
    found = leave_out(measured(("h200-sxm", "l40s")), "l40s")
    assert found is not None
    beaten, reached = found
    assert beaten == pytest.approx(QUANTILE, abs=0.06)
    assert 0.65 < reached < 0.85
    assert leave_out(measured(("l40s",)), "l40s") is None


def rows_of(op: Gemm, engine: str) -> Rows:
    count = np.size(op.n)
    return Rows("gemm", "h200-sxm", engine, op.dtype, "", np.zeros(count), op, np.ones(count), np.arange(count))


def test_what_may_be_warm_teaches_nothing_where_memory_decides() -> None:
    gpu, n = load_gpu("h200-sxm"), np.array([64, 2048, 65_536])
    products = Gemm(np.full(3, 8), n, np.full(3, 4096))
    # The first is shorter than a launch, the second would be read from the cache, the third cannot be.
    assert are_cold(rows_of(products, "sglang"), gpu).tolist() == [True, False, True]
    assert are_cold(rows_of(products, SWEEP), gpu).all()


def test_tables_time_the_quantising_with_the_product() -> None:
    gpu, sizes = load_gpu("h200-sxm"), (np.array([8192]), np.array([4096]), np.array([4096]))
    assert np.all(quantising(rows_of(Gemm(*sizes, "fp8"), "sglang"), gpu) > 0)
    assert np.all(quantising(rows_of(Gemm(*sizes, "fp8"), SWEEP), gpu) == 0)
    assert np.all(quantising(rows_of(Gemm(*sizes), "sglang"), gpu) == 0)


@pytest.mark.skipif(not SWEEPS.exists(), reason="needs our own sweep beside the tests")
def test_our_own_sweep_can_teach(tmp_path: Path) -> None:
    found = read_measured(tmp_path, SWEEPS)
    assert {("gemm", "bf16"), ("attention_decode", ""), ("moe", "bf16")} <= set(found)
    for rows in found.values():
        assert np.isfinite(rows.excess).all()
        assert np.isfinite(rows.features).all()
