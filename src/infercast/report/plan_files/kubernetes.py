"""Kubernetes manifests: a Deployment or, over several nodes, a LeaderWorkerSet for each pool, and a Service."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from infercast.report.plan_files.started import SIDE_CHANNEL, StartedPool
from infercast.report.plan_files.yaml_writer import yaml_text

SECRET = "hf-token"
SHARED_MEMORY = "32Gi"
START_SECONDS, EVERY = 3600, 10
"""Large weights take long to load: so long, asked every so often."""


def manifests(pools: Sequence[StartedPool], model: str, name: str, title: str) -> str:
    """``kubernetes.yaml``."""
    documents: list[dict[str, Any]] = []
    for pool in pools:
        whole = f"{name}-{pool.name}"
        documents.append(_leader_worker_set(pool, model, whole) if pool.nodes > 1 else _deployment(pool, model, whole))
        documents.append(_service(pool, whole))
    comment = f"{title}\nkubectl create secret generic {SECRET} --from-literal=HF_TOKEN=...\nkubectl apply -f FILE"
    return yaml_text(*documents, comment=comment)


def _labels(name: str, *, leader: bool = False) -> dict[str, str]:
    return {"app": name, **({"role": "leader"} if leader else {})}


def _deployment(pool: StartedPool, model: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {
            "replicas": pool.candidate.replicas,
            "selector": {"matchLabels": _labels(name)},
            "template": {
                "metadata": {"labels": _labels(name)},
                "spec": pod_spec(pool, {"args": pool.container_words(model, pool.port)}),
            },
        },
    }


def _leader_worker_set(pool: StartedPool, model: str, name: str) -> dict[str, Any]:
    """Groups of as many pods as a replica has machines; the first of each answers requests."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": pool.candidate.replicas,
            "leaderWorkerTemplate": {
                "size": pool.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {
                    "metadata": {"labels": _labels(name, leader=True)},
                    "spec": pod_spec(pool, shell_command(pool, model, first=True)),
                },
                "workerTemplate": {
                    "metadata": {"labels": _labels(name)},
                    "spec": pod_spec(pool, shell_command(pool, model, first=False), answers=False),
                },
            },
        },
    }


def shell_command(pool: StartedPool, model: str, *, first: bool) -> dict[str, Any]:
    """One pod of a group, which finds its place in the variables that a LeaderWorkerSet gives it."""
    start = f"$((LWS_WORKER_INDEX * {pool.copies_a_node}))"
    further = pool.node_flags("$LWS_WORKER_INDEX", start, "$LWS_LEADER_ADDRESS", first=first)
    words = [shlex.quote(word) for word in (*pool.commands.serve, model, *pool.flags)]
    words += [f'"{word}"' if "$" in word else shlex.quote(word) for word in further]
    return {"command": ["/bin/sh", "-c"], "args": [" ".join(["exec", *words, "--port", str(pool.port)])]}


def pod_spec(pool: StartedPool, command: dict[str, Any], *, answers: bool = True) -> dict[str, Any]:
    """One pod; ``answers``: whether it takes requests."""
    gpus = str(pool.gpus_a_node)
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}}}
    container = {
        "name": pool.name,
        "image": pool.image,
        **command,
        "env": [token, *side_channel(pool)],
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if answers:
        probe = {"httpGet": {"path": pool.commands.health, "port": pool.port}, "periodSeconds": EVERY}
        container["ports"] = [{"containerPort": pool.port, "name": "http"}]
        container["startupProbe"] = {**probe, "failureThreshold": START_SECONDS // EVERY}
        container["readinessProbe"] = probe
    return {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}],
    }


def side_channel(pool: StartedPool) -> list[dict[str, Any]]:
    """Variables by which pools that hand over keys and values find each other."""
    known = pool.commands.disaggregated
    if not pool.disaggregated or "port_variable" not in known:
        return []
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": known["port_variable"], "value": str(SIDE_CHANNEL)},
        {"name": known["host_variable"], "valueFrom": address},
    ]


def _service(pool: StartedPool, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": _labels(name, leader=pool.nodes > 1),
            "ports": [{"name": "http", "port": pool.commands.port, "targetPort": pool.port}],
        },
    }
