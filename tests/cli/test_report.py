"""``infercast report``: runs that other commands saved, compared."""

import json
from pathlib import Path
from typing import Any

import pytest

RUN = ("simulate", "qwen3-0.6b", "--rate", 20, "-n", 30, "--max-num-seqs", 64, "--json")


@pytest.fixture
def saved(infercast: Any, tmp_path: Path) -> list[Path]:
    paths = []
    for gpu in ("h200-sxm", "h100-sxm"):
        paths.append(tmp_path / f"{gpu}.json")
        paths[-1].write_text(infercast(*RUN, "--gpu", gpu).out, encoding="utf-8")
    return paths


def test_tables_data_and_a_page(
    infercast: Any, saved: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    page = tmp_path / "compared.html"
    shown = infercast("report", *saved, "--out", page)
    assert shown.code == 0, shown.err
    for words in ("Side by side", "h200-sxm", "h100-sxm", "TTFT p99", "What differs", "num_gpu_blocks"):
        assert words in shown.out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "1 January 1970" in text
    data = infercast("report", *saved, "--json").json
    (row,) = (each for each in data["rows"] if each["quantity"] == "output_tokens_per_s")
    assert row["values"]["h200-sxm"] == json.loads(saved[0].read_text())["output_tokens_per_s"]
    lines = infercast("report", *saved, "--format", "csv").out.splitlines()
    assert len(lines) == 1 + len(data["rows"])


def test_what_cannot_be_compared(infercast: Any, saved: list[Path], tmp_path: Path) -> None:
    assert infercast("report", saved[0]).sentence == f"{saved[0]} holds one run; give two files or more to compare"
    assert "cannot be read: No such file or directory" in infercast("report", saved[0], tmp_path / "no.json").sentence
    assert "must end in .html or .htm" in infercast("report", *saved, "--out", tmp_path / "page.pdf").sentence
    assert "is not JSON" in infercast("report", saved[0], __file__).sentence
