"""Tables of recurrent layers, published and of the sweep, read as operators and fitted."""

import numpy as np
import pandas
import pytest

from infercast.errors import FileFormatError
from infercast.lab.fit.samples import is_left_out, key_of, sample_of, sweep_samples
from infercast.lab.fit.tables import read_sweep
from infercast.lab.measure.rows import ON_REQUEST, sweep_cases
from infercast.ops import Scan, ShortConvolution
from training.recurrent_tables import RECURRENT_FILES, SOURCES
from training.tables import read_samples, read_table

ROW = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128, "d_conv": 4, "phase": "context"}
STATE_SPACE = {"n_groups": 8, "d_state": 128, "nheads": 64, "head_dim": 64, "chunk_size": 128, "phase": "context"}


def table(kind, gpus=("h100-sxm", "h200-sxm")):
    """Every kernel that is read, on two GPUs, of four lengths in two batches, and one that is not read."""
    shape = STATE_SPACE if kind == "mamba2" else ROW
    rows = [
        {**shape, "gpu": gpu, "engine": source.engine, "engine_version": source.version, "kernel_source": source.rows}
        | {"batch_size": batch, "seq_len": length, "latency_ms": 0.05 + 2e-5 * batch * length}
        for source in SOURCES[kind]
        for gpu in gpus
        for batch in (1, 4)
        for length in ((1,) if source.rows.endswith(("update", "decode")) else (64, 512, 2048, 4096))
    ]
    rows.append({**rows[0], "phase": "verify"})
    rows.append({**rows[0], "engine_version": "0.1"})
    return pandas.DataFrame(rows)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sparse-and-recurrent").mkdir()
    for kind, file in RECURRENT_FILES.items():
        table(kind).to_parquet(tmp_path / file)
    return tmp_path


@pytest.mark.parametrize("kind", RECURRENT_FILES)
def test_rows_become_operators_with_their_kernel_named(folder, kind):
    parts = list(read_table(folder / RECURRENT_FILES[kind], kind))
    assert sum(rows.seconds.size for rows in parts) < len(table(kind)) - 1, "drafts and old versions are left out"
    for rows in parts:
        assert key_of(rows)[3] == rows.kernel
        assert not is_left_out(rows)
        assert np.isfinite(sample_of(rows).residual).all()
        assert len(np.unique(rows.group)) == 1, "one layout of heads stays together"
        if isinstance(rows.op, Scan):
            assert rows.kernel == f"{kind}/{rows.op.kernel}"


def test_convolutions_of_queries_keys_and_values_are_three(folder):
    parts = list(read_table(folder / RECURRENT_FILES["kda"], "kda"))
    prompts = next(rows for rows in parts if isinstance(rows.op, ShortConvolution) and not rows.op.update)
    update = next(rows for rows in parts if isinstance(rows.op, ShortConvolution) and rows.op.update)
    assert (prompts.op.channels, update.op.channels) == (32 * 128, 2 * 16 * 128 + 32 * 128)
    assert prompts.seconds.min() == pytest.approx((0.05e-3 + 2e-8 * 64) / 3)


def test_samples_have_a_model_for_each_kernel(folder):
    keys = {(key[0], key[3]) for key in read_samples(folder, tuple(RECURRENT_FILES))}
    assert {("scan", "gdn/flashinfer"), ("scan", "mamba2/cute"), ("state_update", "kda")} <= keys
    assert {("convolution", "prompts/triton"), ("convolution", "update/cuda")} <= keys


def test_a_table_that_lacks_a_column_is_named(folder):
    path = folder / RECURRENT_FILES["gdn"]
    table("gdn").drop(columns="num_v_heads").to_parquet(path)
    with pytest.raises(FileFormatError, match="lacks the column 'heads'"):
        list(read_table(path, "gdn"))
    path.write_bytes(b"not parquet")
    with pytest.raises(FileFormatError, match="cannot be read as parquet"):
        list(read_table(path, "gdn"))


@pytest.fixture
def swept(tmp_path):
    """A sweep whose every kernel takes ten microseconds and a little for each token."""
    gpu = tmp_path / "h200-sxm"
    gpu.mkdir()
    (gpu / "meta.toml").write_text('gpu = "h200-sxm"\n')
    for family in ("scan", "state_update", "convolution"):
        shapes = [case.shape for case in sweep_cases((family,))[::4]]
        tokens = [shape.get("rows", 0) or shape["batch"] * shape["q_len"] for shape in shapes]
        rows = pandas.DataFrame(shapes).assign(gpu="h200-sxm", latency_us=10.0 + 0.2 * np.array(tokens))
        rows.assign(burst_us=rows.latency_us).to_parquet(gpu / f"{family}.parquet")
    return tmp_path


def test_a_sweep_of_them_is_read(swept):
    keys = {(key[0], key[3]) for key in sweep_samples(swept, ("gdn",))}
    assert keys == {
        *(("scan", f"{kind}/triton") for kind in ("gdn", "kda", "mamba2")),
        *(("state_update", kind) for kind in ("gdn", "kda", "mamba2")),
        ("convolution", "prompts/triton"),
        ("convolution", "update/triton"),
    }
    for rows in read_sweep(swept / "h200-sxm", ("scan", "convolution")):
        tokens = rows.op.num_tokens if isinstance(rows.op, Scan) else rows.op.tokens
        assert tokens == pytest.approx((rows.seconds * 1e6 - 10.0) / 0.2, rel=0.02), "uneven lengths have this mean"


def test_the_plan_has_few_layouts_and_many_lengths():
    cases = sweep_cases(("scan", "state_update", "convolution", "gating"))
    assert 800 < len(cases) < 1200
    scans = [case.shape for case in cases if case.family == "scan"]
    assert len({(shape["kind"], shape["heads"], shape["key_heads"]) for shape in scans}) == 11
    lengths = [shape["q_len"] for shape in scans]
    assert min(lengths) < 16 < 16_384 < max(lengths)
    assert {shape["sigma"] for shape in scans} == {0.0, 0.5, 1.0}
    assert not any(case.family in ON_REQUEST for case in sweep_cases()), "on request"
