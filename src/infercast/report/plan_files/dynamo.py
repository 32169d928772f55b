"""A graph deployment of Dynamo: its frontend, and a service of workers for each pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.forecast.system import PREFILL
from infercast.report.plan_files.kubernetes import SECRET
from infercast.report.plan_files.started import StartedPool
from infercast.report.plan_files.yaml_writer import yaml_text

ROLES = {"server": (), "prefill": ("--is-prefill-worker",), "decode": ("--is-decode-worker",)}


def dynamo_graph(pools: Sequence[StartedPool], model: str, name: str, title: str) -> str | None:
    """``dynamo.yaml``; None for an engine that Dynamo does not start."""
    if any("dynamo_module" not in pool.commands.elsewhere for pool in pools):
        return None
    image = f"{pools[0].commands.elsewhere['dynamo_image']}:${{VERSION}}"
    services: dict[str, Any] = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "extraPodSpec": {"mainContainer": {"image": image}},
        }
    }
    for pool in pools:
        services[f"{pool.name.title()}Worker"] = _worker(pool, model)
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"services": services},
    }
    return yaml_text(graph, comment=f"{title}\nVERSION=... envsubst '$VERSION' < FILE | kubectl apply -f -")


def _worker(pool: StartedPool, model: str) -> dict[str, Any]:
    known = pool.commands.elsewhere
    transfer = f"--{pool.commands.disaggregated.get('flag', '')}"
    words = list(pool.flags[len(pool.commands.always) :])  # Dynamo is what clients reach
    roles = list(ROLES[pool.name])
    if "dynamo_keeps_flags" in known:
        roles = []
    elif transfer in words:  # Dynamo joins its pools itself
        at = words.index(transfer)
        del words[at : at + 2]
    worker: dict[str, Any] = {
        "envFromSecret": SECRET,
        "componentType": "worker",
        "replicas": pool.candidate.replicas,
        "resources": {"limits": {"gpu": str(pool.gpus_a_node)}},
        "extraPodSpec": {
            "mainContainer": {
                "image": f"{known['dynamo_image']}:${{VERSION}}",
                "command": ["python3", "-m", known["dynamo_module"]],
                "args": ["--model", model, *words, *roles],
            }
        },
    }
    if pool.disaggregated:
        worker["subComponentType"] = "prefill" if pool.name == PREFILL else "decode"
    if pool.nodes > 1:
        worker["multinode"] = {"nodeCount": pool.nodes}
    return worker
