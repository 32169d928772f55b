"""Small tables of kernels whose true latency is known: physics times a factor that depends on the shape."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from infercast.hardware import load_gpu
from infercast.lab.fit.samples import read_samples
from infercast.lab.fit.train import fit_artifact
from infercast.ops import Gemm
from infercast.predict.families.gemm import GEMM
from infercast.predict.fitted import load_artifact

collect_ignore = [] if (Path(__file__).parents[2] / "benchmarks").is_dir() else ["test_fit.py", "test_commands.py"]
"""Benchmarks are not part of a source distribution."""
GPUS = ("a100-sxm", "h100-sxm", "h200-sxm")
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 6144)


@pytest.fixture(scope="session")
def make_gemm_table():
    return gemm_table


def gemm_table(gpus=GPUS) -> pandas.DataFrame:
    m, n, k = (axis.ravel() for axis in np.meshgrid(TOKENS, WIDTHS, WIDTHS))
    parts = []
    for gpu in gpus:
        physics = GEMM.physics(Gemm(m, n, k), load_gpu(gpu)).seconds
        factor = 1.2 + 0.3 * (m >= 64)  # what physics does not know
        parts.append(
            pandas.DataFrame(
                {"gpu": gpu, "engine": "sglang", "engine_version": "1", "dtype": "bf16", "m": m, "n": n, "k": k}
            ).assign(latency_us=physics * factor * 1e6)
        )
    return pandas.concat(parts, ignore_index=True)


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """A folder as `infercast fit` reads it."""
    folder = tmp_path_factory.mktemp("tables")
    gemm_table().to_parquet(folder / "gemm.parquet")
    return folder


@pytest.fixture(scope="session")
def artifact(tables, tmp_path_factory):
    """Fitted on A100 and H100; H200 is left to be foretold."""
    path = tmp_path_factory.mktemp("fitted") / "kernels.npz"
    fit_artifact(read_samples(tables, ["gemm"], ["a100-sxm", "h100-sxm"]), path, {"note": "made up"})
    return load_artifact(path)
