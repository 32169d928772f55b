"""Communication between the GPUs of one replica."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.pcie import MEASURED, is_left_open, servers
from infercast.ops import Collective
from infercast.predict.families.family import Ceiling, Family, Shape
from infercast.predict.families.pipes import floats, lone
from infercast.predict.physics.collective import FEATURES, Exchange

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def _variants(op: Collective, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    """Without direct links, engines give their own kernel up beyond two GPUs."""
    has_own = op.kind == "all_reduce" and (gpu.is_linked(op.gpus) or op.gpus <= 2)
    return (profile.all_reduce, "NCCL") if has_own else ("NCCL",)


def _is_measured(op: Collective, gpu: Gpu) -> bool:
    """None was measured between nodes, and without direct links in servers of one kind alone."""
    inside = op.gpus <= gpu.gpus_per_node
    return inside and (gpu.is_linked(op.gpus) or gpu.pcie_topology in ("", MEASURED))


def _shape(kind: str) -> Shape:
    return Shape(("bytes", "gpus"), {}, lambda values: Collective(kind, values["bytes"], int(values["gpus"])))


COLLECTIVE = Family(
    name="collective",
    position=5,
    op=Collective,
    shapes={kind: _shape(kind) for kind in ("all_reduce", "all_gather")},
    step_sizes=("message_bytes",),
    sizes=lambda op: floats(op.message_bytes),
    size_of_one=lambda op: lone(op.message_bytes),
    kind=attrgetter("kind", "gpus"),
    core=Exchange,
    core_key=attrgetter("kind", "gpus", "library"),
    features={"collective": FEATURES},
    pipes=lambda op, gpu: {"link": op.link_bytes / gpu.link_bandwidth(op.gpus)},
    limits=lambda op, gpu: {"link": np.ravel(op.link_bytes) / gpu.link_bandwidth(op.gpus)},
    moved=lambda op: op.link_bytes,
    bandwidth=lambda op, gpu: gpu.link_bandwidth(op.gpus),
    variants=_variants,
    is_measured=_is_measured,
    waits_in_engine=True,
    is_chip_bound=False,  # but by links, of which a board with a bridge has two kinds
    servers=lambda op, gpu: servers(gpu) if is_left_open(gpu, op.gpus) else [],
    spread={"collective": 9.4},
    typical=lambda _: ("collective",),
    ceiling=Ceiling(
        features=("kind", "gpus", "linked"),
        shape=lambda op, gpu: [KINDS.index(op.kind), op.gpus, gpu.is_linked(op.gpus)],
    ),
)
