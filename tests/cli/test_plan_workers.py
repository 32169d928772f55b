"""``infercast plan`` with workers: the same bytes, and one sentence where it cannot be."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infercast.cli import main

QUESTION = (
    "plan", "qwen3-0.6b", "--rate", "4", "--num-requests", "30", "--slo", "ttft_p95<500ms", "--gpu", "l40s",
    "--max-gpus", "1", "--vary", "max_num_seqs=64", "--json",
)  # fmt: skip


@pytest.fixture
def call(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["infercast", *QUESTION, *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.run()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out + captured.err  # type: ignore[return-value]

    return run


def test_a_file_of_answers_gives_the_same_bytes(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = call("--workers", 1, "--resume", path)
    assert first[0] == 0
    lines = path.read_text("utf-8").splitlines()
    assert all(set(json.loads(line)) == {"key", "answer"} for line in lines)
    assert call("--workers", 1, "--resume", path) == first
    assert path.read_text("utf-8").splitlines() == lines
    assert call() == first


def test_what_cannot_be_is_said_in_a_sentence(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for words, sentence in (
        (("--ray", "auto"), "pip install ray"),
        (("--workers", 0), "workers must be at least 1, not 0"),
        (("--workers", 2, "--ray", "auto"), "--ray auto has workers of its own"),
        (("--resume", tmp_path / "nowhere" / "a.jsonl"), "which does not exist"),
    ):
        code, said = call(*words)
        assert code == 2
        assert sentence in said
