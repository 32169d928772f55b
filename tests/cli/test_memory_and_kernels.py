"""``infercast memory`` and ``infercast kernels``."""

import json
from typing import Any

import pytest

MEMORY_KEYS = {
    "engine", "engine_rules",
    "model", "gpu", "tensor_parallel_size", "weights", "kv_cache_dtype", "parameters", "bytes", "total_bytes",
    "kv_bytes_per_token", "kv_bytes_per_token_beyond_windows", "num_gpu_blocks", "block_size", "block_sizes",
    "state_groups", "state_bytes_per_sequence",
    "block_bytes", "windows", "longest_sequence", "most_sequences", "context", "max_model_len", "fits", "problem",
    "assumed", "notes", "load_seconds",
}  # fmt: skip
STEP_KEYS = {
    "deployment", "num_tokens", "padded_tokens", "launch", "gpu_us", "gpu_low_us", "gpu_high_us", "gap_us", "host_us",
    "step_us", "joules", "watts", "power_source", "source", "kind", "notes", "kernels",
}  # fmt: skip
KERNEL_KEYS = {"terms", 
    "name", "family", "launches", "us", "low_us", "high_us", "total_us", "source", "bound", "achieved", "limit", "unit",
    "watts", "joules", "total_joules",
}  # fmt: skip
ON_H200 = ("llama-3.1-8b", "--gpu", "h200-sxm")


def test_memory_in_tables(infercast: Any) -> None:
    result = infercast("memory", *ON_H200)
    blocks = infercast("memory", *ON_H200, "--json").json["num_gpu_blocks"]
    assert result.code == 0
    assert f"{blocks:,} of 16 tokens" in result.out
    assert "fits; max_model_len 131,072" in result.out


def test_a_model_whose_every_layer_has_a_window_says_when_it_stops_growing(infercast: Any) -> None:
    out = infercast("memory", "phi-3-mini", "--gpu", "h200-sxm").out
    assert "384.00 KiB per GPU up to 2,047 tokens, nothing more from there on" in out
    fit = infercast("memory", "phi-3-mini", "--gpu", "h200-sxm", "--json").json
    assert (fit["kv_bytes_per_token"], fit["kv_bytes_per_token_beyond_windows"]) == (2 * 32 * 96 * 2 * 32, 0)


def test_groups_with_blocks_of_their_own_size_say_so(infercast: Any) -> None:
    out = infercast("memory", "gemma-4-26b-a4b", "--gpu", "h200-sxm").out
    assert "6: 5 x last 1,024 in blocks of 16, all tokens in blocks of 32" in out


def test_the_encoder_of_images_can_be_left_out(infercast: Any) -> None:
    words = ("memory", "qwen3-vl-2b", "--gpu", "l4", "--max-model-len", 8192, "--json")
    whole, text = infercast(*words).json, infercast(*words, "--language-model-only").json
    assert whole["bytes"]["weights"] - text["bytes"]["weights"] == 2 * 406_957_056


def test_a_block_size_that_no_kernel_takes(infercast: Any) -> None:
    result = infercast("memory", *ON_H200, "--block-size", 7)
    assert result.code == 2
    assert "block_size 7 fits no attention kernel" in result.err


def test_a_step_that_does_not_fit_in_the_cache(infercast: Any) -> None:
    result = infercast("kernels", *ON_H200, "--decode", 256, "--context", 40_000)
    assert result.code == 2
    assert "256 sequences with 10,240,256 tokens in all does not fit in the KV cache" in " ".join(result.err.split())


def test_memory_as_json(infercast: Any) -> None:
    fit = infercast("memory", *ON_H200, "--context", 4096, "--json").json
    assert set(fit) == MEMORY_KEYS
    assert fit["fits"]
    assert fit["problem"] is None
    assert sum(fit["bytes"].values()) == pytest.approx(fit["total_bytes"], rel=1e-9)
    assert fit["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert fit["most_sequences"] == (fit["num_gpu_blocks"] - 1) // (4096 // 16)


ON_L4 = ("--gpu", "l4", "--rate", 1, "-n", 10, "--input-len", 100, "--output-len", 5)


@pytest.mark.parametrize(
    "words",
    [
        ("memory", "/models/Qwen3-0.6B-AWQ", "--gpu", "l4"),
        ("simulate", "/models/Qwen3-0.6B-AWQ", *ON_L4, "--predictor", "roofline"),
        ("explain-command", "vllm serve /models/Qwen3-0.6B-AWQ", *ON_L4, "--predictor", "roofline"),
        ("plan", "/models/Qwen3-0.6B-AWQ", *ON_L4, "--slo", "ttft_p50<9s", "--max-gpus", 1),
    ],
    ids=lambda words: words[0],
)
def test_what_a_name_was_taken_to_mean_is_told(answered: Any, words: Any) -> None:
    said = "/models/Qwen3-0.6B-AWQ is taken as qwen3-0.6b with int4 weights; give its config.json to be sure"
    assert said in " ".join(answered(*words).out.split())
    assert f'"{said}"' in answered(*words, "--json").out


def test_a_folder_without_a_name_is_what_it_is_served_as(infercast: Any) -> None:
    for start in ("vllm serve /model", "python -m sglang.launch_server --model-path /model"):
        words = ("explain-command", f"{start} --served-model-name Qwen3-0.6B-AWQ", *ON_L4, "--predictor", "roofline")
        assert "Qwen3-0.6B-AWQ is taken as qwen3-0.6b with int4 weights" in " ".join(infercast(*words).out.split())
    assert "unknown model '/model'" in infercast("explain-command", f"{start} --served-model-name chat", *ON_L4).err


def test_what_does_not_fit_is_an_answer(infercast: Any) -> None:
    words = ("memory", "llama-3.3-70b", "--gpu", "h100-sxm")
    result = infercast(*words)
    assert result.code == 0
    assert "tensor_parallel_size=4 fits" in " ".join(result.out.split())
    fit = infercast(*words, "--json").json
    assert not fit["fits"]
    assert fit["num_gpu_blocks"] == fit["most_sequences"] == 0
    assert infercast(*words, "-tp", 4, "--json").json["fits"]


def test_engine_options_reach_the_memory_plan(infercast: Any) -> None:
    def fit(*more: object) -> Any:
        return infercast("memory", *ON_H200, "--json", *more).json

    plain = fit()
    assert fit("--kv-cache-dtype", "fp8")["kv_bytes_per_token"] == plain["kv_bytes_per_token"] / 2
    assert fit("--quantization", "fp8")["bytes"]["weights"] < 0.7 * plain["bytes"]["weights"]
    assert fit("-tp", 2)["kv_bytes_per_token"] == plain["kv_bytes_per_token"] / 2
    assert fit("--gpu-memory-utilization", 0.5)["num_gpu_blocks"] < plain["num_gpu_blocks"]
    assert fit("--block-size", 32)["block_bytes"] == 2 * plain["block_bytes"]
    assert fit("--enforce-eager")["bytes"]["CUDA_graphs"] == 0
    assert fit("--max-model-len", 5000)["max_model_len"] == 5000


def test_kernels_of_a_prefill(infercast: Any) -> None:
    step = infercast("kernels", *ON_H200, "--prefill", 4096, "--json").json
    assert set(step) == STEP_KEYS
    assert step["num_tokens"] == 4096
    assert all(set(kernel) == KERNEL_KEYS for kernel in step["kernels"])
    assert sum(kernel["total_us"] for kernel in step["kernels"]) == pytest.approx(step["gpu_us"])
    assert step["gpu_low_us"] <= step["gpu_us"] <= step["gpu_high_us"]
    totals = [kernel["total_us"] for kernel in step["kernels"]]
    assert totals == sorted(totals, reverse=True)
    assert all(kernel["achieved"] <= kernel["limit"] for kernel in step["kernels"])


def test_kernels_of_a_decode(infercast: Any) -> None:
    result = infercast("kernels", "qwen3-30b-a3b", "--gpu", "b200-sxm", "--decode", 30, "--context", 1400)
    assert result.code == 0
    assert "decode of 30 sequences, each after 1,400 tokens" in result.out
    assert "30, padded to 32, launched as full graph" in result.out
    assert "experts" in result.out


def test_cached_tokens_make_a_prefill_longer(infercast: Any) -> None:
    def step(*more: object) -> float:
        return float(infercast("kernels", *ON_H200, "--prefill", 1024, "--json", *more).json["gpu_us"])

    assert step() < step("--context", 50_000)


def test_a_small_token_budget_is_enough_for_a_small_batch(infercast: Any) -> None:
    step = infercast("kernels", *ON_H200, "--decode", 4, "--max-num-batched-tokens", 128, "--json").json
    assert step["deployment"]["max_num_batched_tokens"] == 128


def test_states_are_told_beside_tokens(infercast: Any) -> None:
    words = ("memory", "qwen3.5-35b-a3b", "--gpu", "h200-sxm")
    for caching in ((), ("--enable-prefix-caching",)):
        fit = infercast(*words, *caching, "--json").json
        assert (fit["windows"], fit["block_size"], fit["state_groups"]) == ([0], 17 * 64, 3)
        assert fit["state_bytes_per_sequence"] == 3 * fit["block_bytes"]
        assert "3 x states, all tokens" in infercast(*words, *caching).out


def test_a_model_in_float32_has_twice_the_bytes(infercast: Any) -> None:
    asked = ("memory", "llama-3.2-1b", "--gpu", "h200-sxm", "--json", "--dtype")
    wide, usual = (infercast(*asked, dtype).json for dtype in ("float32", "bfloat16"))
    assert wide["bytes"]["weights"] == pytest.approx(2 * usual["bytes"]["weights"], rel=0.01)
    assert wide["num_gpu_blocks"] < 0.55 * usual["num_gpu_blocks"]


def test_a_partition_says_what_it_saves(answered: Any) -> None:
    words = ("partition", "qwen3-0.6b", "--gpu", "l4+a10", "-pp", "2", "--decode", "16", "--output-len", "64")
    shown = " ".join(answered(*words).out.split())
    assert "qwen3-0.6b on l4+a10, TP1+PP2:" in shown
    assert "default partition 14,14" in shown
    document = json.loads(answered(*words, "--json").out)
    assert document["set"] == f"VLLM_PP_LAYER_PARTITION={document['partition']}"
    assert [stage["gpu"] for stage in document["stages"]] == ["l4", "a10"]
    assert document["stages"][0]["layers"] < document["stages"][0]["default_layers"] == 14
    assert document["saved_time_share"] > 0.1
