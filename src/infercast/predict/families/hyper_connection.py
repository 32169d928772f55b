"""Manifold-constrained hyper-connections: several residual streams, mixed before and after each half of a layer."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import HyperConnection
from infercast.predict.families.family import Ceiling, Family, Shape
from infercast.predict.families.pipes import dram_seconds, floats, lone
from infercast.predict.physics.hyper_connection import FEATURES, Connecting


def _ceiling_shape(op: HyperConnection, gpu: Gpu) -> list[Any]:
    return [np.log2(np.maximum(np.ravel(np.asarray(op.rows)), 1) / gpu.sms)]


def _shape(half: str) -> Shape:
    return Shape(
        ("rows", "hidden"),
        {},
        lambda values: HyperConnection(values["rows"], hidden=int(values["hidden"]), half=half),
    )


HYPER_CONNECTION = Family(
    name="hyper_connection",
    position=13,
    archive="sparse",
    op=HyperConnection,
    shapes={f"hyper_connection_{half}": _shape(half) for half in ("pre", "post")},
    step_sizes=("rows",),
    sizes=lambda op: floats(op.rows),
    size_of_one=lambda op: lone(op.rows),
    kind=lambda op: (op.half,),
    core=Connecting,
    core_key=attrgetter("hidden", "streams", "half"),
    features={"hyper_connection": FEATURES},
    shares=("dram", "blocks", "launch"),
    pipes=lambda op, gpu: {"dram": dram_seconds(op, gpu)},
    limits=lambda op, gpu: {"dram": np.ravel(dram_seconds(op, gpu))},
    variants=lambda op, *_: (op.half,),
    spread={"hyper_connection": 8.0},
    typical=lambda _: ("hyper_connection",),
    ceiling=Ceiling(features=("log_rounds",), shape=_ceiling_shape, variant=attrgetter("half")),
)
