"""Tables of `infercast measure`, read and fitted."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from infercast.cli.options import choose_predictor
from infercast.errors import FileFormatError, InputError
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import key_of, sample_of, sweep_samples
from infercast.lab.fit.tables import read_sweep, sweep_folders
from infercast.lab.fit.train import fit_measured
from infercast.ops import MoE
from infercast.predict.fitted import Entry
from infercast.predict.identity import SWEEP
from infercast.predict.learned import default_artifact

OURS = Path(__file__).parents[2] / "measurements"


@pytest.fixture
def small(tmp_path):
    """A tenth of our own attention and expert tables."""
    folder = tmp_path / "h200-sxm"
    folder.mkdir()
    (folder / "meta.toml").write_text('gpu = "h200-sxm"\n')
    for family in ("attention_decode", "attention_prefill", "moe"):
        table = pandas.read_parquet(OURS / "h200-sxm" / f"{family}.parquet").iloc[::10]
        table.to_parquet(folder / f"{family}.parquet")
    return tmp_path


def test_our_own_table_is_there_and_large():
    keys = {key_of(rows) for rows in read_sweep(OURS / "h200-sxm", ("gemm", "moe"))}
    assert ("gemm", "h200-sxm", SWEEP, "bf16") in keys
    assert ("moe", "h200-sxm", SWEEP, "fp8/triton") in keys


def test_rows_become_operators_of_the_same_size(small):
    for rows in read_sweep(small / "h200-sxm"):
        sample = sample_of(rows)
        assert sample.residual.shape == rows.seconds.shape == rows.group.shape
        assert np.isfinite(sample.features).all()
        assert np.median(np.abs(sample.residual)) < 1.0


def test_latent_attention_is_a_kernel_of_its_own(small):
    variants = {key[3] for key in sweep_samples(small) if key[0] == "attention_decode"}
    assert variants == {"", "latent"}


def test_a_fitted_table_takes_the_place_of_published_ones(small):
    key, sample = next(item for item in sweep_samples(small, ("moe",)).items())
    entry, forest = fit_measured(key, sample)
    assert isinstance(entry, Entry)
    assert default_artifact().with_models([(entry, forest)]).find(*key) == (entry, forest)


def test_a_folder_without_tables_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no meta\.toml"):
        sweep_folders(tmp_path)
    with pytest.raises(InputError, match=r"no meta\.toml"):
        next(read_sweep(tmp_path))


def test_impossible_latencies_are_named(small):
    path = small / "h200-sxm" / "moe.parquet"
    table = pandas.read_parquet(path)
    table.loc[table.index[3], "latency_us"] = -1.0
    table.to_parquet(path)
    with pytest.raises(FileFormatError, match="row 3: latency_us must be above 0"):
        list(read_sweep(small / "h200-sxm", ("moe",)))
    path.write_bytes(b"not parquet")
    with pytest.raises(FileFormatError, match="cannot be read as parquet"):
        list(read_sweep(small / "h200-sxm", ("moe",)))


def test_a_table_of_ones_own_moves_estimates(small):
    for family in ("attention_decode", "attention_prefill"):
        (small / "h200-sxm" / f"{family}.parquet").unlink()
    before = choose_predictor("learned", None, "h200-sxm", small)
    table = pandas.read_parquet(small / "h200-sxm" / "moe.parquet")
    table[["latency_us", "burst_us"]] *= 2.0
    table.to_parquet(small / "h200-sxm" / "moe.parquet")
    after = choose_predictor("learned", None, "h200-sxm", small)
    op, gpu = MoE(64, 2048, 1024, 64, 8, weight_dtype="bf16"), load_gpu("h200-sxm")
    assert after.seconds(op, gpu) == pytest.approx(2.0 * before.seconds(op, gpu), rel=0.02)
