"""One new token for each of many recurrent states."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import StateUpdate
from infercast.ops.op import Quantity
from infercast.ops.recurrent import GATED_DELTA, KIMI_DELTA, MAMBA2
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Array, dram_seconds, floats, lone
from infercast.predict.physics.state_update import UPDATE_FEATURES, Updating


def _limits(op: StateUpdate, gpu: Gpu) -> dict[str, Array]:
    return {"fma": np.ravel(op.flops) / gpu.fma_flops, "dram": np.ravel(dram_seconds(op, gpu))}


def _work(op: StateUpdate, rows: Any) -> tuple[Quantity, Quantity]:
    """States, which are read from memory and go back to it; nothing for the tensor cores."""
    one = StateUpdate(1, op.heads, op.key_heads, op.key_dim, op.value_dim, op.kind, op.dtype, op.state_dtype)
    return 0.0 * rows, 2.0 * one.state_bytes * rows


def _shape(kind: str, value_dim: int) -> Shape:
    def build(values: Values) -> StateUpdate:
        sizes: dict[str, Any] = {name: int(values[name]) for name in ("heads", "key_heads", "key_dim", "value_dim")}
        return StateUpdate(
            values["batch"], kind=kind, dtype=values["dtype"], state_dtype=values["state_dtype"], **sizes
        )

    defaults = {"key_dim": 128, "value_dim": value_dim, "dtype": "bf16", "state_dtype": "fp32"}
    return Shape(("batch", "heads", "key_heads"), defaults, build)


STATE_UPDATE = Family(
    name="state_update",
    archive="recurrent",
    position=7,
    op=StateUpdate,
    shapes={
        "gdn_update": _shape(GATED_DELTA, 128),
        "kda_update": _shape(KIMI_DELTA, 128),
        "mamba2_update": _shape(MAMBA2, 64),
    },
    step_sizes=("rows",),
    sizes=lambda op: floats(op.rows),
    size_of_one=lambda op: lone(op.rows),
    kind=attrgetter("kind", "dtype", "state_dtype"),
    core=Updating,
    core_key=attrgetter("heads", "key_heads", "key_dim", "value_dim"),
    features={"state_update": UPDATE_FEATURES},
    shares=("dram", "l2", "blocks", "launch"),
    pipes=lambda op, gpu: {"fma": op.flops / gpu.fma_flops, "dram": dram_seconds(op, gpu)},
    limits=_limits,
    work=_work,
    variants=lambda op, *_: (op.kind,),
    spread={"state_update": 3.0},
    typical=lambda _: ("state_update",),
    ceiling=Ceiling(
        features=("log_blocks",),
        shape=lambda op, gpu: [np.log2(np.ravel(np.asarray(op.rows, dtype=np.float64)) * op.heads / gpu.sms)],
        variant=attrgetter("kind"),
    ),
)
