"""Formats of load generators: what was sent and seen is the same, whoever saved it."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from infercast.calibration.readers import read_results
from infercast.calibration.result import RATE, Asked, Lengths, Result
from infercast.errors import FileFormatError, InputError
from infercast.lab.validate.measured import MeasuredRun

LISTED = ("result-detailed.json", "benchmarks.json")
DRAWN = ("profile_export_aiperf.json", "profile_export_genai_perf.json", "stage_0_lifecycle_metrics.json")
BY_MEANS = ("result.json", "bench.jsonl")
KINDS = {
    "result.json": "vllm bench serve",
    "result-detailed.json": "vllm bench serve, detailed",
    "bench.jsonl": "SGLang bench_serving",
    "benchmarks.json": "GuideLLM",
    "profile_export_aiperf.json": "AIPerf",
    "profile_export_genai_perf.json": "GenAI-Perf",
    "stage_0_lifecycle_metrics.json": "inference-perf",
    "metrics.txt": "Prometheus snapshot",
}


def read(path: Path, asked: Asked | None = None) -> Result:
    (found,) = read_results([path], asked)
    return found


@pytest.mark.parametrize("name", [*LISTED, *DRAWN, *BY_MEANS])
def test_every_format_says_what_was_measured(saved: Path, run: MeasuredRun, name: str) -> None:
    found = read(saved / name)
    assert found.kind == KINDS[name]
    assert found.seen["ttft_p50"] == pytest.approx(np.median(run.ttft))
    assert found.seen["ttft_mean"] == pytest.approx(run.ttft.mean())
    assert found.seen["tpot_p50"] == pytest.approx(np.median(run.tpot))
    assert found.seen[RATE] == pytest.approx(run.output_tokens_per_second, rel=0.01)
    assert len(found.workload.requests) == len(run.workload.requests)
    assert len(found.sha256) == 64


@pytest.mark.parametrize("name", LISTED)
def test_listed_requests_are_replayed(saved: Path, run: MeasuredRun, name: str) -> None:
    found = read(saved / name).workload.requests
    first = run.workload.requests[0].arrival
    for ours, theirs in zip(found, run.workload.requests, strict=True):
        assert (ours.num_input, ours.num_output) == (theirs.num_input, theirs.num_output)
        assert ours.arrival == pytest.approx(theirs.arrival - first, abs=1e-6)


@pytest.mark.parametrize("name", DRAWN)
def test_lengths_that_are_summed_up_are_drawn(saved: Path, run: MeasuredRun, name: str) -> None:
    found = read(saved / name)
    sent = [each.num_input for each in found.workload.requests]
    assert np.mean(sent) == pytest.approx(np.mean([each.num_input for each in run.workload.requests]), rel=0.3)
    assert found.workload.rate == 12
    assert not found.means_only
    assert any("lengths are not listed" in text for text in found.assumptions)


@pytest.mark.parametrize("name", BY_MEANS)
def test_lengths_known_by_their_means_leave_percentiles_open(saved: Path, name: str) -> None:
    assert read(saved / name).means_only
    assert not read(saved / name, Asked(input_len="lognormal:700:0.9", output_len="160")).means_only


def test_a_snapshot_needs_the_load_and_is_the_engines_own_clock(saved: Path) -> None:
    with pytest.raises(InputError, match="--rate or --concurrency"):
        read(saved / "metrics.txt")
    found = read(saved / "metrics.txt", Asked(rate=12))
    assert found.server_side
    assert found.prefix_hit_rate == 0
    assert found.kind == KINDS["metrics.txt"]


def test_a_rate_with_a_limit_is_what_decided(convert: ModuleType, run: MeasuredRun, tmp_path: Path) -> None:
    document = {**convert.bench_serve(run), "max_concurrency": 8}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    assert read(path).workload.rate == 12
    path.write_text(json.dumps({**document, "request_throughput": 4.0}))
    held = read(path).workload
    assert (held.rate, held.concurrency) == (None, 8)
    path.write_text(json.dumps({**document, "request_rate": "inf"}))
    assert read(path).workload.concurrency == 8


def test_a_sweep_is_every_run_of_its_folder(convert: ModuleType, run: MeasuredRun, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"SERVE--BENCH-{number}"
        folder.mkdir()
        (folder / "run=0.json").write_text(json.dumps(convert.bench_serve(run)))
        (folder / "summary.json").write_text("[]")
    assert len(read_results([tmp_path])) == 2
    (tmp_path / "lines.jsonl").write_text(2 * (json.dumps(convert.bench_serving(run, detailed=True)) + "\n"))
    both = read_results([tmp_path / "lines.jsonl"])
    assert [each.file for each in both] == ["lines.jsonl line 1", "lines.jsonl line 2"]


def test_what_speculation_and_caches_did_is_read(convert: ModuleType, run: MeasuredRun, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({**convert.bench_serve(run), "spec_decode_acceptance_length": 2.5}))
    assert read(path).acceptance_length == 2.5
    report = {"cache_report": {"cache_hit_rate_pct": 50.0}, "accept_length": 3.0}
    path.write_text(json.dumps({**convert.bench_serving(run), **report}))
    found = read(path)
    assert (found.acceptance_length, found.prefix_hit_rate) == (3.0, 0.5)
    assert all(each.prefix[0].num_tokens == each.num_input // 2 for each in found.workload.requests)


BROKEN: dict[str, Any] = {
    "not json": "{",
    "another document": {"hello": 1},
    "an empty list": [],
    "nobody answered": {"completed": 0},
    "a time below nothing": {"mean_ttft_ms": -1.0},
    "a time that is no number": {"mean_ttft_ms": float("nan")},
    "a rate of words": {"request_rate": "fast"},
    "lists of different length": {"input_lens": [1], "output_lens": [1, 2], "ttfts": [0.1], "itls": [[]]},
    "lists of words": {"input_lens": ["a"], "output_lens": [1], "ttfts": [0.1], "itls": [[]]},
    "gaps that are no lists": {"input_lens": [1], "output_lens": [2], "ttfts": [0.1], "itls": [3]},
    "a rate that grows": {"ramp_up_strategy": "linear"},
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_one_sentence(convert: ModuleType, run: MeasuredRun, tmp_path: Path, what: str) -> None:
    path, change = tmp_path / "result.json", BROKEN[what]
    known = convert.bench_serve(run)
    for name in ("median_ttft_ms", "p99_ttft_ms"):
        known.pop(name)
    document = {**known, **change} if isinstance(change, dict) and "hello" not in change else change
    path.write_text(change if isinstance(change, str) else json.dumps(document))
    with pytest.raises(FileFormatError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert "result.json" in str(caught.value)


@pytest.mark.parametrize("text", ['vllm:x{le="a"} 1\n# TYPE', "# TYPE vllm:x histogram\nvllm:x nonsense\n"])
def test_broken_snapshots_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    with pytest.raises(FileFormatError):
        read(path, Asked(rate=1))


def test_a_strategy_that_is_not_known_is_named(convert: ModuleType, run: MeasuredRun, tmp_path: Path) -> None:
    document = convert.guidellm(run)
    document["benchmarks"][0]["config"]["strategy"] = {"type_": "sweep"}
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="synchronous, concurrent"):
        read(path)


def test_lengths_as_a_workload_takes_them() -> None:
    assert str(Lengths(512.3, 1.0)) == "512"
    assert str(Lengths(700.0, 700.0, 10, 4000)) == "lognormal:700:0.833:10:4000"
