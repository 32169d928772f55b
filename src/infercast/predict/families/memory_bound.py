"""Memory-bound kernels: norms, activations, rotary embedding, KV writes, embedding, sampling, quantising."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import Elementwise
from infercast.ops.elementwise import gated_activation, kv_write, norm, quantise, rope
from infercast.predict.families.family import Ceiling, Family, Shape
from infercast.predict.families.pipes import Array, dram_seconds, floats, lone
from infercast.predict.physics.memory_bound import FEATURES, MemoryBound

NOT_STREAMED = ("sampling", "moe")
"""What is several kernels: what was measured of single ones does not hold."""


def _limits(op: Elementwise, gpu: Gpu) -> dict[str, Array]:
    """The arithmetic hardly ever shows."""
    return {"fma": np.ravel(op.flops) / gpu.fma_flops, "dram": np.ravel(dram_seconds(op, gpu))}


def _rows(make: Callable[..., Elementwise], *sizes: str, **options: Any) -> Shape:
    return Shape(
        ("rows", *sizes), {}, lambda values: make(values["rows"], *(int(values[name]) for name in sizes), **options)
    )


MEMORY_BOUND = Family(
    name="memory_bound",
    position=4,
    op=Elementwise,
    shapes={
        "norm": _rows(norm, "width", residual=True),
        "activation": _rows(gated_activation, "width"),
        "rope": _rows(rope, "heads", "head_dim"),
        "kv_write": _rows(kv_write, "width"),
        "quantise": _rows(quantise, "width"),
    },
    step_sizes=("rows",),
    sizes=lambda op: floats(op.rows),
    size_of_one=lambda op: None if isinstance(op.read_per_row + op.written_per_row, np.ndarray) else lone(op.rows),
    kind=attrgetter("family", "kind"),
    core=MemoryBound,
    features={"memory_bound": FEATURES},
    pipes=lambda op, gpu: {"fma": op.flops / gpu.fma_flops, "dram": dram_seconds(op, gpu)},
    limits=_limits,
    variants=lambda op, *_: ("",) if op.family == "quantise" and not op.kind else (op.kind or op.family,),
    # In an engine what is rotated lies apart in the projection's output, and quantising is fused with a little more.
    between_kernels={
        "": (1.0, 0.25e-6),
        "rope": (1.12, 0.1e-6),
        "add_norm_quantise": (1.18, 0.25e-6),
        "compiled_quantise": (1.12, 0.0),
    },
    spread={"moe": 6.7},
    typical=lambda op: ("routing" if op.family == "moe" else op.family,),
    ceiling=Ceiling(is_known=lambda op: op.family not in NOT_STREAMED),
)
