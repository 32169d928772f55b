"""What publishers' own pages and scripts say of their runs beyond the collected table, or against it.

InferenceX publishes no server's command: it is that of its scripts (SemiAnalysisAI/InferenceX,
``benchmarks/single_node/dsr1_fp8_h200.sh``, ``dsr1_fp8_b200.sh``, ``benchmarks/dsr1_fp4_b200.sh``,
``dsr1_fp8_mi300x.sh``, ``dsr1_fp8_mi355x.sh``, ``dsr1_fp4_mi355x.sh`` and ``gptoss_fp4_h200.sh``).

ML.ENERGY starts all its servers with one set of flags (ml-energy/benchmark, ``configs/vllm/TASK/MODEL/H100``).

cloudrift sends chats (cloudrift-ai/server-benchmark, ``benchmarks/3_vllm_benchmark.sh``).

GPUStack's page of GLM-5.2 (gpustack/gpustack, ``docs/performance-lab/glm-5.2/h200.md``, SGLang 0.5.14) tries one flag
after another, and the table has its last command for all of them; its baselines are vLLM's. It offers 1,000 requests
a second, of which 512 are under way at most, or one a second where the table has the most that were under way.

SGLang's cookbook names its main branch on some pages: they are of the month in which their numbers were added (SGLang's
pull requests 20407, 23998 and 26969; Gemma 4 came in April 2026).
"""

from __future__ import annotations

import re

START = "sglang.launch_server --trust-remote-code --disable-radix-cache --tensor-parallel-size {tp} "
LONG = "--chunked-prefill-size 32768 --max-prefill-tokens 32768 --mem-fraction-static 0.82 "
BLACKWELL = (
    "--kv-cache-dtype fp8_e4m3 --enable-flashinfer-allreduce-fusion --attention-backend trtllm_mla "
    "--moe-runner-backend flashinfer_trtllm "
)
AMD = (
    "--mem-fraction-static 0.8 --cuda-graph-max-bs 128 --chunked-prefill-size {prompts} --max-prefill-tokens {prompts} "
    "--num-continuous-decode-steps 4 --attention-backend aiter "
)
AMD_GPUS = ("mi300x", "mi325x", "mi355x")
GPT_OSS = (
    "vllm serve openai/gpt-oss-120b --async-scheduling --no-enable-prefix-caching --max-num-batched-tokens 8192 "
    "--max-cudagraph-capture-size 2048 --gpu-memory-utilization 0.9 --moe-backend marlin "
    "--tensor-parallel-size {tp} --max-num-seqs {clients} --max-model-len {context}"
)
ML_ENERGY = "vllm serve {model} --async-scheduling --max-num-batched-tokens 8192 --max-model-len {context}"
PIECEWISE = """ --compilation-config '{"cudagraph_mode": "PIECEWISE"}'"""
ML_ENERGY_CONTEXTS = {"gpqa": 40960}
"""Longest contexts of its tasks; 20,480 otherwise."""
HHOLTMANN = "0.12.0"
"""The release of all runs of hholtmann/llm-consumer-gpu-benchmark: its images are built from one file."""
FLASHINFER = "--fp8-gemm-backend flashinfer_trtllm "
"""SGLANG_ENABLE_FLASHINFER_GEMM of its scripts for the B200 and the B300 in fp8."""
MANY_CLIENTS = 16
"""From so many on its scripts for the B200 look for requests every 30 steps, not every 10."""

COOKBOOK = {
    "Nemotron3-Super": "2026-03",
    "Nemotron3-Nano-Omni": "2026-04",
    "Gemma4": "2026-04",
    "Nemotron3-Ultra": "2026-06",
}
GLM_PAGE = "glm-5.2/h200.md"
GLM_VERSION = "0.5.14"
SHARED = "--tp-size=8 --dp-size=8 --enable-dp-attention "
SENT = f"{SHARED}--mem-fraction-static=0.85 --moe-a2a-backend=deepep "
LAST = f"{SENT}--max-running-requests=256 --kv-cache-dtype=fp8_e4m3"
GLM_FLAGS = {
    "SGLang": "--tp-size=8",
    "TP + DP-Attention": "--tp-size=8 --enable-dp-attention",
    "TP + DP + DP-Attention": SHARED,
    "TP + DP + DP-Attention + EP": f"{SHARED}--ep-size=8",
    "auto": SHARED,
    "0.8": f"{SHARED}--mem-fraction-static=0.8",
    "0.85": f"{SHARED}--mem-fraction-static=0.85",
    "8K": f"{SHARED}--mem-fraction-static=0.85 --chunked-prefill-size=8192",
    "max-running 64": f"{SENT}--max-running-requests=64",
    "max-running 256": f"{SENT}--max-running-requests=256",
    "max-running 512": f"{SENT}--max-running-requests=512",
    "normal": f"{SENT}--max-running-requests=256 --deepep-mode=normal",
    "fp8_e4m3": LAST,
}
"""The flags of the page's sections; all that are not named here ran the last command or, as baselines, vLLM."""
QWEN_PAGES = "performance-lab/qwen3.5-"
"""Their loads are like those of the page of GLM-5.2."""
A_SECOND = 0.05
ONE_A_SECOND = ("Long Context", "Generation Heavy")


def inferencex_command(row: dict[str, str]) -> str:
    """What its scripts start for DeepSeek-R1 with SGLang, and for gpt-oss-120b with vLLM."""
    lengths, clients = row["len_dist"].split()[-1], int(row["concurrency_or_rate"].split()[-1])
    if row["engine"] == "vllm":
        longest = sum(map(int, lengths.split("/")))
        context = longest + (20 if lengths == "1024/1024" else 200)
        return GPT_OSS.format(tp=row["tp"], clients=clients, context=context)
    if row["infercast_gpu"] in AMD_GPUS:
        return START.format(tp=row["tp"]) + _amd_flags(row, lengths, clients)
    looks = f"--scheduler-recv-interval {30 if clients >= MANY_CLIENTS else 10} "
    if row["infercast_gpu"] == "h200-sxm":
        most = 512 if lengths == "1024/1024" else 256
        flags = f"{LONG}--max-running-requests {most} --cuda-graph-max-bs {most} --attention-backend flashinfer"
    elif "nvfp4" in row["precision"]:
        flags = f"{BLACKWELL}{looks}--max-running-requests 256 --cuda-graph-max-bs 256 --mem-fraction-static 0.85 "
        flags += "--chunked-prefill-size 16384"
    elif row["tp"] == "8":
        flags = f"{BLACKWELL}{FLASHINFER}{looks}{LONG}--max-running-requests 128 --cuda-graph-max-bs 128"
    else:
        flags = f"{BLACKWELL}{FLASHINFER}--scheduler-recv-interval 10 --max-running-requests 32 --cuda-graph-max-bs 32 "
        flags += "--mem-fraction-static 0.95 --chunked-prefill-size 8192 --max-prefill-tokens 8192"
    return START.format(tp=row["tp"]) + flags


def _amd_flags(row: dict[str, str], lengths: str, clients: int) -> str:
    """MI300X and MI325X take fewer tokens a step than MI355X, which has keys and values in bf16 with fp8 weights."""
    is_newest, is_four_bit = row["infercast_gpu"] == "mi355x", "fp4" in row["precision"]
    prompts = 196608 if is_newest else 131072
    if is_four_bit and lengths == "8192/1024" and clients > 32:
        prompts = 32768
    return AMD.format(prompts=prompts) + ("" if is_newest and not is_four_bit else "--kv-cache-dtype fp8_e4m3")


ML_ENERGY_BENCH = "mlenergy.llm.benchmark --endpoint-type openai-chat --temperature 0.8 --top-p 0.95"
"""Its benchmark's defaults (``mlenergy/llm/benchmark.py``)."""


CLOUDRIFT_BENCH = (
    "vllm bench serve --dataset-name random --backend openai-chat --endpoint /v1/chat/completions --ignore-eos"
)


def ml_energy_command(row: dict[str, str]) -> str:
    """What ML.ENERGY starts; its experts are spread over all GPUs that share a layer."""
    context = ML_ENERGY_CONTEXTS.get(row["len_dist"], 20480)
    command = f"{ML_ENERGY.format(model=row['model'], context=context)} --tensor-parallel-size {row['num_gpus']}"
    command += " --enable-expert-parallel" if row["ep"] not in ("", "1") else ""
    return command + (' --compilation-config \'{"cudagraph_mode": "PIECEWISE"}\'' if "gpt-oss" in row["model"] else "")


def as_published(row: dict[str, str]) -> dict[str, str]:
    """The row with what its page says."""
    if row["source_repo"] == "cloudrift-ai/server-benchmark" and not row["bench_cmd"]:
        row = {**row, "bench_cmd": CLOUDRIFT_BENCH}
    if not row["server_cmd"] and "SemiAnalysisAI/InferenceX" in row["source_repo"]:
        return {**row, "server_cmd": inferencex_command(row)} if row["engine"] in ("vllm", "sglang") else row
    if row["source_repo"] == "ml-energy/leaderboard":
        return {**row, "server_cmd": ml_energy_command(row), "bench_cmd": ML_ENERGY_BENCH}
    if row["source_repo"] == "hholtmann/llm-consumer-gpu-benchmark" and not row["version"]:
        return {**row, "version": HHOLTMANN}
    if row["source_repo"] == "sgl-project/sglang" and not re.search(r"\d\.\d", row["version"]):
        page = row["path"].rpartition("/")[2].partition(".")[0]
        row = {**row, "date": COOKBOOK.get(page, row["date"])}
    if GLM_PAGE in row["path"]:
        return _glm(row)
    if QWEN_PAGES in row["path"] and (answered := float(row["req_s"] or 0)) and abs(answered - 1) < A_SECOND:
        return {**row, "load_kind": "poisson", "concurrency_or_rate": "rate 1.0"}
    return row


def _glm(row: dict[str, str]) -> dict[str, str]:
    """A section of the page of GLM-5.2."""
    section, result = (part.strip() for part in row["notes"].removeprefix("sec:").split(";")[:2])
    if section.startswith(ONE_A_SECOND):
        row = {**row, "load_kind": "poisson", "concurrency_or_rate": "rate 1.0"}
    if section == "vLLM" or result.startswith("Baseline"):
        command = "vllm serve zai-org/GLM-5.2-FP8 --tensor-parallel-size 8"
        return {**row, "engine": "vllm", "server_cmd": command, "dp": "1", "ep": ""}
    flags = GLM_FLAGS.get(section, LAST)
    command = f"python3 -m sglang.launch_server --model-path zai-org/GLM-5.2-FP8 {flags}"
    groups = "8" if "--dp-size" in flags else "1"
    return {**row, "server_cmd": command, "version": GLM_VERSION, "dp": groups, "ep": ""}
