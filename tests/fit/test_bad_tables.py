"""Tables that cannot be learned from: one sentence names the file, the column and the first row that is wrong."""

import numpy as np
import pandas
import pytest

from infercast.errors import FileFormatError, InputError
from infercast.lab.fit.tables import read_table

COLLECTIVE = {"gpu": "h200-sxm", "engine": "nccl", "op": "all_reduce", "kernel": "NCCL", "gpus": 8, "latency_us": 20.0}
MOE = {
    **{"gpu": "h200-sxm", "engine": "vllm", "dtype": "bf16", "kernel": "moe_triton", "routing": "balanced"},
    **{"hidden": 2048, "inter": 768, "topk": 8, "experts": 128, "tp": 1, "ep": 1, "latency_us": 100.0},
}
DECODE = {
    **{"gpu": "h200-sxm", "engine": "vllm", "dtype": "bf16", "kv_dtype": "bf16", "heads": 32, "kv_heads": 8},
    **{"head_dim": 128, "window": 0, "latency_us": 20.0},
}


def cell(column, row, value):
    """A change of one value."""

    def change(table):
        values = table[column].astype(object)
        values.iloc[row] = value
        return table.assign(**{column: values.infer_objects()})

    return change


def scaled(factor, chosen):
    """Latencies of some rows in another unit."""
    return lambda table: table.assign(latency_us=table.latency_us.where(~chosen(table), table.latency_us * factor))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="k"), r"lacks the column 'k'; it needs .*\bm, n, k"),
        (lambda table: table.iloc[:0], "has no rows"),
        (cell("latency_us", 3, -1.0), "row 3, column 'latency_us': must be above 0, not -1"),
        (cell("latency_us", 3, np.nan), "row 3, column 'latency_us': must be a number, not nan"),
        (cell("latency_us", 3, np.inf), "row 3, column 'latency_us': must be above 0, not inf"),
        (lambda table: table.assign(latency_us="fast"), "row 0, column 'latency_us': must be a number, not fast"),
        (cell("m", 5, np.nan), "row 5, column 'm': must be a number, not nan"),
        (cell("m", 5, -4), "row 5, column 'm': must be a whole number of at least 1, not -4"),
        (cell("n", 5, 0), "row 5, column 'n': must be a whole number of at least 1"),
        (cell("k", 5, 512.5), "row 5, column 'k': must be a whole number of at least 1, not 512.5"),
        (cell("gpu", 7, "h999"), "row 7, column 'gpu': unknown GPU 'h999'"),
        (cell("gpu", 7, None), "row 7, column 'gpu': must be a name"),
        (cell("dtype", 7, "bf61"), "row 7, column 'dtype': unknown dtype 'bf61'; did you mean bf16"),
        (scaled(1e-3, lambda t: t.index == 9), r"row 9, column 'latency_us': .* milliseconds or seconds"),
        (scaled(1e-3, lambda t: t.gpu == "h100-sxm"), r"row 343, column 'latency_us': .*h100-sxm.* milliseconds"),
        (scaled(1e-6, lambda t: t.gpu == "h100-sxm"), r"row 343, column 'latency_us': .* seconds"),
        (scaled(1e3, lambda t: t.gpu == "h100-sxm"), r"row 343, .*'latency_us': the rows of h100-sxm .* nanoseconds"),
    ],
)
def test_a_bad_table_is_named(tables, tmp_path, change, message):
    path = tmp_path / "gemm.parquet"
    change(pandas.read_parquet(tables / "gemm.parquet")).to_parquet(path)
    with pytest.raises(InputError, match=message) as refused:
        list(read_table(path, "gemm"))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "row", "changes", "message"),
    [
        ("collective", COLLECTIVE, {"op": "allreduce"}, "column 'op': unknown op 'allreduce'; did you mean all_reduce"),
        ("collective", COLLECTIVE, {"bytes": -8}, "column 'bytes': must be a whole number of at least 1, not -8"),
        ("collective", COLLECTIVE, {"latency_us": 2e-2}, "column 'latency_us': .* milliseconds"),
        ("moe", MOE, {"routing": "random"}, "column 'routing': must be uniform, balanced or power_law_NUMBER"),
        ("moe", MOE, {"topk": 129}, "column 'topk': must be at most 'experts', not 129"),
        ("moe", MOE, {"ep": 256}, "column 'ep': must be at most 'experts', not 256"),
        ("attention_decode", DECODE, {"kv_heads": 64}, "column 'kv_heads': must be at most 'heads', not 64"),
        ("attention_decode", DECODE, {"kv_dtype": "fp9"}, "column 'kv_dtype': unknown kv_dtype 'fp9'"),
        ("attention_decode", DECODE, {"window": -1}, "column 'window': must be a whole number of at least 0, not -1"),
    ],
)
def test_other_families_are_checked_too(tmp_path, family, row, changes, message):
    sizes = {"collective": "bytes", "moe": "tokens", "attention_decode": "kv_len"}
    rows = [{**row, sizes[family]: size, "batch": 8} for size in (1 << 20, 1 << 21, 1 << 22)]
    path = tmp_path / f"{family}.parquet"
    if family == "moe":
        rows = [{**each, "tokens": 64} for each in rows]
    if family == "attention_decode":
        rows = [{**each, "kv_len": 512} for each in rows]
    pandas.DataFrame(rows).to_parquet(path)
    assert sum(part.seconds.size for part in read_table(path, family)) == 3
    pandas.DataFrame([rows[0], {**rows[1], **changes}, rows[2]]).to_parquet(path)
    with pytest.raises(FileFormatError, match=f"row 1, {message}"):
        list(read_table(path, family))


@pytest.mark.parametrize("content", [b"m,n,k\n1,2,3\n", b"", b"PAR1" + bytes(64) + b"PAR1"])
def test_what_is_no_parquet_is_named(tmp_path, content):
    (tmp_path / "gemm.parquet").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"gemm\.parquet: cannot be read as parquet"):
        list(read_table(tmp_path / "gemm.parquet", "gemm"))


def test_a_parquet_cut_short_is_named(tables, tmp_path):
    content = (tables / "gemm.parquet").read_bytes()
    (tmp_path / "gemm.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileFormatError, match="cannot be read as parquet"):
        list(read_table(tmp_path / "gemm.parquet", "gemm"))


def test_a_parquet_overwritten_inside_is_named(tables, tmp_path):
    content = bytearray((tables / "gemm.parquet").read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    (tmp_path / "gemm.parquet").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"gemm\.parquet"):
        list(read_table(tmp_path / "gemm.parquet", "gemm"))


def test_repeated_collectives_are_one_row_each(tmp_path):
    path = tmp_path / "collective.parquet"
    kept = [{**COLLECTIVE, "dtype": "half", "bytes": size} for size in (1024, 2048)]
    versions = [{**row, "engine_version": version} for version in ("2.9.1", "2.10.0") for row in kept]
    old = [{**row, "engine_version": "2.8.0", "latency_us": 40.0} for row in kept]
    sums = [{**row, "engine_version": "2.10.0", "dtype": "int8", "latency_us": 90.0} for row in kept]
    eager = [{**row, "engine_version": "2.10.0", "kernel": "NCCL_eager", "latency_us": 90.0} for row in kept]
    pandas.DataFrame([*versions, *old, *sums, *eager]).to_parquet(path)
    (rows,) = read_table(path, "collective")
    assert rows.op.message_bytes.tolist() == [1024, 2048]
    assert np.allclose(rows.seconds, 20e-6)
