"""Published runs: what a row says, and what is made of it."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.errors import FileFormatError
from published import validate
from published.compare import compare_published, set_up, summarise
from published.run import read_server_flags
from published.table import read_published

ROW = {
    "run_id": "someone#1", "source": "someone", "engine_version": "0.18.0", "gpu": "H100",
    "model": "meta-llama/Llama-3.1-8B-Instruct", "dtype": "bf16", "tp": "2", "ep": "1", "isl": "500", "osl": "10",
    "load": "closed-loop", "concurrency": "4.0", "n_requests": "40",
    "server_flags": "kv_cache_dtype=fp8; prefix_caching=off; max_num_batched_tokens=2*ISL; max_num_seqs=concurrency; "
    "gpu_mem_util=0.8; block_size=32",
    "ttft_mean_ms": "40.0", "tpot_mean_ms": "5.0",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(*rows: dict[str, str]) -> Path:
        path = tmp_path / "runs.csv"
        names = list(dict.fromkeys(name for row in rows for name in row))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


def test_a_row_becomes_an_engine_and_its_load(table: Any) -> None:
    (run,) = read_published(table(ROW))
    assert (run.gpu, run.tensor, run.layout, run.version) == ("h100-sxm", 2, "TP2", (0, 18, 0))
    assert (run.workload.concurrency, len(run.workload.requests)) == (4, 40)
    assert {(request.num_input, request.num_output) for request in run.workload.requests} == {(500, 10)}
    settings = set_up(run, "roofline")[1].settings
    assert (settings.max_num_batched_tokens, settings.max_num_seqs, settings.block_size) == (1000, 4, 32)
    assert settings.gpu_memory_utilization == 0.8
    assert not settings.enable_prefix_caching


def test_lengths_differ_only_where_a_row_says_so(table: Any) -> None:
    (run,) = read_published(table({**ROW, "len_dist": "uniform[0.8L, L]"}))
    lengths = np.array([(request.num_input, request.num_output) for request in run.workload.requests])
    assert (lengths.min(axis=0) >= [400, 8]).all()
    assert (lengths.max(axis=0) <= [500, 10]).all()
    assert len(set(lengths[:, 0].tolist())) > 10
    burst = {**ROW, "load": "all-at-once burst", "n_requests": "3"}
    (run,) = read_published(table(burst))
    assert [(each.num_input, each.num_output) for each in run.workload.requests] == 3 * [(500, 10)]


def test_independent_users(table: Any) -> None:
    (run,) = read_published(table({**ROW, "load": "Poisson", "rate": "2.0", "n_requests": "200"}))
    gaps = np.diff([request.arrival for request in run.workload.requests])
    assert gaps.mean() == pytest.approx(0.5, rel=0.3)
    assert gaps.std() > 0.3


def test_what_flags_say() -> None:
    marlin = read_server_flags("MXFP4 via Marlin (w4a16); max_cudagraph_capture_size=2048", 4, 1024)
    assert (marlin.moe_backend, marlin.settings["max_cudagraph_capture_size"]) == ("marlin", 2048)
    eight = read_server_flags("fuse_allreduce_rms; FlashInfer MXFP4xMXFP8 MoE", 4, 1024)
    assert (eight.moe_backend, eight.eight_bit_experts, eight.fuse_allreduce_rms) == ("trtllm", True, True)
    spread = read_server_flags("expert-parallel ON (script enables it)", 4, 1024)
    assert spread.expert_parallel
    assert not read_server_flags("expert-parallel on if ep>1", 4, 1024).expert_parallel


def test_versions_decide_what_flags_leave_open(table: Any) -> None:
    rows = [{**ROW, "engine_version": version, "server_flags": ""} for version in ("0.5.4", "0.10.2*", "0.18.0", "new")]
    engines = [set_up(run, "roofline")[1] for run in read_published(table(*rows))]
    assert [each.engine.name for each in engines] == ["vllm@0.5.4", "vllm@0.10.2", "vllm@0.18.0", "vllm@0.25"]
    assert [each.settings.async_scheduling for each in engines] == [False, False, True, True]
    assert [each.settings.prompts_first for each in engines] == [True, False, False, False]
    assert [each.layout.fused_norms for each in engines] == [False, False, True, True]


def test_bursts_of_chats_have_the_published_mean(table: Any) -> None:
    row = {**ROW, "load": "all-at-once burst", "mean_isl": "230.0", "mean_osl": "220.0", "n_requests": "320"}
    (run,) = read_published(table(row))
    lengths = np.array([(request.num_input, request.num_output) for request in run.workload.requests])
    assert lengths.mean(axis=0) == pytest.approx([230.0, 220.0], rel=0.02)
    assert len({request.arrival for request in run.workload.requests}) == 1


def test_a_cache_in_an_unknown_state_is_not_judged_by_first_tokens(table: Any) -> None:
    row = {**ROW, "load": "constant-rate open loop", "rate": "2.0", "n_requests": "", "flags": "prefix_cache_on"}
    (run,) = read_published(table(row))
    assert run.ttft is None
    assert run.tpot == 0.005
    assert run.workload.requests[1].arrival == 0.5


def test_files_of_a_run_are_found_beside_the_table(table: Any, tmp_path: Path) -> None:
    folder = tmp_path / "someone" / "here"
    folder.mkdir(parents=True)
    lines = [{"arrival_time": 100.0 + index, "input_toks": 30, "output_toks": 4} for index in range(3)]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "meta.json").write_text(json.dumps({"engine_kwargs": {"max_num_seqs": 7, "data_parallel_size": 2}}))
    (run,) = read_published(table({**ROW, "load": "trace of its own", "src_id": "here"}))
    assert [request.arrival for request in run.workload.requests] == [0.0, 1.0, 2.0]
    assert (run.flags.settings["max_num_seqs"], run.data, run.layout) == (7, 2, "TP2+DP2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"isl": "many"}, "line 2: isl must be a number above 0, not 'many'"),
        ({"gpu": ""}, "line 2: needs the column 'gpu'"),
        ({"load": "trace", "src_id": "nowhere"}, "line 2: needs .*requests.jsonl"),
        (
            {"load": "a queue", "rate": "2"},
            "line 2: load 'a queue' is not known; known: closed-loop, all-at-once burst",
        ),
        ({"load": "constant-rate"}, "line 2: load 'constant-rate' needs the column 'rate'"),
        ({"load": "all-at-once burst", "n_requests": ""}, "line 2: load 'all-at-once burst' needs the .* 'n_requests'"),
        ({"concurrency": ""}, "line 2: load 'closed-loop' needs the column 'concurrency'"),
        ({"len_dist": "zipf"}, "line 2: len_dist 'zipf' is not known; known: .*uniform.0.8L,L."),
        ({"isl": ""}, "line 2: load 'closed-loop' needs the column 'isl'"),
    ],
)
def test_bad_rows(table: Any, change: dict[str, str], sentence: str) -> None:
    with pytest.raises(FileFormatError, match=sentence):
        read_published(table({**ROW, **change}))


def test_runs_are_compared_and_refused_ones_kept(table: Any) -> None:
    path = table(ROW, {**ROW, "run_id": "someone#2", "model": "llama-3.1-405b"})
    first, second = compare_published(read_published(path), predictor="roofline")
    assert first.ttft is not None
    assert first.ttft.measured == pytest.approx(0.04)
    assert "does not fit" in second.problem
    summary = summarise([first, second], "tpot")
    assert summary is not None
    assert summary.count == 1
    assert summarise([second], "tpot") is None


def test_runs_of_one_token_have_no_time_per_token(table: Any) -> None:
    (run,) = compare_published(read_published(table({**ROW, "osl": "1"})), predictor="roofline")
    assert run.ttft is not None
    assert run.tpot is None


def test_the_command(table: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(ROW)

    def call(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["validate.py", *map(str, words)])
        try:
            validate.main()
        except SystemExit as end:
            return (end.code, *capsys.readouterr())
        return (0, *capsys.readouterr())

    code, out, _ = call(path, "--predictor", "roofline", "--json")
    assert code == 0
    result = json.loads(out)
    assert set(result) == {
        "runs",
        "by_gpu",
        "by_model",
        "by_layout",
        "by_source",
        "summary",
        "interval_level",
        "reliability",
    }
    assert result["summary"]["runs"] == 1
    assert set(result["summary"]["ttft"]) == {
        "count",
        "median",
        "mean",
        "p90",
        "bias",
        "interval_coverage",
        "interval_half_width_mean",
    }
    low, high = result["runs"][0]["ttft_ms"]["interval"]
    assert low < result["runs"][0]["ttft_ms"]["predicted"] < high
    code, out, _ = call(path, "--predictor", "roofline")
    assert code == 0
    assert "Absolute error by layout" in out
    code, _, err = call(path.with_name("none.csv"))
    assert code == 2
    assert "none.csv" in err
