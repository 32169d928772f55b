"""``infercast sweep``: a table, charts and files."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

WORDS = ("sweep", "qwen2.5-0.5b", "--gpu", "l4", "-n", 40, "--input-len", 100, "--output-len", 20)
SLO = ("--slo", "ttft_p99<200ms,tpot_p95<20ms")


def test_rates_as_json(answered: Any) -> None:
    found = answered(*WORDS, "--rates", "2:60:3", *SLO, "--price-per-gpu-hour", 0.8, "--json").json
    assert [point["value"] for point in found["points"]] == [2, 31, 60]
    assert found["axis"] == "rate"
    assert found["usd_per_gpu_hour"] == 0.8
    assert found["saturation_requests_per_s"] > 2
    assert set(found["knee"]) == set(found["slo_holds_up_to"]) == {"value", "reached", "fails_at"}
    for point in found["points"]:
        assert point["ttft_ms"]["p50"] <= point["ttft_ms"]["p95"] <= point["ttft_ms"]["p99"]
        assert 0 <= point["slo_attainment"] <= 1
        assert point["usd_per_million_output_tokens"] > 0


def test_a_point_is_what_simulate_says(answered: Any) -> None:
    point = answered(*WORDS, "--rates", "5", "--json").json["points"][0]
    alone = answered("simulate", *WORDS[1:], "--rate", 5, "--json").json
    for name in ("ttft_ms", "tpot_ms", "end_to_end_ms", "output_tokens_per_s", "state"):
        assert point[name] == alone[name]


def test_rows_have_the_interval_that_simulate_has(answered: Any) -> None:
    text = answered(*WORDS, "--rates", "5,20").out
    alone = answered("simulate", *WORDS[1:], "--rate", 5).out
    ends = next(line for line in alone.splitlines() if line.startswith("TTFT")).split("  ")[-1].strip()
    row = next(line for line in text.splitlines() if line.startswith("5 "))
    assert "80 % of it" in text
    assert ends in row


def test_settings(answered: Any) -> None:
    words = (*WORDS, "--rate", 20, "--setting", "max_num_seqs=2,64", "--setting", "block_size=32", "--json")
    found = answered(*words).json
    assert [point["value"] for point in found["points"]] == [2, 64]
    assert found["knee"] is None
    names = answered(*WORDS, "--rate", 5, "--setting", "kv_cache_dtype=auto,fp8", "--json").json
    assert [point["value"] for point in names["points"]] == ["auto", "fp8"]


def test_two_settings_give_every_pair(answered: Any, tmp_path: Any) -> None:
    words = (*WORDS, "--rate", 20, "--vary", "dram_bandwidth=1x:2x:2", "--vary", "sms=0.5x,1x")
    found = answered(*words, "--json").json
    assert found["axes"] == {"dram_bandwidth": ["1x", "2x"], "sms": ["0.5x", "1x"]}
    assert [point["value"] for point in found["points"]][:2] == [
        "dram_bandwidth=1x,sms=0.5x",
        "dram_bandwidth=1x,sms=1x",
    ]
    slow, fast = found["points"][0], found["points"][-1]
    assert fast["tpot_ms"]["p50"] < slow["tpot_ms"]["p50"]
    alone = answered(*WORDS, "--rate", 20, "--vary", "sms=1x", "--setting", "dram_bandwidth=2x,3x", "--json").json
    assert alone["points"][0]["tpot_ms"] == fast["tpot_ms"]
    pytest.importorskip("matplotlib")
    text = answered(*words, "--plot", tmp_path / "map.svg").out
    assert "dram_bandwidth \\ sms" in text
    assert "2x" in (tmp_path / "map.svg").read_text()


def test_the_table_has_charts_below_it(answered: Any) -> None:
    text = answered(*WORDS, "--rates", "2,20,60", *SLO, "--full").out
    for words in ("TTFT  o p50  + p95  x p99", "requests within the SLO", "knee", "saturation", "SLO holds", "price"):
        assert words in text
    assert all(len(line) <= 160 for line in text.splitlines())


@pytest.mark.parametrize(("suffix", "begin"), [("html", b"<!doctype html>"), ("svg", b"<svg"), ("png", b"\x89PNG")])
def test_files(infercast: Any, tmp_path: Any, suffix: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    path, table = tmp_path / f"sweep.{suffix}", tmp_path / "sweep.csv"
    assert infercast(*WORDS, "--rates", "2,60", *SLO, "--plot", path, "--csv", table).code == 0
    content = path.read_bytes()
    assert content.startswith(begin)
    assert len(content) > 5000
    assert b"#0a0" not in content or suffix == "png", "a placeholder of a colour"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["rate"] for row in rows] == ["2.0", "60.0"]
    assert float(rows[0]["ttft_p99_ms"]) > 0
    assert rows[0]["slo_holds"] in ("True", "False")


WRONG = {
    "no axis": (("--rate", 5), "a sweep is along --rates, --concurrencies or one --setting"),
    "two axes": (("--rates", "1,2", "--concurrencies", "1,2"), "not of --rates and --concurrencies"),
    "rate twice": (("--rates", "1,2", "--rate", 3), "--rate has no meaning with --rates"),
    "numbers": (("--rates", "1..5"), "--rates must be FROM:TO:COUNT"),
    "values": (("--rate", 5, "--setting", "max_num_seqs=2,x"), "max_num_seqs=x: must be a whole number"),
    "name": (("--rate", 5, "--setting", "max_num_sequences=2,4"), "unknown what-if 'max_num_sequences'"),
    "two settings": (("--setting", "block_size=16,32", "--setting", "max_num_seqs=1,2"), "both have several values"),
    "a range": (("--rate", 5, "--vary", "sms=1x:2x:x"), "--vary must be FROM:TO:COUNT"),
    "three settings": (
        ("--rate", 5, "--vary", "sms=1x,2x", "--vary", "l2_bytes=1x,2x", "--vary", "block_size=16,32"),
        "the values of one setting, or of two",
    ),
    "plot": (("--rates", "1,2", "--plot", "x.gif"), "--plot x.gif must end in .png or .svg or .html or .htm"),
    "csv": (("--rates", "1,2", "--csv", "x.txt"), "--csv x.txt must end in .csv"),
    "slo": (("--rates", "1,2", "--slo", "ttft<1"), "slo 'ttft<1' must be"),
    "router": (("--rates", "1,2", "--router", "round_robin"), "--router has no meaning for one replica"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence(answered: Any, name: str) -> None:
    words, sentence = WRONG[name]
    assert sentence in answered(*WORDS, *words).sentence


def test_elasticities_are_one_table(answered: Any) -> None:
    words = (*WORDS, "--elasticities", "--concurrency", 2)
    found = answered(*words, "--json").json
    assert {row["number"] for row in found["elasticities"]} >= {"sms", "dram_bandwidth", "host_speed", "power_limit_w"}
    assert "takes no --rates" in answered(*words, "--rates", "1,2").sentence
    assert "tpot mean" in answered(*words).out


def test_a_chip_is_designed_and_written(answered: Any, tmp_path: Path) -> None:
    words = ("design", *WORDS[1:], "--concurrency", 2, "--vary", "sms=0.5x,1x", "--cost", "sms")
    found = answered(*words, "--json").json
    assert [row["chip"] for row in found["chips"]] == ["sms=0.5x", "sms=1x"]
    answered(*words, "--chip-out", tmp_path / "chip.toml")
    assert 'base = "l4"' in (tmp_path / "chip.toml").read_text()
    assert "--chip-out" in answered(*words, "--chip-out", tmp_path / "chip.txt").sentence
