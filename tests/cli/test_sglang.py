"""SGLang on the command line: its flags, its commands, and engines that are not modelled."""

import re
from pathlib import Path
from typing import Any

import pytest

MEMORY = ("memory", "qwen3-0.6b", "--gpu", "h100-sxm")
SERVED = (
    "simulate", "qwen3-0.6b", "--gpu", "h100-sxm", "--concurrency", 8, "-n", 16, "--input-len", 64, "--output-len", 4,
)  # fmt: skip
PLAN = ("plan", "qwen3-0.6b", "--gpu", "h100-sxm", "--max-gpus", 1, "--rate", 2, "-n", 30)
SGLANG = ("--engine", "sglang")
COMMAND = "python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B"


def test_its_flags_by_its_own_names(answered: Any) -> None:
    words = (
        "--max-running-requests",
        3,
        "--mem_fraction_static=0.5",
        "--disable-radix-cache",
        "--cuda-graph-bs-decode",
        1,
        2,
    )
    run = answered(*SERVED, *SGLANG, *words, "--json")
    found = run.json["deployment"]
    assert (found["max_running_requests"], found["mem_fraction_static"]) == (3, 0.5)
    assert found["disable_radix_cache"]
    assert run.json["running"]["peak"] == 3


def test_what_changes_nothing_is_left_out(answered: Any) -> None:
    run = answered(*MEMORY, *SGLANG, "--trust-remote-code", "--served-model-name", "x", "--context-length", "8k")
    assert run.err == "infercast: no forecast depends on --trust-remote-code, --served-model-name; left out\n"
    assert "context_length 8,000" in run.out


def test_a_name_with_and_without_version(answered: Any) -> None:
    assert answered(*MEMORY, *SGLANG, "--json").json == answered(*MEMORY, "--engine=sglang@0.5.23", "--json").json


def test_a_later_release_has_its_own_rules(answered: Any) -> None:
    run = answered(*SERVED, "--engine", "sglang@0.5.22", "--full")
    assert "scheduling by its source, costs as in 0.5.16" in run.out
    assert "sglang@0.5.22" in run.out


def test_priorities_by_its_own_names(answered: Any) -> None:
    classes = ("--class", "a:0.5:priority=20", "--class", "b:0.5:priority=0", "--max-running-requests", 2)
    plain = answered(*SERVED, *SGLANG, *classes, "--json").json["classes"]
    ranked = answered(*SERVED, *SGLANG, *classes, "--enable-priority-scheduling", "--json").json["classes"]
    assert ranked[0]["ttft_ms"]["mean"] < plain[0]["ttft_ms"]["mean"] < ranked[1]["ttft_ms"]["mean"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*SGLANG, "--max-num-seqs", 4), "--max-num-seqs is no option of SGLang; use --max-running-requests"),
        ((*SGLANG, "--long-prefill-token-threshold", 4), "is no option of SGLang; leave it out"),
        (("--engine", "vllm,sglang", "--page-size", 1), "flags are for the engine that is named first; vLLM calls it"),
        (("--mem-fraction-static", 0.8), "is a flag of SGLang: add --engine sglang; vLLM calls it"),
        (
            (*SGLANG, "--enable-ep-moe"),
            "SGLang 0.5.23 has no --enable-ep-moe; 0.5.3 was the last with it; leave it out",
        ),
        ((*SGLANG, "--page-size", "many"), "--page-size must be a whole number such as 8192, 8k or 8K, not 'many'"),
        (
            (*SGLANG, "--enable-priority-scheduling", "--schedule-policy", "lpm"),
            "is modelled with schedule_policy fcfs",
        ),
        ((*SGLANG, "--kv-cache-dtype", "fp9"), "unknown kv_cache_dtype 'fp9'"),
        ((*SGLANG, "--moe-runner-backend", "cuda"), "unknown moe_backend 'cuda'"),
        (("--engine", "tensorrt-llm"), "TensorRT-LLM is not modelled; use --engine vllm or sglang"),
        (("--engine", "trtllm@1.2"), "TensorRT-LLM is not modelled"),
        (("--engine", "sglan"), "unknown engine 'sglan'"),
    ],
)
def test_what_is_refused(answered: Any, words: tuple[object, ...], sentence: str) -> None:
    assert sentence in answered(*MEMORY, *words).sentence


def test_answers_that_clients_declare(answered: Any) -> None:
    run = answered(*SERVED, *SGLANG, "--declared-output-len", 100)
    assert "output 4, 100 declared" in run.out
    assert "output 4, 100 declared" in answered(*SERVED, "--declared-output-len", 100).out
    sentence = answered(*SERVED, "--declared-output-len", 100, "--ignore-eos").sentence
    assert "with ignore_eos an answer has as many tokens as it declares, not 100" in sentence


@pytest.mark.parametrize(
    "text",
    [
        f"{COMMAND} --tp 2 --max-running-requests 16 --port 30000",
        "sglang serve --model-path Qwen/Qwen3-0.6B --tp-size=2 --max-running-requests 16 --port 30000",
        f"docker run --gpus 2 -p 30000:30000 lmsysorg/sglang:latest {COMMAND.replace('python', 'python3')} --tp 2 "
        "--max-running-requests 16",
        "image: lmsysorg/sglang:v0.5.16\ncommand: [python3, -m, sglang.launch_server]\n"
        "args: [--model-path, Qwen/Qwen3-0.6B, --tp, '2', --max-running-requests, '16']",
    ],
)
def test_a_command_is_recognised(answered: Any, text: str) -> None:
    words = ("--gpu", "h100-sxm", "--no-advice", "--rate", 2, "-n", 20)
    run = answered("explain-command", text, *words, "--full")
    assert run.code == 0, run.err
    assert ("sglang@0.5.16" if "v0.5.16" in text else "sglang@0.5.23") in run.out
    assert "2 GPUs share every layer" in run.out


def test_a_command_is_explained(answered: Any) -> None:
    flags = "--chunked-prefill 1024 --max-running-requests 8 --enable-torch-compile --host 0.0.0.0 --enable-ep-moe"
    words = ("--gpu", "h100-sxm", "--rate", 2, "-n", 20)
    run = answered("explain-command", f"{COMMAND} {flags}", *words, "--full")
    assert "a step full of prompts takes" in run.out
    assert "not modelled  --enable-torch-compile" in run.out
    assert "sglang@0.5.3 is the newest that takes all flags (--enable-ep-moe)" in run.out
    assert re.search(r"ignored +--host", run.out)
    assert "chunked_prefill_size 2048" in run.out  # was tried


def test_a_command_of_an_engine_that_is_not_modelled(answered: Any) -> None:
    sentence = answered("explain-command", "trtllm-serve Qwen/Qwen3-0.6B", "--gpu", "h100-sxm").sentence
    assert sentence.startswith("the command starts TensorRT-LLM, which is not modelled; use --engine vllm or sglang")


def test_a_plan_and_its_files(infercast: Any, tmp_path: Path) -> None:
    asked = ("--slo", "ttft_p99<2s", "--kv-cache-dtype", "fp8", "--vary", "max_running_requests=64")
    run = infercast(*PLAN, *SGLANG, *asked, "--workers", 1, "--out", tmp_path / "plan")
    assert run.code == 0, run.err
    assert "by sglang@0.5.23" in run.out
    serve = (tmp_path / "plan" / "serve.sh").read_text()
    assert 'python3 -m sglang.launch_server --model-path "$MODEL" --host 0.0.0.0 --kv-cache-dtype fp8_e4m3' in serve
    assert "--max-running-requests 64" in serve
    bench = (tmp_path / "plan" / "bench.sh").read_text()
    assert "python3 -m sglang.bench_serving" in bench
    assert "median_e2e_latency_ms" in bench
    compose = (tmp_path / "plan" / "compose.yaml").read_text()
    assert "lmsysorg/sglang:v0.5.23" in compose
    assert "sglang.launch_server" in compose
    assert not (tmp_path / "plan" / "llm-d-values.yaml").exists()


def test_both_engines_in_one_plan(answered: Any) -> None:
    run = answered(*PLAN, "--slo", "ttft_p99<2s", "--engine", "vllm,sglang", "--workers", 1, "--json")
    assert {row["engine"].partition("@")[0] for row in run.json["simulated"]} == {"vllm", "sglang"}


def test_layouts_of_groups(answered: Any) -> None:
    run = answered(
        "layouts",
        "qwen3-30b-a3b",
        "--gpu",
        "h100-sxm",
        "--gpus",
        2,
        *SGLANG,
        "-n",
        64,
        "--max-running-requests",
        32,
        "--json",
    )
    groups = [row for row in run.json if row["data_parallel_size"] == 2]
    assert len(groups) == 2
    assert all(row["weight_bytes"] < 0.6 * 61e9 for row in groups)  # they share the experts
