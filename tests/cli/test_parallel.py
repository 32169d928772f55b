"""More than one GPU, from the command line."""

from typing import Any

import pytest

ENGINE = {"requests", "busy", "running", "kv_peak", "prefix_hit_rate", "preemptions"}
LOAD = ("--concurrency", 4, "-n", 12, "--input-len", 200, "--output-len", 10, "--predictor", "roofline")


def test_a_fleet(infercast: Any) -> None:
    words = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-dp", 2, "--router", "round_robin", *LOAD)
    result = infercast(*words, "--json").json
    assert result["deployment"]["data_parallel_size"] == 2
    assert [set(engine) for engine in result["engines"]] == [ENGINE, ENGINE]
    assert [engine["requests"] for engine in result["engines"]] == [6, 6]
    text = infercast(*words).out
    assert "TP1+DP2: 2 replicas" in text
    assert "Engines" in text


def test_a_pipeline(infercast: Any) -> None:
    result = infercast("simulate", "qwen2.5-0.5b", "--gpu", "l4", "-pp", 2, *LOAD, "--json").json
    assert result["deployment"]["pipeline_parallel_size"] == 2
    assert result["tpot_ms"]["mean"] > 0


def test_one_gpu_prints_what_it_always_did(infercast: Any) -> None:
    result = infercast("simulate", "qwen2.5-0.5b", "--gpu", "l4", *LOAD, "--json").json
    assert "data_parallel_size" not in result["deployment"]


def test_memory_of_a_layout(infercast: Any) -> None:
    words = ("memory", "qwen3-30b-a3b", "--gpu", "l40s", "-dp", 4, "--enable-expert-parallel")
    result = infercast(*words, "--json").json
    assert (result["data_parallel_size"], result["enable_expert_parallel"]) == (4, True)
    assert result["fits"]
    assert "TP1+DP4+EP" in infercast(*words).out


def test_layouts(infercast: Any) -> None:
    words = ("layouts", "qwen2.5-7b", "--gpu", "l4,a100-sxm", "--gpus", "1,2", "--predictor", "roofline")
    rows = infercast(*words, "--json").json
    apart = ("layouts", "qwen2.5-7b", "--gpu", "l4", "--gpu", "a100-sxm", "--gpus", 1, "--gpus", 2, *words[-2:])
    assert infercast(*apart, "--json").json == rows
    assert {row["gpu"] for row in rows} == {"l4", "a100-sxm"}
    assert {row["gpus"] for row in rows} == {1, 2}
    assert all(row["fits"] == (row["problem"] is None) for row in rows)
    for row in rows:
        for name in ("ttft_alone_ms", "tpot_ms", "output_tokens_per_s"):
            ends = row[f"{name}_interval"]
            assert ends is None if row["problem"] else ends[0] < row[name] < ends[1]
    text = infercast(*words).out
    assert "tokens/s a GPU" in text
    assert "TP2" in text


def test_two_pools(infercast: Any) -> None:
    words = ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "a10", "--decode-engines", 2, *LOAD)
    result = infercast(*words, "--json").json
    assert result["gpus"] == 3
    assert result["link"]["name"] == "infiniband-ndr"
    assert [engine["requests"] for engine in result["prefill"]["engines"]] == [12]
    for name in ("ttft_ms", "tpot_ms", "end_to_end_ms"):
        low, high = result[f"{name}_interval"]["mean"]
        assert low < result[name]["mean"] < high
    text = infercast(*words).out
    assert "waiting for the link" in text


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
        ("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--rate", 5000, "-n", 500,
         "--input-len", 2000, "--output-len", 20, "--predictor", "roofline"),
        "saturated: 5,000 requests/s arrive but only about",
    ),
    "load": (("layouts", "llama-3.1-8b", "--gpu", "l4", "--concurrency", 0), "concurrency must be at least 1, not 0"),
    "names": (("layouts", "llama-3.1-8b", "--gpu", "l4,,a10"), "--gpu must be names with commas between them"),
    "arrivals": (("disaggregate", "qwen2.5-0.5b", "--prefill-gpu", "l4", "--decode-gpu", "l4"), "--rate R or"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "part"), BAD.values(), ids=list(BAD))
def test_one_sentence(infercast: Any, words: tuple[object, ...], part: str) -> None:
    result = infercast(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert part in result.err
