"""Two engines from the command line: tables, JSON and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = (
    "simulate", "qwen2.5-0.5b", "--gpu", "h200-sxm", "--rate", 20, "-n", 40, "--input-len", 400, "--output-len", 30,
    "--predictor", "roofline", "--max-num-seqs", 64,
)  # fmt: skip


def test_two_engines_are_shown_side_by_side(answered: Any) -> None:
    run = answered(*WORDS, "--engine", "vllm@0.25,sglang", "--full")
    assert run.code == 0, run.err
    for words in ("vllm@0.25", "sglang@0.5.23", "Why", "Steps on vllm@0.25", "KV cache tokens", "prompts alone"):
        assert words in run.out


def test_json_has_the_same(answered: Any) -> None:
    found = answered(*WORDS, "--engine", "vllm@0.25", "--what-if", "engine=vllm@0.33", "--json").json
    assert [side["engine"] for side in found["steps"]] == ["vllm@0.25", "vllm@0.33"]
    assert found["reasons"]
    assert {"step_us", "launch", "padded_tokens", "families_us"} == {*found["same_steps"][0]["before"]}
    assert found["before"]["deployment"]["engine_note"] is None
    assert "by its source" in found["after"]["deployment"]["engine_note"]


def test_a_page_is_written(infercast: Any, tmp_path: Path, unrendered: None) -> None:
    page = tmp_path / "engines.html"
    assert infercast(*WORDS, "--engine", "vllm@0.25,sglang", "--report", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "<h2>Why</h2>" in text
    assert 'id="chart-side-by-side"' in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "vllm,sglang,vllm@0.25"), "--engine takes two engines to compare, not 3"),
        (("--engine", "vllm,tgi"), "TGI is not modelled"),
        (
            ("--engine", "vllm,sglang", "--trace-out", "t.json"),
            "two engines show two runs side by side",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(answered: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in answered(*WORDS, *words).sentence
