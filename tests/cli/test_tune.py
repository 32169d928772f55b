"""``infercast tune``: ranking in words and as data, the file for vLLM, and a trial on a GPU that exists on paper."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infercast.cli.commands import tune
from infercast.lab.measure.rows import Case

LAYER = ("tune", "deepseek-v2", "--gpu", "h200-sxm", "--tensor-parallel-size", 8, "--tokens", "16,2048", "--top", 2)
FILE = "E=160,N=192,device_name=NVIDIA_H200.json"


def test_a_ranking_in_words(infercast: Any) -> None:
    result = infercast(*LAYER)
    assert result.code == 0, result.err
    text = " ".join(result.out.split())
    assert "vLLM has no file tuned for this layer" in text
    assert "instead of 3 thread blocks on an SM at once" in text
    assert "16 tokens: change to 1" in text
    assert "2,048 tokens: keep the default" in text
    assert "VLLM_TUNED_CONFIG_FOLDER" in text


def test_a_ranking_as_data(infercast: Any) -> None:
    found = infercast(*LAYER, "--json").json
    assert found["file"] == FILE
    first = found["shapes"][0]
    assert first["default"]["configuration"]["BLOCK_SIZE_N"] == 64
    assert first["best"][0]["speedup"] > 1.2
    assert [shape["change"] for shape in found["shapes"]] == [True, False]
    assert first["recommended"] == first["best"][0]["configuration"]
    assert len(first["best"]) == 2


def test_the_file_that_vllm_reads(infercast: Any, tmp_path: Path) -> None:
    found = infercast(*LAYER, "--out", tmp_path, "--json").json
    assert found["written"] == str(tmp_path / FILE)
    written = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert written["16"] == found["shapes"][0]["best"][0]["configuration"]
    assert written["2048"] == found["shapes"][1]["default"]["configuration"], "no gain worth the name"
    assert {"1", "512", "8192"} < set(written), "vLLM takes the nearest number"


def test_a_layer_that_has_a_file_says_so(infercast: Any) -> None:
    text = " ".join(infercast("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", 16).out.split())
    assert "vLLM has file tuned for this layer" not in text
    assert "vLLM has a file tuned for this layer" in text
    refused = infercast("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", 16, "--out", "never")
    assert refused.code == 2
    assert "--out needs --try here" in refused.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "0,4"), "--tokens must be whole numbers from 1"),
        (("--tokens", "many"), "--tokens must be whole numbers from 1"),
        (("--top", 0), "--top must be 1 or more"),
        (("--tensor-parallel-size", 7), "does not divide"),
    ],
)
def test_bad_input_is_one_sentence(infercast: Any, options: tuple[Any, ...], words: str) -> None:
    result = infercast("tune", "deepseek-v2", "--gpu", "h200-sxm", *options)
    assert result.code == 2
    assert words in result.err


def times(cases: Sequence[Case], seconds: float) -> Any:
    """The second of the ranked runs fastest, the first not at all."""
    rows = []
    for number, case in enumerate(cases):
        place = number % 4
        if place != 1:
            rows.append(case.shape | {"latency_us": 80.0 if place == 2 else 100.0})
    return SimpleNamespace(rows=rows)


def test_a_trial_writes_what_was_measured_best(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "gpu_name", lambda: "h200-sxm")
    monkeypatch.setattr(tune, "try_configurations", times)
    found = infercast(*LAYER, "--try", "--out", tmp_path, "--json").json
    assert [round(trial["speedup"], 2) for trial in found["trials"]] == [1.25, 1.25]
    assert found["trials"][0]["tried"][1]["measured_us"] is None
    written = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert written["2048"] == found["shapes"][1]["best"][1]["configuration"]
    text = infercast(*LAYER, "--try").out
    assert "did not run" in text
    assert "16 tokens: change to 2, 1.25 x measured" in text


def test_what_there_was_no_time_for_is_said(infercast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "gpu_name", lambda: "h200-sxm")
    monkeypatch.setattr(tune, "try_configurations", lambda cases, seconds: times(cases[:4], seconds))
    assert "2,048 tokens: the time was up" in infercast(*LAYER, "--try").out
    monkeypatch.setattr(tune, "try_configurations", lambda cases, seconds: SimpleNamespace(rows=[]))
    result = infercast(*LAYER, "--try", "--minutes", 1)
    assert result.code == 2
    assert "nothing was measured within --minutes 1" in result.err


def test_a_trial_is_of_the_gpu_at_hand(infercast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "gpu_name", lambda: "l40s")
    result = infercast(*LAYER, "--try")
    assert result.code == 2
    assert "this machine has a l40s" in result.err
