"""Files that start a planned deployment: shell script, Docker Compose, Kubernetes, llm-d and Dynamo."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infercast.engines.base import Engine, engine_named
from infercast.engines.settings import Commands
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.system import DECODE, PREFILL
from infercast.hardware import Gpu, load_gpu
from infercast.report.deployment import flag_words
from infercast.units import GIB

SERVER = "server"
PORTS = {SERVER: 0, PREFILL: 100, DECODE: 200}
"""Added to the engine's own port, so that pools may share a machine."""
SIDE_CHANNEL = 5600
"""Port on which pools exchange keys and values; further replicas use those above it."""


class Place:
    """One replica on its machines."""

    def __init__(self, pool: StartedPool, number: int) -> None:
        self.name = f"{pool.name}-{number}"
        side_by_side = max(1, pool.node_gpus // pool.gpus_per_machine)
        seat = number % side_by_side
        self.machine = f"{pool.name}-machine-{number * pool.nodes if pool.nodes > 1 else number // side_by_side}"
        """The machine it runs on, the first of several."""
        self.devices = range(seat * pool.gpus_per_machine, (seat + 1) * pool.gpus_per_machine)
        self.port = pool.port + seat
        self.side_port = SIDE_CHANNEL + seat * pool.gpus_per_machine


@dataclass(frozen=True, slots=True)
class StartedPool:
    """Equal replicas of one candidate."""

    name: str
    candidate: Candidate
    engine: Engine
    gpu: Gpu
    flags: tuple[str, ...]
    """Of every replica, but for the model and the port."""
    disaggregated: bool

    def side_channel(self, port: int, host: Any) -> dict[str, Any]:
        """Variables for the exchange of keys and values between pools; empty for one pool."""
        known = self.commands.disaggregated
        if not self.disaggregated or "port_variable" not in known:
            return {}
        return {known["port_variable"]: str(port), known["host_variable"]: host}

    @property
    def commands(self) -> Commands:
        return self.engine.commands

    @property
    def image(self) -> str:
        return f"{self.commands.image}:{self.commands.tag.format(version=self.engine.name.partition('@')[2])}"

    def container_words(self, model: str, port: int) -> list[str]:
        """Arguments of the container that runs one replica on one machine."""
        serve = ["--model"] if self.commands.image_serves else [*self.commands.serve]
        return [*serve, model, *self.flags, "--port", str(port)]

    @property
    def port(self) -> int:
        return self.commands.port + PORTS[self.name]

    @property
    def node_gpus(self) -> int:
        return self.gpu.gpus_per_node

    @property
    def nodes(self) -> int:
        return -(-self.candidate.layout.gpus // self.node_gpus)

    @property
    def gpus_per_machine(self) -> int:
        return -(-self.candidate.layout.gpus // self.nodes)

    @property
    def places(self) -> list[Place]:
        return [Place(self, number) for number in range(self.candidate.replicas)]

    def node_flags(self, rank: str, start: str, leader: str, *, first: bool) -> Iterator[str]:
        """Flags for one machine of several; ``rank`` and ``start`` may be shell expressions."""
        layout, known = self.candidate.layout, self.commands.several_nodes
        by_copies = layout.data > 1 and layout.replica_gpus <= self.node_gpus
        local = self.gpus_per_machine // layout.replica_gpus if by_copies else 0
        values = {"nodes": self.nodes, "rank": rank, "start": start, "leader": leader, "local": local}
        for word in known.get("copies" if by_copies else "stages", ()):
            yield word.format(**values)
        if not first:
            yield from known.get("others", ())

    @property
    def copies_per_machine(self) -> int:
        """Copies of the model that share experts on each machine."""
        return max(1, self.gpus_per_machine // self.candidate.layout.replica_gpus)

    @property
    def needed_format(self) -> str | None:
        """The format that the checkpoint itself must have, because the engine does not make it."""
        wanted = self.candidate.quantization
        return None if wanted is None or wanted in self.commands.on_the_fly else wanted


def pools_of(candidate: Candidate) -> list[StartedPool]:
    roles = (SERVER,) if candidate.prefill is None else (PREFILL, DECODE)
    return [_started(pool, role, len(roles) > 1) for pool, role in zip(candidate.pools, roles, strict=True)]


def _started(candidate: Candidate, name: str, disaggregated: bool) -> StartedPool:
    engine = engine_named(candidate.engine)
    flags: list[str] = list(engine.commands.always)
    for option, value in candidate.options().items():
        if option == "quantization":
            if value in engine.commands.on_the_fly:
                flags += [f"--{option}", engine.commands.on_the_fly[value]]
        else:
            flags += flag_words({option: value})
    if disaggregated:
        flags += [f"--{engine.commands.disaggregated['flag']}", engine.commands.disaggregated[name]]
    return StartedPool(name, candidate, engine, load_gpu(candidate.gpu), tuple(flags), disaggregated)


def plain_name(model: str) -> str:
    """A model's name as Kubernetes allows names: small letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return words[:40].rstrip("-") or "model"


PLAIN = re.compile(r"(?:--?)?[A-Za-z_/.][A-Za-z0-9_./@-]*(?: [A-Za-z0-9_./@-]+)*")
"""Strings that need no quotes ..."""
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"}
"""... unless they mean something else."""


def yaml_text(*documents: Any, comment: str = "") -> str:
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "---\n".join("".join(f"{line}\n" for line in _lines(each, "")) for each in documents)


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", each, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            if isinstance(each, Mapping) and each:
                first, *rest = _lines(each, f"{indent}  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
            else:
                yield from _entry(f"{indent}-", each, indent)
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{indent}  {line}".rstrip() for line in value.rstrip("\n").split("\n"))
    elif isinstance(value, (Mapping, list, tuple)) and value:
        yield head
        yield from _lines(value, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, str):
        if PLAIN.fullmatch(value) is not None and value.lower() not in WORDS:
            return value
        if '"' in value and "'" not in value and "\\" not in value and value.isprintable():
            return f"'{value}'"
        return json.dumps(value, ensure_ascii=False)
    return "{}" if isinstance(value, Mapping) else "[]"


HEAD = """#!/usr/bin/env bash
# {title} Usage: {usage} MODEL may name another checkpoint of the same model.
set -euo pipefail
MODEL="${{MODEL:-{model}}}"
"""
MODEL = '"$MODEL"'
SEVERAL = """RANK="${2:-0}"  # of this machine among those of the replica
LEADER="${3:-127.0.0.1}"  # address of the machine of rank 0
"""


def serve_script(pools: Sequence[StartedPool], model: str, title: str) -> str:
    several = any(pool.nodes > 1 for pool in pools)
    usage = "bash serve.sh REPLICA [RANK LEADER_ADDRESS]" if several else "bash serve.sh REPLICA"
    text = HEAD.format(title=title, usage=usage, model=model) + (SEVERAL if several else "")
    for pool in pools:
        if pool.needed_format is not None:
            text += f"# The forecast is of {pool.needed_format} weights: MODEL must be a checkpoint in that format.\n"
        if (watts := pool.candidate.power_limit) is not None:
            text += f"# The forecast holds each GPU at {watts:g} W: sudo nvidia-smi -pl {watts:g}\n"
    text += '\ncase "${1:-}" in\n'
    for pool in pools:
        for place in pool.places:
            text += _branch(pool, place)
    names = " ".join(place.name for pool in pools for place in pool.places)
    return text + f'*)\n  echo "say which replica: {names}" >&2\n  exit 2\n  ;;\nesac\n'


def _branch(pool: StartedPool, place: Place) -> str:
    where = f"on {place.machine}" if pool.nodes == 1 else f"on {pool.nodes} machines from {place.machine} on"
    lines = [f"{place.name})  # {where}"]
    lines.append(f"  export CUDA_VISIBLE_DEVICES={','.join(map(str, place.devices))}")
    channel = pool.side_channel(place.side_port, '"${HOST_ADDRESS:-127.0.0.1}"')
    lines += [f"  export {name}={value}" for name, value in channel.items()]
    if pool.nodes == 1:
        lines.append(f"  exec {_command(pool, MODEL, place.port)}")
    else:
        start = f"$((RANK * {pool.copies_per_machine}))"
        first, other = (list(pool.node_flags("$RANK", start, "$LEADER", first=each)) for each in (True, False))
        lines.append(f'  if [ "$RANK" = 0 ]; then\n    exec {_command(pool, MODEL, place.port, first)}\n  fi')
        lines.append(f"  exec {_command(pool, MODEL, place.port, other)}")
    return "\n".join([*lines, "  ;;\n"])


def _command(pool: StartedPool, model: str, port: int, further: Iterable[str] = ()) -> str:
    """One command line; ``further`` words with a variable keep it."""
    words = [*pool.commands.serve, model, *map(shlex.quote, pool.flags)]
    words += [f'"{word}"' if "$" in word else shlex.quote(word) for word in further]
    return " ".join([*words, "--port", str(port)])


def command_lines(pools: Sequence[StartedPool], model: str) -> list[str]:
    return [shlex.join([*pool.commands.serve, model, *pool.flags]) for pool in pools]


SECRET = "hf-token"
MOUNTS = [{"name": "shm", "mountPath": "/dev/shm"}]
VOLUMES = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}]
"""Memory that GPUs of one container share."""
START_SECONDS, EVERY = 3600, 10
"""Large weights take long to load: so long, asked every so often."""


def manifests(pools: Sequence[StartedPool], model: str, name: str, title: str) -> str:
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
    start = f"$((LWS_WORKER_INDEX * {pool.copies_per_machine}))"
    further = pool.node_flags("$LWS_WORKER_INDEX", start, "$LWS_LEADER_ADDRESS", first=first)
    command = _command(pool, shlex.quote(model), pool.port, further)
    return {"command": ["/bin/sh", "-c"], "args": [f"exec {command}"]}


def pod_spec(pool: StartedPool, command: dict[str, Any], *, answers: bool = True) -> dict[str, Any]:
    """One pod; ``answers``: whether it takes requests."""
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}}}
    container = {
        "name": pool.name,
        "image": pool.image,
        **command,
        "env": [token, *_side_channel(pool)],
        "resources": _resources(pool),
        "volumeMounts": MOUNTS,
    }
    if answers:
        probe = {"httpGet": {"path": pool.commands.health, "port": pool.port}, "periodSeconds": EVERY}
        container["ports"] = [{"containerPort": pool.port, "name": "http"}]
        container["startupProbe"] = {**probe, "failureThreshold": START_SECONDS // EVERY}
        container["readinessProbe"] = probe
    return {"containers": [container], "volumes": VOLUMES}


def _resources(pool: StartedPool) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": str(pool.gpus_per_machine)}
    return {"limits": gpus, "requests": gpus}


def _side_channel(pool: StartedPool) -> list[dict[str, Any]]:
    variables = pool.side_channel(SIDE_CHANNEL, {"fieldRef": {"fieldPath": "status.podIP"}})
    keys = ("value", "valueFrom")
    return [{"name": name, key: value} for key, (name, value) in zip(keys, variables.items(), strict=False)]


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


def compose_file(pools: Sequence[StartedPool], model: str, title: str) -> str | None:
    """``compose.yaml``; None where a replica spans machines, which compose does not start."""
    if any(pool.nodes > 1 for pool in pools):
        return None
    services = {place.name: _compose_service(pool, place, model) for pool in pools for place in pool.places}
    machines = sorted({place.machine for pool in pools for place in pool.places})
    how = "\n".join(f"docker compose --profile {machine} up" for machine in machines)
    return yaml_text(
        {"services": services, "volumes": {"huggingface": {}}}, comment=f"{title}\nOn each machine its own:\n{how}"
    )


def _compose_service(pool: StartedPool, place: Place, model: str) -> dict[str, Any]:
    environment = {"HF_TOKEN": "${HF_TOKEN:-}", **pool.side_channel(place.side_port, "${HOST_ADDRESS:-127.0.0.1}")}
    devices = {"driver": "nvidia", "device_ids": [str(each) for each in place.devices], "capabilities": ["gpu"]}
    return {
        "profiles": [place.machine],
        "image": pool.image,
        "command": pool.container_words(model, place.port),
        "environment": environment,
        "network_mode": "host",
        "ipc": "host",
        "volumes": ["huggingface:/root/.cache/huggingface"],
        "deploy": {"resources": {"reservations": {"devices": [devices]}}},
        "restart": "unless-stopped",
    }


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
    ports = [{"containerPort": SIDE_CHANNEL, "name": "side-channel"}] if pool.disaggregated else []
    container = {
        "name": pool.name,
        "image": f"{pool.commands.elsewhere['llm_d_image']}:latest",
        **_llm_d_command(pool, model),
        "env": _side_channel(pool),
        "ports": ports,
        "resources": _resources(pool),
        "mountModelVolume": True,
        "volumeMounts": MOUNTS,
    }
    return {
        "create": True,
        "replicas": pool.candidate.replicas,
        "parallelism": parallelism,
        "containers": [container],
        "volumes": VOLUMES,
    }


def _llm_d_command(pool: StartedPool, model: str) -> dict[str, Any]:
    """What the chart starts by itself, or over several nodes a command of our own."""
    if pool.nodes == 1:
        return {"modelCommand": pool.commands.elsewhere["llm_d_command"], "args": _without_sizes(pool.flags)}
    first, other = (shell_command(pool, model, first=each)["args"][0] for each in (True, False))
    port = pool.commands.port if pool.name == PREFILL or not pool.disaggregated else SIDECAR_PORT
    first, other = (text.replace(f"--port {pool.port}", f"--port {port}") for text in (first, other))
    script = f'if [ "${{LWS_WORKER_INDEX:-0}}" = 0 ]; then\n  {first}\nfi\n{other}\n'
    return {"modelCommand": "custom", "command": ["/bin/sh", "-c"], "args": [script]}


def _without_sizes(flags: Sequence[str]) -> list[str]:
    return [word for before, word in zip(("", *flags), flags, strict=False) if not {before, word} & {*CHART_SETS}]


ROLES = {"server": (), "prefill": ("--is-prefill-worker",), "decode": ("--is-decode-worker",)}


def dynamo_graph(pools: Sequence[StartedPool], model: str, name: str, title: str) -> str | None:
    """``dynamo.yaml``; None for an engine that Dynamo does not start."""
    if any("dynamo_module" not in pool.commands.elsewhere for pool in pools):
        return None
    image = f"{pools[0].commands.elsewhere['dynamo_image']}:${{VERSION}}"
    services = {
        "Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": image}}},
        **{f"{pool.name.title()}Worker": _worker(pool, model) for pool in pools},
    }
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
        "resources": {"limits": {"gpu": str(pool.gpus_per_machine)}},
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
