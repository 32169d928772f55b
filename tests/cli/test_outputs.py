"""``infercast simulate --report`` and ``--trace-out``: files beside the same answer."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infercast.forecast.explain import step_log as lanes

RUN = (
    "simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--concurrency", 4, "-n", 40, "--input-len", 200, "--output-len", 10,
    "--max-num-seqs", 64,
)  # fmt: skip
POOLS = ("disaggregate", "qwen3-0.6b", "--prefill-gpu", "h100-sxm", "--decode-gpu", "h200-sxm", *RUN[4:])


def test_files_do_not_change_the_answer(infercast: Any, answered: Any, tmp_path: Path, unrendered: None) -> None:
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    plain = answered(*RUN)
    with_files = infercast(*RUN, "--report", page, "--trace-out", trace)
    assert (with_files.code, with_files.out, with_files.err) == (0, plain.out, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(each["name"] == "arrival" for each in events) == 40
    again = infercast(*RUN, "--json", "--trace-out", trace)
    assert again.json["ttft_ms"] == answered(*RUN, "--json").json["ttft_ms"]


@pytest.mark.parametrize(
    ("words", "arrivals", "lanes"),
    [
        ((*RUN[:4], "--rate", 20, *RUN[6:], "-dp", 2), 40, {"engine 1", "engine 2", "host thread"}),
        ((*RUN, "-pp", 2), 40, {"engine", "stage 1: steps", "stage 2: steps"}),
        (POOLS, 80, {"prefill engine 1", "decode engine 1", "decode requests 1", "link"}),
    ],
    ids=["replicas", "stages", "pools"],
)
def test_every_system_has_all_files(
    infercast: Any, answered: Any, tmp_path: Path, words: Any, arrivals: int, lanes: set[str], unrendered: None
) -> None:
    page, trace, table = tmp_path / "run.html", tmp_path / "run.json", tmp_path / "run.csv"
    with_files = infercast(*words, "--report", page, "--trace-out", trace, "--requests-out", table)
    assert (with_files.code, with_files.out) == (0, answered(*words).out)
    text = page.read_text(encoding="utf-8")
    for title in ("Where time goes", "The slowest first tokens", "How close kernels come"):
        assert title in text
    header, *rows = table.read_text(encoding="utf-8").splitlines()
    assert header.split(",")[:2] == ["sent_s", "input_tokens"]
    assert len(rows) == 40
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(each["name"] == "arrival" for each in events) == arrivals
    assert lanes <= {each["args"]["name"] for each in events if each["name"].endswith("_name")}


def test_the_same_bytes_every_time(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1794820000")
    pairs = []
    for name in ("one", "two"):
        page, trace = tmp_path / f"{name}.html", tmp_path / f"{name}.json"
        infercast(*RUN, "--report", page, "--trace-out", trace)
        pairs.append((page.read_bytes(), trace.read_bytes()))
    assert pairs[0] == pairs[1]
    command = f"infercast {' '.join(map(str, RUN))}"
    assert f"<p>Command:</p><pre><code>{command}</code></pre>".encode() in pairs[0][0]
    assert b"16 November 2026" in pairs[0][0]


def test_a_date_that_is_none(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    result = infercast(*RUN, "--report", tmp_path / "run.html")
    assert result.code == 2
    assert result.err == "infercast: SOURCE_DATE_EPOCH must be seconds since 1970, not 'today'\n"


def test_a_window_and_a_cut(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "run.json"
    assert infercast(*RUN, "--trace-out", trace, "--trace-window", "0.25:0.5").err == ""
    assert json.loads(trace.read_text())["otherData"]["window_s"] == "0.25 to 0.5"
    monkeypatch.setattr(lanes, "MOST_SLICES", 500)
    result = infercast(*RUN, "--trace-out", trace)
    assert result.code == 0
    assert "run.json holds the run from 0 to" in result.err
    assert "--trace-window A:B" in result.err


def test_a_window_after_the_run_is_refused_before_anything_is_written(infercast: Any, tmp_path: Path) -> None:
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    result = infercast(*RUN, "--report", page, "--trace-out", trace, "--trace-window", "500:600")
    assert result.sentence.startswith("--trace-window 500:600 begins after the run, which ends at ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--report", "run.pdf"), "--report run.pdf must end in .html or .htm"),
        (("--report", "no/run.html"), "--report no/run.html needs the folder no, which does not exist"),
        (("--trace-out", "run.html"), "--trace-out run.html must end in .json"),
        (("--trace-window", "0:5"), "--trace-window needs --trace-out FILE"),
        (("--trace-out", "run.json", "--trace-window", "5"), "two numbers of seconds like 0:60, not '5'"),
        (("--trace-out", "run.json", "--trace-window", "5:1"), "begin at 0 or later and end after that, not '5:1'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = infercast(*RUN, *words)
    assert result.code == 2
    assert result.out == ""
    assert expected in result.err
    assert not [*tmp_path.iterdir()]


def test_a_missing_library_is_named(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = infercast(*RUN, "--report", tmp_path / "run.html")
    assert result.code == 2
    assert result.err == f"infercast: --report needs matplotlib: {sys.executable} -m pip install matplotlib\n"
