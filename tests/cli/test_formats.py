"""``--format``: one answer as a table, JSON, CSV or Markdown."""

import csv
import inspect
import io
import json
from itertools import pairwise
from typing import Any

import pytest

from infercast.cli.app import COMMANDS, load_command
from infercast.report.formats import csv_text, flat, rows_of

WITHOUT_TABLES = ("web",)
"""A server has no answer of its own."""
LOAD = ("--concurrency", 4, "-n", 12, "--input-len", 200, "--output-len", 20, "--max-num-seqs", 64)
ANSWERS = [
    (("gpus",), 53, "name"),
    (("gpus", "l4"), 1, "tensor_flops.bf16"),
    (("models", "qwen3-0.6b"), 1, "parameters"),
    (("hosts",), 16, "single_thread_speed"),
    (("memory", "qwen3-0.6b", "--gpu", "l4"), 1, "num_gpu_blocks"),
    (("kernels", "qwen3-0.6b", "--gpu", "l4", "--prefill", 64), 5, "terms.launch"),
    (("estimate", "gemm", "--m", 64, "--n", 64, "--k", 64, "--gpu", "l4"), 1, "seconds"),
    (("simulate", "qwen3-0.6b", "--gpu", "l4", *LOAD), 1, "ttft_ms_interval.p99.high"),
    (("simulate", "qwen3-0.6b", "--gpu", "l4", *LOAD, "--what-if", "sms=80"), 2, "tpot_ms.p50"),
    (("layouts", "qwen3-0.6b", "--gpu", "l4", "--gpus", 1, "-n", 8, "--predictor", "roofline"), 1, "tpot_ms.mean"),
    (("sweep", "qwen3-0.6b", "--gpu", "l4", "--rates", "1,8", *LOAD[2:]), 2, "ttft_ms.p99"),
    (("diagnose", "qwen3-0.6b", "--gpu", "h200-sxm", *LOAD), 3, "kernel"),
    (("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--tokens", "16,64"), 2, "tokens"),
]


@pytest.mark.parametrize(("words", "rows", "column"), ANSWERS, ids=lambda value: str(value)[:60])
def test_csv_has_a_row_for_each_thing(answered: Any, words: tuple[Any, ...], rows: int, column: str) -> None:
    result = answered(*words, "--format", "csv")
    assert result.code == 0, result.err
    read = list(csv.DictReader(io.StringIO(result.out)))
    assert len(read) == rows if rows < 3 else len(read) >= rows
    assert column in read[0]
    assert None not in read[0], "no row is longer than the names of its columns"


@pytest.mark.parametrize("words", [answer[0] for answer in ANSWERS], ids=lambda words: " ".join(map(str, words[:2])))
def test_markdown_has_tables_that_are_whole(answered: Any, words: tuple[Any, ...]) -> None:
    result = answered(*words, "--format", "md")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert any(line.startswith(("| ", "- ")) for line in lines)
    for line, below in pairwise(lines):
        if line.startswith("|") and below.startswith("|"):
            assert line.count("|") == below.count("|")
    assert "\x1b" not in result.out


def test_json_is_that_of_the_short_form(infercast: Any) -> None:
    assert infercast("memory", "qwen3-0.6b", "--gpu", "l4", "--format", "json").json
    assert infercast("hosts", "--format", "json").out == infercast("hosts", "--json").out
    assert infercast("hosts", "--format", "table").out == infercast("hosts").out


def test_two_forms_are_refused(infercast: Any) -> None:
    assert "--json and --format csv ask for two forms" in infercast("hosts", "--format", "csv", "--json").err
    unknown = infercast("hosts", "--format", "yaml")
    assert unknown.code == 2
    assert "'yaml' is not one of" in unknown.sentence


@pytest.mark.parametrize("asked", [("--json",), ("--format", "json"), ("--format=json",)])
def test_errors_are_json_where_the_answer_would_be(infercast: Any, asked: tuple[str, ...]) -> None:
    result = infercast("gpus", "h20o", *asked)
    assert (result.code, result.out) == (2, "")
    error = json.loads(result.err)["error"]
    assert error["type"] == "UnknownNameError"
    assert error["message"].startswith("unknown GPU 'h20o'; did you mean")
    assert (error["kind"], error["name"], error["did_you_mean"][0]) == ("GPU", "h20o", "h20")


def test_errors_name_a_file_and_its_line(infercast: Any, tmp_path: Any) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text("name = \n")
    error = json.loads(infercast("gpus", path, "--json").err)["error"]
    assert error["type"] == "FileFormatError"
    assert error["file"] == str(path)


def test_what_a_row_holds() -> None:
    nested = {"a": {"b": 1, "low_interval": [1, 2]}, "names": ["x", "y"], "records": [{"c": 1}], "no": None}
    assert flat(nested) == {"a.b": 1, "a.low_interval.low": 1, "a.low_interval.high": 2, "names": "x; y", "no": None}
    assert rows_of({"points": [{"a": 1}, {"b": True}]}, "points") == [{"a": 1}, {"b": True}]
    assert rows_of({"both": {"x": {"a": 1}}}, "both") == [{"name": "x", "a": 1}]
    assert csv_text([{"a": 1}, {"b": True, "a": "x,y"}]) == 'a,b\n1,\n"x,y",true\n'


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_TABLES])
def test_every_command_with_an_answer_has_the_option(name: str) -> None:
    parameters = inspect.signature(load_command(name)).parameters
    assert {"format", "as_json"} <= set(parameters)
