"""Sessions, classes and adapters on the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

RUN = ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "-n", 60, "--output-len", 20, "--max-num-seqs", 64)


def test_turns_and_classes_are_told(answered: Any) -> None:
    classes = ("--class", "chat:3:priority=0:ttft=50ms", "--class", "batch:1:priority=9")
    words = (*RUN, "--rate", 6, "--turns", "uniform:2:4", "--think", 1, "--scheduling-policy", "priority", *classes)
    text = answered(*words, "--full").out
    assert "Turns" in text
    assert "TTFT p95" in text
    assert "attained" in text
    data = answered(*words, "--json").json
    assert data["sessions"]["turns"][1]["prefix_hit_rate"] > 0.5
    assert [each["class"] for each in data["classes"]] == ["chat", "batch"]


def test_requests_of_classes_are_written(infercast: Any, tmp_path: Any) -> None:
    table = tmp_path / "requests.csv"
    infercast(*RUN, "--rate", 6, "--class", "chat:3", "--class", "batch:1", "--requests-out", table)
    with table.open() as lines:
        assert {row["class"] for row in csv.DictReader(lines)} == {"chat", "batch"}


def test_conversations_begin_at_a_rate_or_so_many_at_a_time(infercast: Any, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    turns = '{"turns": [{"input": 50, "output": 5}, {"input": 9, "output": 5, "think": 2}]}\n'
    path.write_text(turns * 30, encoding="utf-8")
    for option in (("--session-rate", 5), ("--concurrency", 3)):
        data = infercast(*RUN[:4], "--trace", path, *option, "--json").json
        assert data["sessions"]["count"] == 30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rate", 2, "--think", 3), "--think needs --turns"),
        (("--session-rate", 2), "--session-rate needs --turns"),
        (("--rate", 2, "--class", "chat"), "needs a share"),
        (("--rate", 2, "--adapters", 3), "--enable-lora"),
        (("--rate", 2, "--adapter-skew", 3), "need --adapters"),
        (("--rate", 2, "--follow-sessions"), "--follow-sessions needs --trace"),
        (("--rate", 2, "--turns", 2, "--think", "soon"), "think 'soon'"),
    ],
)
def test_what_makes_no_sense_is_refused(answered: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in answered(*RUN, *words).sentence


def test_adapters_are_served(answered: Any) -> None:
    text = answered(*RUN, "--rate", 6, "--enable-lora", "--max-loras", 2, "--adapters", 4, "--full").out
    assert "4 LoRA adapters" in text
    assert "lora_expand" in text
