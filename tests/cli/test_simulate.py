"""``infercast simulate``: every way to say what is served, in tables and in JSON."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infercast.cli.outputs import simulation_bar

SMALL = ("simulate", "qwen3-0.6b", "--gpu", "h200-sxm")
RATE = ("--rate", 20, "-n", 60)
STEADY = (*SMALL, *RATE, "--input-len", 300, "--output-len", 30)


@pytest.fixture
def forecast(answered: Any) -> Any:
    return lambda *words: answered(*words, "--json").json


def test_json_has_what_is_promised(forecast: Any) -> None:
    result = forecast(*STEADY)
    for name in ("ttft_ms", "tpot_ms", "inter_token_ms", "end_to_end_ms"):
        assert set(result[name]) == {"mean", "p50", "p90", "p95", "p99"}
        assert 0 < result[name]["p50"] <= result[name]["p90"] <= result[name]["p95"] <= result[name]["p99"]
        for number, (low, high) in result[f"{name}_interval"].items():
            assert 0 < low <= result[name][number] <= high
    for name in ("output_tokens_per_s", "requests_per_s"):
        low, high = result[f"{name}_interval"]
        assert low <= result[name] <= high
    assert result["interval_level"] == 0.8
    assert result["workload"]["requests"] == 60
    assert result["requests_per_s"] == pytest.approx(60 / result["duration_s"])
    for name in ("running", "waiting", "kv_usage"):
        assert 0 <= result[name]["mean"] <= result[name]["peak"]
    assert result["kv_usage"]["peak"] <= 1
    assert result["deployment"]["num_gpu_blocks"] > 1000
    assert not result["saturated"]
    assert result["state"] == "stable"
    assert result["steady_state"]["requests_needed"] == 200


def test_phases_explain_the_gpu_time(forecast: Any) -> None:
    phases = {phase["phase"]: phase for phase in forecast(*STEADY)["phases"]}
    assert set(phases) == {"prefill", "decode"}
    for phase in phases.values():
        assert phase["steps"] > 0
        assert sum(family["share"] for family in phase["families"]) == pytest.approx(1)
        assert sum(family["seconds"] for family in phase["families"]) == pytest.approx(phase["gpu_seconds"])
        assert all(family["bound"] and family["kernels"] for family in phase["families"])


def test_tables_show_the_same_numbers(answered: Any, forecast: Any) -> None:
    text = answered(*STEADY, "--full").out
    result = forecast(*STEADY)
    assert f"{result['deployment']['num_gpu_blocks']:,} blocks of 16 tokens" in text
    assert f"{result['output_tokens_per_s']:,.0f} output tokens/s" in text
    for title in ("What was simulated", "Latency", "Load", "Where time goes in steps with prompt tokens"):
        assert title in text


def test_one_seed_one_result(infercast: Any) -> None:
    first, again, other = (infercast(*STEADY, "--seed", seed).out for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_one_token_answers_have_no_tpot(answered: Any, forecast: Any) -> None:
    words = (*STEADY, "--output-len", 1)
    result = forecast(*words)
    assert result["tpot_ms"] is None
    assert result["inter_token_ms"] is None
    row = next(line for line in answered(*words, "--full").out.splitlines() if "TPOT" in line)
    assert row.split()[-4:] == ["-"] * 4


def test_a_single_request(forecast: Any) -> None:
    result = forecast(*SMALL, "--arrival", "burst", "-n", 1, "--input-len", 100, "--output-len", 2)
    assert result["running"]["peak"] == 1


def test_closed_loop(forecast: Any) -> None:
    result = forecast(*SMALL, "--concurrency", 4, "-n", 40)
    assert result["running"]["peak"] == 4
    assert "closed loop of 4 clients" in result["workload"]["description"]


def test_burst(forecast: Any) -> None:
    result = forecast(*SMALL, "--arrival", "burst", "-n", 40, "--input-len", 100, "--output-len", 20)
    assert result["running"]["peak"] == 40
    assert result["saturation_requests_per_s"] is None


@pytest.mark.parametrize("arrival", [("constant",), ("gamma", "--burstiness", 0.3)])
def test_other_arrivals(forecast: Any, arrival: tuple[object, ...]) -> None:
    assert arrival[0] in forecast(*STEADY, "--arrival", *arrival)["workload"]["description"]


def test_shared_prefixes_raise_the_hit_rate(forecast: Any) -> None:
    shared = ("--input-len", 200, "--output-len", 10, "--prefix-len", 1000, "--prefix-groups", 2)
    assert forecast(*STEADY, "--input-len", 200)["prefix_hit_rate"] == 0
    assert forecast(*STEADY, *shared)["prefix_hit_rate"] > 0.7
    off = forecast(*STEADY, *shared, "--no-enable-prefix-caching")
    assert off["prefix_hit_rate"] == 0
    assert not off["deployment"]["enable_prefix_caching"]


def test_formats_and_parallelism(forecast: Any) -> None:
    plain = forecast(*STEADY)
    fp8 = forecast(*STEADY, "--quantization", "fp8")
    assert fp8["deployment"]["weights"] == "fp8"
    assert fp8["deployment"]["weight_bytes"] < plain["deployment"]["weight_bytes"]
    small_cache = forecast(*STEADY, "--kv-cache-dtype", "fp8")["deployment"]
    assert small_cache["kv_cache_dtype"] == "fp8"
    assert small_cache["num_gpu_blocks"] > 1.9 * plain["deployment"]["num_gpu_blocks"]
    two = forecast(*STEADY, "-tp", 2)["deployment"]
    assert two["tensor_parallel_size"] == 2
    assert two["weight_bytes"] < plain["deployment"]["weight_bytes"]


def test_engine_switches_change_the_result(forecast: Any) -> None:
    plain = forecast(*STEADY)
    assert forecast(*STEADY, "--no-async-scheduling")["ttft_ms"] != plain["ttft_ms"]
    assert forecast(*STEADY, "--enforce-eager")["tpot_ms"]["p50"] > plain["tpot_ms"]["p50"]
    assert forecast(*SMALL, "--concurrency", 5, "-n", 20, "--max-num-seqs", 2)["running"]["peak"] == 2
    assert forecast(*STEADY, "--max-num-batched-tokens", 2048)["deployment"]["max_num_batched_tokens"] == 2048


def test_a_gpu_file(forecast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-chip.toml").write_text(
        'base = "h200-sxm"\ndram_gb_per_s = 9600\ndram_gib = 282\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--rate", 4, "-n", 20, "--output-len", 50)
    mine = forecast("simulate", "llama-3.1-8b", "--gpu", "./my-chip.toml", *words)
    theirs = forecast("simulate", "llama-3.1-8b", "--gpu", "h200-sxm", *words)
    assert mine["deployment"]["gpu"] == "my-chip"
    assert mine["deployment"]["num_gpu_blocks"] > theirs["deployment"]["num_gpu_blocks"]
    assert mine["tpot_ms"]["p50"] < theirs["tpot_ms"]["p50"]


def test_a_config_file(forecast: Any, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 16384,
    }  # fmt: skip
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for source in (folder, folder / "config.json"):
        result = forecast("simulate", source, "--gpu", "l40s", "--rate", 4, "-n", 20)
        assert result["deployment"]["model"] == "my-model"
        assert result["deployment"]["max_model_len"] == 16384


def test_an_azure_trace(forecast: Any, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:17:0{second}.9799600,{300 + second},{20 + second}\n" for second in range(8))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    result = forecast(*SMALL, "--trace", path)
    assert result["workload"]["requests"] == 8
    assert 7 < result["duration_s"] < 8
    assert 3.5 < forecast(*SMALL, "--trace", path, "--rate-scale", 2)["duration_s"] < 4
    assert forecast(*SMALL, "--trace", path, "-n", 3)["workload"]["requests"] == 3


def test_default_lengths_are_clipped_to_the_model(forecast: Any) -> None:
    few = (*SMALL, "--rate", 20, "-n", 6)
    result = forecast(*few, "--max-model-len", 2048)
    assert (
        "input lognormal mean 607 (16 to 1,536), output lognormal mean 170 (4 to 512)"
        in result["workload"]["description"]
    )
    assert result["workload"]["description"].endswith("default lengths clipped to max_model_len 2,048")
    assert "clipped" not in forecast(*few)["workload"]["description"]
    short = forecast(*few, "--max-model-len", 2048, "--output-len", 200)
    assert "(16 to 1,848)" in short["workload"]["description"]
    shared = forecast(*few, "--max-model-len", 2048, "--prefix-len", 1000)
    assert "(16 to 786)" in shared["workload"]["description"]


@pytest.fixture
def long_trace(tmp_path: Path) -> Path:
    path = tmp_path / "long.csv"
    rows = "".join(f"{second},{2000 if second % 4 == 3 else 100},50\n" for second in range(8))
    path.write_text("arrival,input,output\n" + rows, encoding="utf-8")
    return path


def test_requests_that_are_too_long_are_cut_or_left_out(infercast: Any, forecast: Any, long_trace: Path) -> None:
    words = (*SMALL, "--trace", long_trace, "--max-model-len", 1024)
    assert "(2 of 8 requests are too long)" in infercast(*words).sentence
    cut = forecast(*words, "--too-long", "truncate")["workload"]
    assert (cut["requests"], cut["truncated"], cut["skipped"]) == (8, 2, 0)
    assert cut["description"].endswith("; 2 of 8 cut to max_model_len 1,024")
    skipped = forecast(*words, "--too-long", "skip", "-n", 5)["workload"]
    assert (skipped["requests"], skipped["truncated"], skipped["skipped"]) == (5, 0, 2)
    assert "; 2 longer than max_model_len 1,024 left out" in skipped["description"]


def test_a_trace_at_another_rate(infercast: Any, forecast: Any, long_trace: Path) -> None:
    result = forecast(*SMALL, "--trace", long_trace, "--rate", 4)
    assert "4 times the rate, to 4 requests/s" in result["workload"]["description"]
    assert 1.75 < result["duration_s"] < 2.5
    both = infercast(*SMALL, "--trace", long_trace, "--rate", 4, "--rate-scale", 2)
    assert both.sentence == "rate 4.0 and rate_scale 2.0 both say how fast requests arrive; give one"


def test_a_mooncake_trace_shares_its_blocks(forecast: Any, tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    rows = (
        {"timestamp": 1000 * second, "input_length": 1100, "output_length": 20, "hash_ids": [46, 47, 1000 + second]}
        for second in range(6)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = forecast(*SMALL, "--trace", path)
    assert "Mooncake" in result["workload"]["description"]
    assert result["prefix_hit_rate"] == pytest.approx(5 * 1024 / (6 * 1100), rel=0.02)


def test_overload_is_printed_only_on_request(answered: Any, forecast: Any) -> None:
    words = (*SMALL[:2], "--gpu", "l4", "--rate", 60, "-n", 200, "--input-len", 500, "--output-len", 50)
    refused = answered(*words)
    assert refused.code == 2
    assert refused.out == ""
    result = forecast(*words, "--allow-overload")
    assert result["saturated"]
    assert 0 < result["saturation_requests_per_s"] < 60
    capacity = f"only about {result['saturation_requests_per_s']:.3g} requests/s can be served"
    assert capacity in refused.err
    assert "--allow-overload" in refused.err
    assert capacity in answered(*words, "--allow-overload").out


def test_a_few_requests_on_a_hopeless_chip_are_refused(infercast: Any) -> None:
    refused = infercast(*SMALL[:2], "--gpu", "l4", "--rate", 60, "-n", 20, "--input-len", 500, "--output-len", 50)
    assert (refused.code, refused.out) == (2, "")
    assert "overloaded: 60 requests/s arrive" in refused.err


def test_ramp_up_and_drain_are_left_out_on_request(answered: Any, forecast: Any) -> None:
    words = (*SMALL, "--rate", 20, "-n", 300)
    whole, part = forecast(*words), forecast(*words, "--steady")
    assert part["steady_only"]
    assert part["steady_state"] == whole["steady_state"]
    assert part["requests_per_s"] > whole["requests_per_s"]
    assert "Latency, without ramp-up and drain" in answered(*words, "--steady", "--full").out
    refused = answered(*STEADY, "--steady")
    assert refused.code == 2
    assert "about 200 requests would do" in refused.err


def test_a_gpu_that_waits_for_its_host_is_pointed_out(answered: Any) -> None:
    words = ("--rate", 2, "-n", 20, "--input-len", 100, "--output-len", 10)
    assert "bound by the host: the GPU waits for its CPU" in answered(*SMALL, *words, "--full").out
    assert "bound by the host" not in answered("simulate", "llama-3.1-8b", "--gpu", "l40s", *words, "--full").out


@pytest.mark.parametrize("host", ["0.0.0.0", "nobody"])
def test_a_host_that_is_no_cpu_is_refused_in_one_sentence(infercast: Any, host: str) -> None:
    refused = infercast(*STEADY, "--host", host)
    assert refused.code == 2
    assert "infercast hosts" in refused.err or "known: " in refused.err
    assert len(refused.err.splitlines()) == 1


def test_long_runs_show_a_bar_on_a_terminal_and_nothing_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with simulation_bar(10) as tell:
        assert tell is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("infercast.cli.outputs.PATIENCE", -1.0)
    with simulation_bar(2000) as tell:
        assert tell is not None
        tell(1024, 90.0)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1,024 of 2,000 requests, 90.0 s simulated" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.err)


def test_requests_come_over_http_unless_told_otherwise(answered: Any, forecast: Any) -> None:
    served, offline = forecast(*STEADY), forecast(*STEADY, "--offline")
    assert (served["deployment"]["api_server"], offline["deployment"]["api_server"]) == (True, False)
    assert served["ttft_ms"]["p50"] > offline["ttft_ms"]["p50"] + 3
    assert forecast(*STEADY, "--no-api-server") == offline
    text = answered(*STEADY, "--full").out
    assert "over HTTP to the API server" in text
    assert "(default; not fitted to your machine)" in text


@pytest.mark.parametrize("more", [(), ("-dp", 2)])
def test_caveats_are_said_everywhere(answered: Any, forecast: Any, more: tuple[object, ...]) -> None:
    sentences = forecast(*STEADY, *more)["caveats"]
    assert sentences[0].startswith("This is a forecast")
    assert any("Host times are those of another machine" in each for each in sentences)
    text = " ".join(answered(*STEADY, *more, "--full").out.split())
    assert all(each in text for each in sentences)
