"""Values for the chart of llm-d: a decode pool that does both, or a prefill pool and a decode pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.forecast.system import PREFILL
from infercast.report.plan_files.kubernetes import SECRET, SHARED_MEMORY, shell_command, side_channel
from infercast.report.plan_files.started import SIDE_CHANNEL, StartedPool, plain_name
from infercast.report.plan_files.yaml_writer import yaml_text
from infercast.units import GIB

CHART_SETS = ("--tensor-parallel-size", "--data-parallel-size")
"""Flags that the chart makes of ``parallelism``."""
SIDECAR_PORT = 8200
"""Where an engine listens behind the chart's proxy."""


def llm_d_values(pools: Sequence[StartedPool], model: str, weights: float, title: str) -> str | None:
    """``llm-d-values.yaml``; None for an engine that llm-d does not start. ``weights``: bytes of the checkpoint."""
    if any("llm_d_image" not in pool.commands.elsewhere for pool in pools):
        return None
    two = len(pools) > 1
    values: dict[str, Any] = {
        "multinode": any(pool.nodes > 1 for pool in pools),
        "modelArtifacts": {
            "name": model,
            "uri": f"hf://{model}",
            "size": f"{max(1, round(1.5 * weights / GIB))}Gi",
            "authSecretName": SECRET,
            "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": plain_name(model)},
        },
        "routing": {"servicePort": pools[0].commands.port, "proxy": {"enabled": two, "targetPort": SIDECAR_PORT}},
        "decode": _pool(pools[-1], model),
        "prefill": _pool(pools[0], model) if two else {"create": False},
    }
    return yaml_text(values, comment=f"{title}\nhelm install NAME llm-d-modelservice/llm-d-modelservice -f FILE")


def _pool(pool: StartedPool, model: str) -> dict[str, Any]:
    layout = pool.candidate.layout
    parallelism = {"tensor": layout.tensor, "data": layout.data}
    if pool.nodes > 1:
        parallelism |= {"workers": pool.nodes}
    gpus = {"nvidia.com/gpu": str(pool.gpus_a_node)}
    ports = [{"containerPort": SIDE_CHANNEL, "name": "side-channel"}] if pool.disaggregated else []
    container = {
        "name": pool.name,
        "image": f"{pool.commands.elsewhere['llm_d_image']}:latest",
        **_command(pool, model),
        "env": side_channel(pool),
        "ports": ports,
        "resources": {"limits": gpus, "requests": gpus},
        "mountModelVolume": True,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "create": True,
        "replicas": pool.candidate.replicas,
        "parallelism": parallelism,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}],
    }


def _command(pool: StartedPool, model: str) -> dict[str, Any]:
    """What the chart starts by itself, or over several nodes a command of our own."""
    if pool.nodes == 1:
        return {"modelCommand": pool.commands.elsewhere["llm_d_command"], "args": _without_sizes(pool.flags)}
    first, other = (shell_command(pool, model, first=each)["args"][0] for each in (True, False))
    port = pool.commands.port if pool.name == PREFILL or not pool.disaggregated else SIDECAR_PORT
    first, other = (text.replace(f"--port {pool.port}", f"--port {port}") for text in (first, other))
    script = f'if [ "${{LWS_WORKER_INDEX:-0}}" = 0 ]; then\n  {first}\nfi\n{other}\n'
    return {"modelCommand": "custom", "command": ["/bin/sh", "-c"], "args": [script]}


def _without_sizes(flags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(flags)
    for word in words:
        if word in CHART_SETS:
            next(words, None)
        else:
            kept.append(word)
    return kept
