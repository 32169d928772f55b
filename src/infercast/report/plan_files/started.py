"""What has to be started for a candidate: pools of equal replicas, their flags, and where they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from infercast.engines.registry import AnyEngine, engine_named
from infercast.engines.words import Commands
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.system import DECODE, PREFILL
from infercast.hardware import Gpu, load_gpu
from infercast.models.library import bundled_config, bundled_name

SERVER = "server"
PORTS = {SERVER: 0, PREFILL: 100, DECODE: 200}
"""Added to the engine's own port, so that pools may share a machine."""
SIDE_CHANNEL = 5600
"""Where pools that hand over keys and values talk to each other, and so many above it for further replicas."""


class Place:
    """One replica on its machines."""

    def __init__(self, pool: StartedPool, number: int) -> None:
        self.name = f"{pool.name}-{number}"
        side_by_side = max(1, pool.node_gpus // pool.gpus_a_node)
        seat = number % side_by_side
        self.machine = f"{pool.name}-machine-{number * pool.nodes if pool.nodes > 1 else number // side_by_side}"
        """The machine it runs on, the first of several."""
        self.devices = range(seat * pool.gpus_a_node, (seat + 1) * pool.gpus_a_node)
        self.port = pool.port + seat
        self.side_port = SIDE_CHANNEL + seat * pool.gpus_a_node


@dataclass(frozen=True, slots=True)
class StartedPool:
    """Equal replicas of one candidate."""

    name: str
    candidate: Candidate
    engine: AnyEngine
    gpu: Gpu
    flags: tuple[str, ...]
    """Of every replica, but for the model and the port."""
    disaggregated: bool

    @property
    def commands(self) -> Commands:
        """How the engine is started."""
        return self.engine.commands

    @property
    def image(self) -> str:
        """The container of the release that was forecast."""
        return f"{self.commands.image}:{self.commands.tag.format(version=self.engine.name.partition('@')[2])}"

    def container_words(self, model: str, port: int) -> list[str]:
        """What its container is told to start a replica on one machine."""
        serve = ["--model"] if self.commands.image_serves else [*self.commands.serve]
        return [*serve, model, *self.flags, "--port", str(port)]

    @property
    def port(self) -> int:
        """Where its first replica of a machine listens."""
        return self.commands.port + PORTS[self.name]

    @property
    def node_gpus(self) -> int:
        """GPUs of a machine."""
        return self.gpu.gpus_per_node

    @property
    def nodes(self) -> int:
        """Machines of one replica."""
        return -(-self.candidate.layout.gpus // self.node_gpus)

    @property
    def gpus_a_node(self) -> int:
        """GPUs that a replica has on each of them."""
        return -(-self.candidate.layout.gpus // self.nodes)

    @property
    def places(self) -> list[Place]:
        """Every replica."""
        return [Place(self, number) for number in range(self.candidate.replicas)]

    def node_flags(self, rank: str, start: str, leader: str, *, first: bool) -> Iterator[str]:
        """What one machine of several is told; ``rank`` and ``start`` may be expressions of a shell."""
        layout, known = self.candidate.layout, self.commands.several_nodes
        by_copies = layout.data > 1 and layout.replica_gpus <= self.node_gpus
        local = self.gpus_a_node // layout.replica_gpus if by_copies else 0
        values = {"nodes": self.nodes, "rank": rank, "start": start, "leader": leader, "local": local}
        for word in known.get("copies" if by_copies else "stages", ()):
            yield word.format(**values)
        if not first:
            yield from known.get("others", ())

    @property
    def copies_a_node(self) -> int:
        """Copies of the model that share experts on each machine."""
        return max(1, self.gpus_a_node // self.candidate.layout.replica_gpus)

    @property
    def needed_format(self) -> str | None:
        """The format that the checkpoint itself must have, because the engine does not make it."""
        wanted = self.candidate.quantization
        return None if wanted is None or wanted in self.commands.on_the_fly else wanted


def pools_of(candidate: Candidate) -> list[StartedPool]:
    """The one pool of a candidate, or its prefill pool and its decode pool."""
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
            flags += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    if disaggregated:
        flags += [f"--{engine.commands.disaggregated['flag']}", engine.commands.disaggregated[name]]
    return StartedPool(name, candidate, engine, load_gpu(candidate.gpu), tuple(flags), disaggregated)


def repository_of(model: str) -> str:
    """The name that an engine loads a model by: that on Hugging Face, where it is known."""
    if bundled_name(model) is None:
        return model
    source = str(bundled_config(model)["infercast"].get("source", ""))
    found = re.search(r"huggingface\.co/([\w.-]+/[\w.-]+)", source)
    return found[1] if found else model


def plain_name(model: str) -> str:
    """A model's name as Kubernetes allows names: small letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return words[:40].rstrip("-") or "model"
