"""The scoreboard of published runs: its record, its page and what moved between two records."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "scoreboard"
if not FOLDER.is_dir():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)
sys.path.insert(0, str(FOLDER))

from against import differences  # noqa: E402
from groups import errors_of, family_of, load_of, over_sources  # noqa: E402
from page import kind_of, page_of, worst_of  # noqa: E402
from publishers import as_published  # noqa: E402
from record import read_record, record_of, short_source, write_record  # noqa: E402
from simulate import listed_in  # noqa: E402


def line(number: int, error: float = 0.1, **changes: Any) -> dict[str, Any]:
    """A run whose forecast is off by so much."""
    pair = {"measured": 1.0, "predicted": 1.0 + error, "error": error, "low": 0.9 + error, "high": 1.1 + error}
    return {
        "line": number, "source": "someone/runs", "path": f"results/{number}.json", "gpu": "h100-sxm",
        "model": "qwen3-8b", "engine": "vllm", "version": "0.11.0", "precision": "bfloat16", "layout": "TP1",
        "load": "closed loop", "about_load": "concurrency 16", "grade": "A", "ttft": pair, "tpot": pair,
        "assumptions": ["the first 80 of 160 requests are simulated, and the rest is like the last of them"], **changes,
    }  # fmt: skip


def refused(number: int, grade: str = "A") -> dict[str, Any]:
    return {**line(number), "grade": grade, "reason": "images in prompts", "problem": "images"}


def test_a_record_holds_errors_and_no_measured_values() -> None:
    record = record_of([line(1), line(2, 0.3), refused(3), refused(4, "Bs")])
    (first, second) = record["runs"].values()
    pair = line(1)["ttft"]
    width = pytest.approx((pair["high"] - pair["low"]) / 2 / pair["predicted"], rel=1e-3)
    assert first["ttft"] == {"predicted": 1.1, "error": 0.1, "inside": True, "width": width}
    assert second["tpot"]["inside"] is False
    assert (first["precision"], first["family"], first["load"]) == ("bf16", "qwen3", "closed loop, 5 to 32")
    assert record["not_simulated"] == {"A": {"images in prompts": 1}, "Bs": {"images in prompts": 1}}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = record_of([line(1), line(1), refused(3)])
    assert list(record["runs"]) == ["someone/runs: results/1.json", "someone/runs: results/1.json (2)"]
    write_record(tmp_path / "results.json", record)
    assert read_record(tmp_path / "results.json") == record


def test_no_source_counts_more_for_having_published_more() -> None:
    runs = [line(each, 0.1) for each in range(8)] + [line(9, 0.4, source="other/runs")]
    found = list(record_of(runs)["runs"].values())
    assert over_sources(found, "ttft") == pytest.approx(0.25)
    everything = errors_of(found, "ttft")
    assert everything is not None
    assert (everything.count, everything.median) == (9, pytest.approx(0.1))
    assert errors_of(found, "throughput") is None


def test_what_moved_is_told() -> None:
    old, new = record_of([line(1, 0.3), line(2), line(4)]), record_of([line(1, 0.1), line(2, -0.4), line(3)])
    told = differences(old, new)
    assert told[0] == "2 runs in both, 1 new, 1 gone"
    assert any("1 better, 1 worse of 2" in each for each in told)
    assert any(each.startswith("better") and "+30% -> +10%" in each for each in told)
    assert any(each.startswith("worse") and "+10% -> -40%" in each for each in told)


def test_the_page_has_every_table_and_the_worst_runs_with_their_explanations() -> None:
    runs = [line(1), line(2, -0.8, gpu="l4"), line(3, 0.2, gpu="l4"), refused(4)]
    assert "## By grade" not in page_of(record_of(runs), {}, "")
    record = record_of([*runs, line(5, grade="B")])
    key = worst_of(record["runs"])[0]
    assert key == "someone/runs: results/2.json"
    page = page_of(record, {key: "A slow disk."}, "What is left: nothing.")
    for words in ("## By GPU", "## By grade", "A slow disk.", "Not explained yet.", "images in prompts", "nothing."):
        assert words in page
    assert page.count("qwen3-8b on l4") == 1  # one run of each kind


def test_names_of_groups() -> None:
    assert [family_of(name) for name in ("gpt-oss-120b", "qwen3.5-9b", "deepseek-r1", "llama-3.1-8b")] == [
        "gpt-oss", "qwen3.5", "deepseek-r1", "llama-3.1",
    ]  # fmt: skip
    assert load_of("burst", "burst of 100 at t=0") == "burst"
    assert load_of("closed loop", "concurrency 4") == "closed loop, 1 to 4"
    assert short_source("SemiAnalysisAI/InferenceX (CSV export in someone/else)") == "InferenceX (CSV export)"
    assert kind_of("--some-flag 3 changes nothing") == "--some-flag changes nothing"


def test_pages_without_a_release_are_of_their_month() -> None:
    row = {
        "source_repo": "sgl-project/sglang",
        "version": "main branch",
        "date": "",
        "bench_cmd": "",
        "server_cmd": "-",
    }
    assert as_published({**row, "path": "docs/NVIDIA/Nemotron3-Ultra.mdx#L469"})["date"] == "2026-06"
    assert as_published({**row, "path": "docs/NVIDIA/Nemotron3-Ultra.mdx", "version": "0.5.16"})["date"] == ""
    assert as_published({**row, "path": "docs/Someone/Else.mdx#L1"})["date"] == ""


def test_requests_that_a_publisher_lists(tmp_path: Path) -> None:
    lines = [{"arrival_time": 5.0 + each, "input_toks": 10 * each, "output_toks": 3} for each in (1, 2)]
    (tmp_path / "someone").mkdir()
    (tmp_path / "someone/requests.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    ((key, workload),) = listed_in(tmp_path).items()
    assert key == (2, 15.0, 3.0)
    assert [each.arrival for each in workload.requests] == [0.0, 1.0]
    assert listed_in(None) == {}
