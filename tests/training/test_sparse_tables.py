"""Published tables of sparse attention: kernels of their own, and whole modules as the sum of their kernels."""

import numpy as np
import pandas
import pytest

from infercast.errors import FileFormatError
from infercast.lab.fit.samples import key_of, sample_of
from infercast.lab.fit.tables import read_sparse_sweep
from infercast.lab.fit.train import fit_artifact
from infercast.ops import IndexScores, SparseAttention, TopK
from infercast.predict.fitted import load_artifact
from infercast.predict.identity import kernel_profile
from training.evaluate import score
from training.tables import FILES, read_samples, read_table


def written(folder, name, **columns):
    """A table of some batches of one GPU."""
    rows = len(columns["latency_ms"])
    common = {"gpu": "h200-sxm", "engine": "vllm", "engine_version": "0.24.0", "num_heads": 64}
    table = {key: [value] * rows for key, value in common.items()} | columns
    path = folder / FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(table).to_parquet(path)
    return path


BATCHES = {"batch_size": [1, 4], "isl": [64, 128], "step": [1000, 0]}


def test_scores_are_of_prompts_alone(tmp_path):
    path = written(tmp_path, "index_scores", batch_size=[1, 4, 4], isl=[64, 1, 8], step=[9, 9, 9], latency_ms=[1, 2, 3])
    (rows,) = read_table(path, "index_scores")
    assert isinstance(rows.op, IndexScores)
    assert rows.seconds.tolist() == [1e-3, 3e-3]
    assert key_of(rows) == ("index_scores", "h200-sxm", "vllm", "fp8 prompt")
    assert np.unique(rows.group).size == 2


def test_choices_are_the_middle_of_the_best_and_the_worst_scores(tmp_path):
    """And where there is nothing to choose from, nothing is launched."""
    modes = {"score_mode": ["flat", "top_last", "flat"], "compress_ratio": [1] * 3}
    sizes = {"batch_size": [2] * 3, "isl": [8] * 3, "step": [9000, 9000, 5]}
    (rows,) = read_table(written(tmp_path, "top_k", **sizes, **modes, latency_ms=[4.0, 1.0, 0.0]), "top_k")
    assert isinstance(rows.op, TopK)
    assert rows.seconds == pytest.approx([2e-3])


def test_a_row_of_connections_is_of_two(tmp_path):
    table = {"num_tokens": [8, 9], "hidden_size": [4096] * 2, "num_sites": [2] * 2, "latency_ms": [0.02, 0.04]}
    path = written(tmp_path, "hyper_connection", **table, kernel_source=["mhc_pre", "mhc_post"])
    halves = {rows.op.half: rows.seconds.tolist() for rows in read_table(path, "hyper_connection")}
    assert halves == {"pre": [1e-5], "post": [2e-5]}


def module(folder, name, latency_ms, **columns):
    kinds = {"model": "MiniMaxAI/MiniMax-M3", "kv_cache_dtype": "bfloat16", "gemm_type": "bfloat16"}
    kinds |= {"mla_dtype": "bfloat16", "kernel_source": "MiniMaxM3SparseTritonImpl"}
    rows = {key: [value] * len(latency_ms) for key, value in kinds.items()}
    return written(folder, name, **rows, **columns, latency_ms=latency_ms)


def test_attention_is_what_the_other_kernels_of_a_module_leave(tmp_path):
    sizes = {"batch_size": [4, 64], "isl": [1, 1], "step": [4000, 4000]}
    path = module(tmp_path, "msa_decode_attention", [0.2, 0.001], **sizes)
    (rows,) = read_table(path, "msa_decode_attention")
    assert isinstance(rows.op, SparseAttention)
    assert rows.own[0] == pytest.approx(rows.seconds[0] - rows.other_seconds[0])
    assert rows.own[1] == pytest.approx(0.05 * rows.seconds[1]), "a module never beats its products"
    assert rows.whole(rows.own)[0] == pytest.approx(rows.seconds[0])
    sample = sample_of(rows)
    assert sample.weight[1] < sample.weight[0] < 1
    assert key_of(rows)[3] == "msa decode"


def test_prompts_that_the_host_bounds_teach_nothing(tmp_path):
    sizes = {"batch_size": [1] * 3, "isl": [16, 32, 4096], "step": [0] * 3}
    path = module(tmp_path, "msa_prompt_attention", [0.5, 0.6, 2.0], **sizes)
    (rows,) = read_table(path, "msa_prompt_attention")
    assert rows.seconds.tolist() == [2e-3]


def test_a_table_without_latencies_is_refused(tmp_path):
    path = tmp_path / FILES["index_scores"]
    path.parent.mkdir()
    pandas.DataFrame({"gpu": ["h200-sxm"], "engine": ["vllm"]}).to_parquet(path)
    with pytest.raises(FileFormatError, match="lacks the column 'latency_ms'"):
        list(read_table(path, "index_scores"))


def test_a_sweep_names_the_same_kernels():
    shapes = [
        ("index_scores", 64, 1, 64, 0, "fp8 prompt"),
        ("index_scores_decode", 1, 4, 64, 0, "fp8 decode"),
        ("top_k_decode", 1, 4, 0, 2048, "decode"),
        ("mla", 64, 1, 16, 2048, "mla bf16 prompt"),
        ("mla_packed", 1, 4, 64, 2048, "mla fp8 decode"),
        ("msa_choice", 64, 1, 16, 16, "blocks prompt"),
        ("msa_decode_choice", 1, 4, 16, 16, "bf16 decode"),
        ("msa", 64, 1, 16, 16, "msa prompt"),
    ]
    names = ("op", "q_len", "batch", "heads", "topk", "expected")
    table = pandas.DataFrame(shapes, columns=names).assign(gpu="h200-sxm", prefix=9000, kv_heads=1, kv_dtype="bf16")
    table = table.assign(burst_us=50.0, index=range(len(table)))
    found = {(table.op[rows.index[0]], rows.kernel) for rows in read_sparse_sweep(table)}
    assert found == set(zip(table.op, table.expected, strict=True))


def test_a_family_is_fitted_and_scored_by_itself(tmp_path):
    """What was fitted without a GPU is scored on it."""
    sizes = [(batch, new, prefix) for batch in (1, 4, 16) for new in (8, 64, 512) for prefix in (0, 500, 9000)]
    batch, new, prefix = (np.array(each) for each in zip(*sizes, strict=True))
    tokens = batch * new
    tables = []
    for gpu, speed in (("h100-sxm", 1.0), ("h200-sxm", 1.0), ("b200-sxm", 2.0)):
        latency = 5e-3 + tokens * prefix / speed / 1e8
        path = written(tmp_path, "index_scores", batch_size=batch, isl=new, step=prefix, latency_ms=latency)
        tables.append(pandas.read_parquet(path).assign(gpu=gpu))
    pandas.concat(tables).to_parquet(path)
    out = tmp_path / "kernels.npz"
    entries = fit_artifact(read_samples(tmp_path, ["index_scores"], ["h100-sxm", "b200-sxm"]), out, {})
    assert {entry.gpu for entry in entries} == {"h100-sxm", "b200-sxm", "*"}
    options = {"families": ["index_scores"], "gpus": ["h200-sxm"], "tier": "unseen", "in_sample": False}
    found = score(tmp_path, load_artifact(out), kernel_profile(), **options)
    assert found["overall"]["rows"] == len(sizes)
    assert found["overall"]["mape"] < 1.0
