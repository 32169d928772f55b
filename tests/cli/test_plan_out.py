"""``infercast plan --out``."""

from pathlib import Path
from typing import Any

QUESTION = (
    "plan", "qwen3-0.6b", "--gpu", "l4", "--max-gpus", 1, "--rate", 2, "-n", 40, "--input-len", 200, "--output-len", 9,
    "--slo", "ttft_p99<1s,tpot_p95<40ms",
)  # fmt: skip


def test_a_folder_with_what_to_run_next(infercast: Any, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    result = infercast(*QUESTION, "--out", folder)
    assert result.code == 0, result.err
    assert f"10 files are in {folder}" in result.err
    assert "pip install vllm==" in (text := (folder / "README.md").read_text())
    assert "&& vllm serve Qwen/Qwen3-0.6B" in text
    again = (folder / "again.sh").read_text().splitlines()[-1]
    assert again.startswith("infercast plan qwen3-0.6b --gpu l4 ")
    assert "--out " not in again
    assert "is not empty" in infercast(*QUESTION, "--out", folder).sentence
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert infercast(*QUESTION, "--out", folder, "--force").code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
