"""A published run of an old release, and the same deployment asked for by a user: one path, so one number."""

from pathlib import Path
from typing import Any

import pytest

from infercast import deploy
from infercast.engines.base import Deployment, engine_named
from infercast.forecast.command.explain import explain_command
from infercast.serve import Request, Workload, simulate
from published.compare import TRAINED_ROUTING, set_up
from published.run import RowReader
from published.table import read_collected

ROW = {
    "source_repo": "someone/runs", "precision": "bf16", "load_kind": "closed loop", "quality": "A", "num_gpus": "1",
    "concurrency_or_rate": "concurrency 4", "num_requests": "10", "mean_in": "600", "mean_out": "40", "tpot_p50": "7",
}  # fmt: skip
LOAD = Workload(tuple(Request(0.01 * place, 300 + 40 * place, 12) for place in range(12)))
OLD = [
    ("vllm@0.6.5", "h100-sxm", "Qwen/Qwen3-8B", "--max-model-len 4000"),
    ("vllm@0.10.2", "h100-sxm", "Qwen/Qwen3-8B", "--max-num-seqs 8 --async-scheduling"),
    ("vllm@0.11.0", "l40s", "deepseek-ai/DeepSeek-V2-Lite", "--max-model-len 8192"),
    ("vllm@0.12.0", "h200-sxm", "allenai/OLMoE-1B-7B-0924", "--gpu-memory-utilization 0.92"),
    ("vllm@0.19.0", "h100-sxm", "meta-llama/Llama-3.1-8B", "--max-model-len 8192"),
    ("sglang@0.5.6", "h100-sxm", "Qwen/Qwen3-8B", "--context-length 8192"),
    ("sglang@0.5.7", "mi300x", "deepseek-ai/DeepSeek-V2-Lite", ""),
    ("sglang@0.5.8", "b200-sxm", "Qwen/Qwen3-30B-A3B", "--max-running-requests 64"),
    ("sglang@0.5.12", "h200-sxm", "deepseek-ai/DeepSeek-V2-Lite", "--chunked-prefill-size 4096"),
]


def published(name: str, gpu: str, model: str, flags: str, **more: str) -> tuple[Deployment, Any]:
    family, version = name.split("@")
    command = " ".join([*engine_named(family).commands.serve, model, flags])
    row = {**ROW, "engine": family, "version": version, "infercast_gpu": gpu, "model": model, "server_cmd": command}
    run = read_collected(RowReader(Path("runs.csv"), 2, {**row, **more}))
    assert run.reading is not None
    return set_up(run)[1], run.reading.settings


def times(deployment: Deployment) -> list[list[float]]:
    run = simulate(deployment.replica(), LOAD)
    return [run.ttft.tolist(), run.tpot.tolist()]


@pytest.mark.parametrize(("name", "gpu", "model", "flags"), OLD)
def test_a_published_run_and_the_same_question(name: str, gpu: str, model: str, flags: str) -> None:
    run, given = published(name, gpu, model, flags)
    engine, newest = engine_named(name), engine_named(name.partition("@")[0])
    user = deploy(model, gpu, engine.settings(given), expert_routing=TRAINED_ROUTING)
    assert (user.engine.name, user.gpu, user.layout, user.settings) == (name, run.gpu, run.layout, run.settings)
    assert (user.model.stacks, user.host, user.memory) == (run.model.stacks, run.host, run.memory)
    assert times(user) == times(run)
    other = deploy(model, gpu, newest.settings(given), expert_routing=TRAINED_ROUTING)
    assert times(other) != times(run) or other.memory != run.memory


@pytest.mark.parametrize(
    ("name", "model", "seconds"),
    [
        ("vllm@0.11.0", "Qwen/Qwen3-8B", 8.5e-3),
        ("vllm@0.11.0", "openai/gpt-oss-20b", 0),
        ("vllm@0.11.1", "Qwen/Qwen3-8B", 0),
    ],
)
def test_chats_of_a_release_that_parsed_templates_for_each(name: str, model: str, seconds: float) -> None:
    run, _ = published(
        name, "h100-sxm", model, "", precision="native", bench_cmd="vllm bench serve --backend openai-chat"
    )
    plain, chats = (deploy(model, "h100-sxm", engine=name, chat=chat) for chat in (False, True))
    assert chats.host == run.host
    assert chats.host.server_turn == pytest.approx(plain.host.server_turn + seconds)
    assert plain.has_default_host
    assert chats.has_default_host


@pytest.mark.parametrize(("name", "gpu", "model", "flags"), OLD[1:3])
def test_a_pasted_command_of_that_release(name: str, gpu: str, model: str, flags: str) -> None:
    run, _ = published(name, gpu, model, flags)
    version = name.partition("@")[2]
    text = f"docker run --gpus 1 vllm/vllm-openai:v{version} --model {model} {flags}"
    found = explain_command(text, gpu, LOAD, advice=False, expert_routing=TRAINED_ROUTING)
    assert found.engine.name == name
    assert times(found.served[0].forecast.deployment) == times(run)
