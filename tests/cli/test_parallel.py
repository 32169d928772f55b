"""More than one GPU, from the command line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ENGINE = {"pool", "requests", "busy", "running", "kv_peak", "prefix_hit_rate", "preemptions"}
LOAD = (
    "--concurrency", 4, "-n", 12, "--input-len", 200, "--output-len", 10, "--predictor", "roofline",
    "--max-num-seqs", 64,
)  # fmt: skip


def test_a_fleet(answered: Any) -> None:
    words = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 2, "--router", "round_robin", *LOAD)
    result = answered(*words, "--json").json
    assert result["deployment"]["data_parallel_size"] == 2
    assert [set(engine) for engine in result["engines"]] == [ENGINE, ENGINE]
    assert [engine["requests"] for engine in result["engines"]] == [6, 6]
    text = answered(*words, "--full").out
    assert "TP1+DP2: 2 replicas" in text
    assert "Engines" in text


def test_a_pipeline(answered: Any) -> None:
    result = answered("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-pp", 2, *LOAD, "--json").json
    assert result["deployment"]["pipeline_parallel_size"] == 2
    assert result["tpot_ms"]["mean"] > 0


def test_memory_of_a_layout(answered: Any) -> None:
    words = ("memory", "qwen3-30b-a3b", "--gpu", "l40s", "-dp", 4, "--enable-expert-parallel")
    result = answered(*words, "--json").json
    assert (result["data_parallel_size"], result["enable_expert_parallel"]) == (4, True)
    assert result["fits"]
    assert "TP1+DP4+EP" in answered(*words).out


def test_layouts(answered: Any) -> None:
    words = ("layouts", "qwen2.5-7b", "--gpu", "l4,a100-sxm", "--gpus", "1,2", *LOAD)
    rows = answered(*words, "--json").json
    apart = ("layouts", "qwen2.5-7b", "--gpu", "l4", "--gpu", "a100-sxm", "--gpus", 1, "--gpus", 2, *LOAD)
    assert answered(*apart, "--json").json == rows
    assert {row["gpu"] for row in rows} == {"l4", "a100-sxm"}
    assert {row["gpus"] for row in rows} == {1, 2}
    assert all(row["fits"] == (row["problem"] is None) for row in rows)
    for row in rows:
        if row["problem"] is None:
            for name in ("ttft_ms", "tpot_ms"):
                low, high = row[f"{name}_mean_interval"]
                assert low <= row[name]["mean"] < high
            simulated = answered(
                "simulate", "qwen2.5-7b", "--gpu", row["gpu"], "-tp", row["tensor_parallel_size"],
                "-pp", row["pipeline_parallel_size"], "-dp", row["data_parallel_size"], *LOAD, "--json",
            ).json  # fmt: skip
            for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s"):
                assert row[name] == simulated[name]
    text = answered(*words).out
    assert "per GPU" in text
    assert "TP2" in text


def test_layouts_take_the_host_that_they_are_served_by(answered: Any) -> None:
    words = ("layouts", "qwen2.5-7b", "--gpu", "a100-sxm", "--gpus", "1", *LOAD, "--json")
    usual, slower = (answered(*words, *more).json[0]["ttft_ms"]["mean"] for more in ((), ("--host", "xeon-e5-1650-v3")))
    assert slower > usual


def test_layouts_by_the_roofline_are_bounds(answered: Any) -> None:
    words = ("layouts", "qwen2.5-7b", "--gpu", "a100-sxm", "--gpus", "1", "--predictor", "roofline", *LOAD[:6])
    (row,) = answered(*words, "--json").json
    assert (row["kind"], row["source"]) == ("bound", "roofline")
    assert row["tpot_ms_mean_interval"][0] == pytest.approx(row["tpot_ms"]["mean"])
    assert row["output_tokens_per_s_interval"][1] == pytest.approx(row["output_tokens_per_s"])
    assert "lower bounds: the best case" in answered(*words).out


def test_layouts_of_several_vendors(answered: Any) -> None:
    few = ("--concurrency", 4, "-n", 12, "--output-len", 20, "--max-num-seqs", 64)
    words = ("layouts", "qwen2.5-7b", "--gpu", "mi300x,b200-sxm,h200-sxm,r9700", "--gpus", "2", *few)
    rows = answered(*words, "--json").json
    kinds = {row["gpu"]: (row["kind"], row["source"]) for row in rows}
    assert kinds["mi300x"] == ("estimate", "published")
    assert kinds["r9700"] == ("estimate", "typical")
    assert kinds["h200-sxm"][0] == "estimate"
    text = " ".join(answered(*words, "--full").out.split())
    assert "rough: no kernel of this vendor was measured" in text
    assert "published: not measured here; estimates rest on published rows of kernels" in text
    assert "Collectives may be slower on b200-sxm than on h200-sxm" in text


def test_pcie_topologies(answered: Any) -> None:
    words = ("kernels", "llama-3.1-8b", "--gpu", "l40s", "-tp", 4, "--prefill", 2048)
    left_open = answered(*words, "--json").json
    assert "talk over PCIe" in left_open["notes"][0]
    switch = answered(*words, "--pcie-topology", "switch", "--json").json
    assert switch["gpu_us"] < left_open["gpu_us"] / 2
    assert switch["notes"] == []
    refused = answered(*words, "--pcie-topology", "ring")
    assert refused.code == 2
    assert "unknown PCIe topology 'ring'; known: host, sockets, switch" in refused.err


def test_layouts_that_cannot_keep_up_are_not_ranked(answered: Any) -> None:
    load = ("--rate", 300, "-n", 400, "--input-len", 800, "--output-len", 20, "--predictor", "roofline")
    words = ("layouts", "qwen2.5-7b", "--gpu", "l4", "--gpus", "1", "--max-model-len", 1024, *load)
    (row,) = answered(*words, "--json").json
    assert row["saturated"]
    assert row["saturation_requests_per_s"] < 300
    text = answered(*words).out
    assert "cannot keep up with the arrivals: TP1" in text
    assert "nothing can serve this" in text


def test_layouts_fit_a_narrow_terminal(answered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("layouts", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--gpus", "8", "--engine", "vllm@0.25", *LOAD)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", answered(*words).out).splitlines()[2:]
    assert any("TP2+PP2+DP2+EP" in line and "to" in line for line in lines)
    assert max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "140")
    assert any("KV tokens" in line for line in answered(*words).out.splitlines())


@pytest.mark.parametrize("words", [
    ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 100_000, "--predictor", "roofline", "--rate", 5),
    ("layouts", "qwen2.5-0.5b", "--gpu", "l4", "--gpus", 100_000, "--predictor", "roofline"),
    ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--prefill-engines", 100_000,
     "--predictor", "roofline", "--rate", 5),
])  # fmt: skip
def test_absurd_numbers_of_replicas_are_refused_at_once(answered: Any, words: tuple[object, ...]) -> None:
    result = answered(*words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "1,024" in result.err


def test_two_pools(answered: Any) -> None:
    words = ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "a10", "--decode-engines", 2, *LOAD)
    result = answered(*words, "--json").json
    assert result["gpus"] == 3
    assert result["link"]["name"] == "infiniband-ndr"
    assert (result["engines"][0]["pool"], result["engines"][0]["requests"]) == ("prefill", 12)
    for name in ("ttft_ms", "tpot_ms", "end_to_end_ms"):
        low, high = result[f"{name}_interval"]["mean"]
        assert low < high
        if name == "ttft_ms":
            assert low == pytest.approx(result[name]["mean"])  # the roofline is a bound
        else:
            assert low < result[name]["mean"]  # a decode of so small a model waits for the host, which may be faster
    assert "waiting for the link" in answered(*words, "--full").out


def test_two_pools_with_every_kind_of_parallelism(infercast: Any, tmp_path: Path) -> None:
    words = ("disaggregate", "qwen3-30b-a3b", "--prefill-gpu", "h100-sxm", "--decode-gpu", "h200-sxm", *LOAD)
    sizes = ("--prefill-engines", 2, "--prefill-tp", 2, "--prefill-pp", 2, "--decode-dp", 2, "--enable-expert-parallel")
    result = infercast(*words, *sizes, "--network", "infiniband-ndr", "--json").json
    assert result["gpus"] == 10
    assert [engine["requests"] for engine in result["engines"] if engine["pool"] == "prefill"] == [6, 6]
    assert [engine["pool"] for engine in result["engines"]].count("decode") == 2
    assert "2 of these" in infercast(*words, *sizes, "--full").out
    # Of a release whose API server has no load: tokens that come faster would delay prompts there.
    faster = infercast(*words, "--engine", "vllm@0.25", "--what-if", "dram_bandwidth=2x", "--breakdown", "--json").json
    for name in ("ttft", "tpot"):
        before, after = (faster[when][f"{name}_ms"]["mean"] for when in ("before", "after"))
        assert after < before
        assert 1e-3 * sum(each["before_us"] for each in faster["explained"][name]) == pytest.approx(before)
        assert 1e-3 * sum(each["after_us"] for each in faster["explained"][name]) == pytest.approx(after)
    assert faster["after"]["breakdown"]["side_by_side"] == 2
    text = infercast(*words, "--what-if", "dram_bandwidth=2x", "--full").out
    assert "waiting for the link" in text
    assert "With dram_bandwidth=2x: decode pool" in text


def test_two_pools_replay_a_trace(infercast: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,input_tokens,output_tokens\n" + "".join(f"{i / 4},300,10\n" for i in range(8)))
    pools = ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--predictor", "roofline")
    result = infercast(*pools, "--trace", trace, "--rate-scale", 2, "-n", 6, "--json").json
    assert result["workload"]["requests"] == 6
    refused = infercast(*pools, "--trace", trace, "--concurrency", 3)
    assert refused.code == 2
    assert "--concurrency has no meaning with --trace" in refused.err


def test_many_replicas_are_summed_up(answered: Any) -> None:
    words = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 30, *LOAD)
    assert len(answered(*words, "--json").json["engines"]) == 30
    assert "15 others" in answered(*words, "--full").out


BAD = {
    "heads": (("simulate", "llama-3.1-8b", "--gpu", "l4", "-tp", 3, *LOAD), "valid: 1, 2, 4, 8"),
    "node": (("memory", "llama-3.1-8b", "--gpu", "l4", "-pp", 9), "above the 8 of a node of l4"),
    "network": (("memory", "llama-3.1-8b", "--gpu", "l4", "--network", "tin"), "unknown network 'tin'; known: efa-400"),
    "experts": (("memory", "llama-3.1-8b", "--gpu", "l4", "--enable-expert-parallel"), "llama-3.1-8b has none"),
    "router": (("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 2, "--router", "x", *LOAD), "unknown router 'x'"),
    "router alone": (
        ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "--router", "round_robin", *LOAD), "add --data-parallel-size N"
    ),
    "counts": (("layouts", "llama-3.1-8b", "--gpu", "l4", "--gpus", "1;2"), "--gpus must be numbers"),
    "link": (
        ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--link", "x", *LOAD),
        "unknown link 'x'",
    ),
    "stages": (("memory", "qwen2.5-0.5b", "--gpu", "l4", "-pp", 25, "--network", "roce-400"), "use 1 to 24"),
    "exchange": (
        ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "--all2all-backend", "deepep_low_latency", *LOAD),
        "is for replicas that share experts",
    ),
    "engines": (
        ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--prefill-engines", 0, *LOAD),
        "--prefill-engines must be at least 1, not 0",
    ),
    "overload": (
        ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--rate", 5000, "-n", 200,
         "--input-len", 2000, "--output-len", 20, "--predictor", "roofline"),
        "overloaded: 5,000 requests/s arrive but only about",
    ),
    "load": (("layouts", "llama-3.1-8b", "--gpu", "l4", "--concurrency", 0), "at least 1 client, not 0"),
    "names": (("layouts", "llama-3.1-8b", "--gpu", "l4,,a10"), "--gpu must be names with commas between them"),
    "arrivals": (("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4"), "--rate R, --conc"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "part"), BAD.values(), ids=list(BAD))
def test_one_sentence(answered: Any, words: tuple[object, ...], part: str) -> None:
    result = answered(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert part in result.err
