"""Where rows are kept."""

import json
from pathlib import Path

import pandas
import pytest

from infercast.errors import FileFormatError, InputError
from infercast.lab.measure.rows import Case, Store, reason_of


def row(number: int, family: str = "gemm", **more: object) -> dict[str, object]:
    return {"key": f"{family} {number}", "family": family, "gpu": "l4", "latency_us": float(number), **more}


def test_batches_come_back_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path / "l4")
    store.append([row(1), row(2)])
    store.append([])
    store.append([row(3)])
    again = Store(tmp_path / "l4")
    assert [each["latency_us"] for each in again.rows()] == [1.0, 2.0, 3.0]
    assert again.done() == {"gemm 1", "gemm 2", "gemm 3"}


def test_a_batch_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([row(1)])
    (tmp_path / "parts" / "00001.part").write_text(json.dumps(row(2))[:20])
    assert store.done() == {"gemm 1"}
    store.append([row(3)])
    assert store.done() == {"gemm 1", "gemm 3"}


@pytest.mark.parametrize("damage", ['{"key": "gemm 2", "fam', "[]", '{"latency_us": 1}', "\udcff"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    store.append([row(1)])
    path = tmp_path / "parts" / "00000.jsonl"
    path.write_bytes(path.read_bytes() + damage.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(FileFormatError, match=r"00000.jsonl, line 2: .* remove the file"):
        store.done()


def test_a_removed_file_is_never_made_up_for_by_a_later_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(3):
        store.append([row(number)])
    (tmp_path / "parts" / "00000.jsonl").unlink()
    store.append([row(9)])
    assert store.done() == {"gemm 1", "gemm 2", "gemm 9"}


def test_one_table_a_family(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([row(1), row(2, "moe", tuned=True), row(3)])
    store.append([{**row(4, "moe"), "key": "power moe 4", "table": "power", "watts": 300.0}])
    assert store.write_tables() == {"gemm": 2, "moe": 1, "power": 1}
    gemm, moe, power = (pandas.read_parquet(tmp_path / f"{name}.parquet") for name in ("gemm", "moe", "power"))
    assert list(gemm.columns) == ["gpu", "latency_us"]
    assert list(moe.columns) == ["gpu", "latency_us", "tuned"]
    assert list(power.columns) == ["family", "gpu", "latency_us", "watts"]
    assert not list(tmp_path.glob("*.part"))
    store.append([row(5)])
    assert store.write_tables()["gemm"] == 3


def test_no_rows_no_tables(tmp_path: Path) -> None:
    assert Store(tmp_path).write_tables() == {}


def test_finished_tables_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "gemm.parquet").write_bytes(b"years of work")
    with pytest.raises(InputError, match="holds finished tables"):
        Store(tmp_path)
    assert not (tmp_path / "parts").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        Store(tmp_path / "file" / "l4")


def test_shapes_that_fail_alike_have_one_reason() -> None:
    reasons = {
        reason_of(Case("gemm", {}), RuntimeError(f"mat2 shape ({k}x24) must be divisible by 16")) for k in (64, 4096)
    }
    assert reasons == {"gemm: RuntimeError mat2 shape must be divisible by 16"}
