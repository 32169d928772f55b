"""``infercast validate``: its JSON is a contract, its tables are for people."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infercast.cli import main
from infercast.cli.commands import measure as validate_command
from infercast.lab.validate.measured import WARM_UP, read_measured, shipped_runs
from infercast.models.library import model_names

PAIR = {"measured", "predicted", "ape"}
RUN = {
    "file", "kind", "label", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tokens_per_s", "requests",
    "idle_ttft_ms", "prompts_ms", "decode_step_ms", "cached_tokens", "loaded_tokens",
    "joules_per_output_token",
}  # fmt: skip
REQUESTS = {"ttft_median", "ttft_p90", "tpot_median", "tpot_p90", "start_order", "ttft_order"}
FILE = {"file", "host", "idle_ttft_error", "decode_step_error", "prompts_error", "loaded_ttft_p50_error"}
SUMMARY = {
    "idle_ttft_ape_max", "loaded_ttft_p50_ape_median", "loaded_ttft_p99_ape_median", "decode_step_ape_median",
    "prompts_ape_median",
    "ttft_p50_ape_median", "ttft_p99_ape_median", "tpot_p50_ape_median", "throughput_ape_median", "kv_blocks_ape_max",
    "runs", "stalled_runs", "interval_coverage",
    "ttft_p50_interval_coverage", "ttft_p99_interval_coverage",
    "tpot_p50_interval_coverage", "output_tokens_per_second_interval_coverage", "interval_half_width_mean",
    "ttft_p50_interval_half_width_mean", "ttft_p99_interval_half_width_mean",
    "tpot_p50_interval_half_width_mean", "output_tokens_per_second_interval_half_width_mean",
    "joules_per_output_token_ape_median", "joules_per_output_token_interval_coverage",
}  # fmt: skip


@pytest.fixture
def validate(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["infercast", "validate", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.run()
        return (end.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return call


def test_the_json_schema(validate: Any, document: Any, write: Any) -> None:
    document["runs"].append({**document["runs"][1], "one_off_stall": True})
    code, out, err = validate(write(document, "one.json.gz"), write(document, "two.json"), "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert set(result) == {"runs", "kv_blocks", "files", "by_load", "summary"}
    assert [run["file"] for run in result["runs"]] == ["one.json.gz", "one.json.gz", "two.json", "two.json"]
    for run in result["runs"]:
        assert set(run) == RUN
        assert set(run["requests"]) == REQUESTS
        for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tokens_per_s"):
            assert set(run[name]) == {*PAIR, "interval", "is_inside"}
            low, high = run[name]["interval"]
            assert low <= run[name]["predicted"] <= high
            assert run[name]["is_inside"] == (low <= run[name]["measured"] <= high)
            error = abs(run[name]["predicted"] / run[name]["measured"] - 1)
            assert run[name]["ape"] == pytest.approx(error)
    assert result["runs"][0]["kind"] == "static"
    assert result["runs"][0]["label"] == "static 4x256x8 #1"
    assert result["runs"][0]["ttft_p50_ms"]["measured"] == pytest.approx(20)
    assert result["runs"][0]["tpot_p50_ms"]["measured"] == pytest.approx(2)
    assert result["runs"][0]["output_tokens_per_s"]["measured"] == pytest.approx(4 * 8 / 0.034)
    assert [set(each) for each in result["kv_blocks"]] == [{"file", *PAIR}] * 2
    assert result["kv_blocks"][0]["measured"] == 68000
    assert [set(each) for each in result["files"]] == [FILE] * 2
    assert set(result["summary"]) == SUMMARY
    assert (result["summary"]["runs"], result["summary"]["stalled_runs"]) == (4, 2)
    names = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tokens_per_s")
    inside = [run[name]["is_inside"] for run in result["runs"] for name in names]
    assert result["summary"]["interval_coverage"] == pytest.approx(sum(inside) / 16)
    errors = sorted(run["ttft_p50_ms"]["ape"] for run in result["runs"])
    assert result["summary"]["ttft_p50_ape_median"] == pytest.approx((errors[1] + errors[2]) / 2)


def test_one_token_runs_have_a_null(validate: Any, document: Any, write: Any) -> None:
    del document["runs"][1]
    for row in document["runs"][0]["requests"]:
        row["n_out"] = 1
    result = json.loads(validate(write(document), "--json")[1])
    assert result["runs"][0]["tpot_p50_ms"] is None
    assert result["summary"]["tpot_p50_ape_median"] is None


def test_joules_of_an_output_token_where_a_file_has_them(validate: Any, document: Any, write: Any) -> None:
    document["runs"][1]["summary"] = {"joule": 240.0, "mean_w": 200.0}
    result = json.loads(validate(write(document), "--json")[1])
    assert result["runs"][0]["joules_per_output_token"] is None
    pair = result["runs"][1]["joules_per_output_token"]
    assert pair["measured"] == pytest.approx(240 / 48)
    assert pair["interval"][0] < pair["predicted"] < pair["interval"][1]
    assert "Joules per output token" in validate(write(document))[1]


def test_a_file_without_runs_still_tells_its_blocks(validate: Any, document: Any, write: Any) -> None:
    document["runs"] = []
    code, out, _ = validate(write(document), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["runs"] == []
    assert result["summary"]["ttft_p50_ape_median"] is None
    assert result["summary"]["kv_blocks_ape_max"] < 0.1
    assert validate(write(document))[0] == 0


def test_tables_group_runs_by_file(validate: Any, document: Any, write: Any) -> None:
    document["runs"][1]["one_off_stall"] = True
    code, out, err = validate(write(document, "one.json.gz"), write(document, "two.json"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines.index("one.json.gz") < lines.index("two.json")
    assert out.count("static 4x256x8 #1") == 2
    assert "KV blocks: 68,000 measured" in out
    assert "Median absolute error (2 stalled runs left out)" in out


def test_options_reach_the_comparison(validate: Any, document: Any, write: Any, tmp_path: Path) -> None:
    document["config"] |= {"gpu": "NVIDIA Z9", "max_num_batched_tokens": 2048}
    path = write(document)
    code, out, _ = validate(path, "--gpu", "l40s", "--model-config", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["kv_blocks"][0]["predicted"] < 34000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not json", ", line 1: is not JSON or gzipped JSON"),
        (gzip.compress(b'{"config": {}, "runs": []}', mtime=0)[:-9], "is not JSON or gzipped JSON"),
        (b'{"runs": []}', "needs the field 'config' of type dict"),
        (b'{"config": {}, "runs": []}', "config needs the field 'name' of type str"),
    ],
)
def test_bad_files_are_one_sentence(validate: Any, tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(content)
    code, out, err = validate(path)
    assert (code, out) == (2, "")
    assert err.startswith(f"infercast: {path}")
    assert err.count("\n") == 1
    assert expected in err


def test_an_unknown_driver_name_is_refused(validate: Any, document: Any, write: Any) -> None:
    document["config"]["gpu"] = "NVIDIA Z9"
    code, out, err = validate(write(document))
    assert (code, out) == (2, "")
    assert err.startswith("infercast: unknown GPU driver name 'NVIDIA Z9'")
    assert err.count("\n") == 1


def test_without_a_file_the_runs_that_come_with_infercast_are_validated(validate: Any, monkeypatch: Any) -> None:
    shipped = shipped_runs()
    assert len(shipped) == 40
    smallest = [path for path in shipped_runs("vllm@0.25") if path.name == "qwen3-0.6b.json.gz"]
    monkeypatch.setattr(validate_command, "shipped_runs", lambda _: smallest)
    code, out, err = validate("--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert {run["kind"] for run in result["runs"]} == {"static", "poisson", "prefix"}
    assert result["summary"]["runs"] == 6
    assert result["summary"]["ttft_p50_ape_median"] < 0.2
    assert result["summary"]["throughput_ape_median"] < 0.2


def test_whose_runs_may_be_said(validate: Any, monkeypatch: Any) -> None:
    asked: list[str] = []
    smallest = [path for path in shipped_runs("sglang") if path.name == "qwen3-30b-a3b__timed.json.gz"]
    monkeypatch.setattr(validate_command, "shipped_runs", lambda engine: asked.append(engine) or smallest)
    code, out, _ = validate("--engine", "sglang", "--json")
    assert (code, asked) == (0, ["sglang"])
    assert json.loads(out)["summary"]["tpot_p50_ape_median"] < 0.05


def test_all_runs_of_sglang_can_be_read() -> None:
    files = [read_measured(path) for path in shipped_runs("sglang")]
    assert sum(run.kind != WARM_UP for file in files for run in file.runs) == 124 + 36
    assert sum(file.num_stalled for file in files) == 2 + 1
    assert {file.model for file in files} <= set(model_names())
    assert {file.setup.settings.engine for file in files} == {"sglang@0.5.16", "sglang@0.5.23"}
    newer = [file for file in files if file.setup.settings.engine == "sglang@0.5.23"]
    assert [file.setup.over_http for file in newer] == [file.path.name.endswith("__http.json.gz") for file in newer]


def test_all_runs_that_come_with_infercast_can_be_read() -> None:
    files = [read_measured(path) for path in shipped_runs()]
    assert sum(run.kind != WARM_UP for file in files for run in file.runs) == 423
    assert sum(file.num_stalled for file in files) == 18
    assert {file.model for file in files} <= set(model_names())


def test_anchors_correct_the_kernels_of_one_gpu_and_engine(validate: Any, document: Any, write: Any) -> None:
    anchors = Path(__file__).parents[2] / "measurements/h200-sxm/anchors"
    plain, few = (
        json.loads(validate(write(document), "--predictor", "learned", *more, "--json")[1])["runs"][0]
        for more in ((), ("--anchors", anchors))
    )
    measured = plain["tpot_p50_ms"]["predicted"]
    assert few["tpot_p50_ms"]["predicted"] != measured
    assert few["tpot_p50_ms"]["predicted"] == pytest.approx(measured, rel=0.05)
    other = {**document, "config": {**document["config"], "gpu": "NVIDIA H100 80GB HBM3"}}
    code, _, err = validate(write(document, "one.json"), write(other, "two.json"), "--anchors", anchors)
    assert code == 2
    assert "these files are of vllm on h100-sxm, vllm on h200-sxm: validate one at a time" in err


def test_the_command_says_which_host_it_took(validate: Any, document: Any, write: Any, tmp_path: Path) -> None:
    path, host = write(document), tmp_path / "host.json"
    host.write_text(json.dumps({"python": {"dict_loop_20k_us": {"p50": 4000.0}}}))
    code, out, _ = validate(path, "--host", host)
    assert code == 0
    assert "Host: your host (from host.json)" in " ".join(out.split())
    assert "host.json" in json.loads(validate(path, "--host", host, "--json")[1])["files"][0]["host"]
    code, _, err = validate(path, "--host", path)
    assert (code, err.count("\n")) == (2, 1)
    assert "is not what `infercast measure --host` writes" in err


def test_a_client_over_http_needs_to_know_nothing_of_the_engine(validate: Any, document: Any, write: Any) -> None:
    document["config"] = {"name": document["config"]["name"]}
    for run in document["runs"]:
        for row in run["requests"]:
            row["chunks"] = row["n_out"]
    rows = document["runs"][1]["requests"]
    document["runs"].append({"kind": "closed", "clients": 2, "requests": rows})
    code, _, err = validate(write(document))
    assert (code, err.strip().endswith("config.gpu is missing; name the GPU there, or with --gpu")) == (2, True)
    code, out, err = validate(write(document), "--gpu", "h200-sxm", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert [run["label"] for run in result["runs"]][-1] == "closed 2 clients"
    read = read_measured(write(document))
    assert read.setup.over_http
    assert read.setup.settings.engine == "vllm@0.33"
    assert [run.workload.concurrency for run in read.runs] == [None, None, 2]
    document["config"]["vllm"] = "0.32.1"
    assert read_measured(write(document)).setup.settings.engine == "vllm@0.32"
