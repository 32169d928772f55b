"""Routed experts of one layer as one fused operator."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import by_kernels
from infercast.ops import MoE
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.op import Quantity
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Pipes, dram_seconds, floats, lone, product_limits
from infercast.predict.identity import ANY
from infercast.predict.physics import moe
from infercast.predict.physics.expert_styles import TRITON, style_of

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile

TILES = (16, 32, 64, 128)
SAME_KERNEL = {"marlin": "int4/marlin"}
"""A kernel that multiplies all its formats alike, and the format whose tables say most: Marlin's experts were measured
in ten layouts of experts as int4, as mxfp4 in one that has 896 of them, and in no other format."""
OTHERWISE = "triton"
"""Whose kernel multiplies experts of a format that an engine has no other for."""


def expert_kernel(op: MoE, gpu: Gpu, profile: KernelProfile) -> str:
    """Whose kernel multiplies these experts on this GPU."""
    if op.kernel or gpu.kernels not in profile.experts:
        return op.kernel or OTHERWISE
    stored = stored_format(op)
    whole = by_kernels(profile.experts, gpu).get(stored, OTHERWISE)
    return profile.spread_experts.get(gpu.kernels, {}).get(stored, whole) if op.num_local < op.experts else whole


def stored_format(op: MoE) -> str:
    """The format of the experts' weights, as tables and engine profiles name it."""
    stored = op.weight_dtype or op.dtype
    if (stored, op.dtype) == ("mxfp4", "fp8"):
        return "mxfp4_a8"
    return "bf16" if stored == "fp16" else stored


def _variants(op: MoE, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    library, stored = expert_kernel(op, gpu, profile), stored_format(op)
    same = [SAME_KERNEL[library]] if library in SAME_KERNEL else []
    # Where a kernel is named, nothing measured of another stands for it.
    others = [] if op.kernel else [f"{stored}/triton", f"{op.dtype}/triton", "bf16/triton"]
    if op.dtype == stored and bytes_of(stored) < 1 and style_of(library) != TRITON:
        others = others[:1]  # what Triton's lose in 16 bits says nothing of tuned products in four
    return tuple(dict.fromkeys((*same, f"{stored}/{library}", *others)))


def _named(op: MoE, variant: str) -> MoE:
    """The same with the kernel that a model is of."""
    kernel = variant.partition("/")[2]
    return op if op.kernel or kernel == ANY else replace(op, kernel=kernel)


def _pipes(op: MoE, gpu: Gpu) -> Pipes:
    """Rows of each expert padded to a tile, against the weights of the experts that are hit.

    Experts get different numbers of rows, so that each pads half a tile on average, whatever the mean.
    """
    rate = gpu.dense_flops(tensor_rate_of(op.dtype))
    hit = np.maximum(op.experts_hit, 1e-9)
    padded = np.maximum(op.routed_rows / hit + TILES[0] / 2, TILES[0])
    flops = 2.0 * op.matrices * op.hidden * op.inter * hit * padded
    return {"tensor": flops / rate, "dram": dram_seconds(op, gpu)}


def _work(op: MoE, tokens: Any) -> tuple[Quantity, Quantity]:
    flops, moved = op.flops, op.weight_bytes
    if isinstance(flops, np.ndarray) and isinstance(moved, np.ndarray) and not isinstance(tokens, np.ndarray):
        return flops.item(), moved.item()  # one kernel, written as an array of one
    return flops, moved


def _ceiling_shape(op: MoE, gpu: Gpu) -> list[Any]:
    hit = np.maximum(np.ravel(op.experts_hit), 1.0)
    rows = np.ravel(op.routed_rows) / hit
    blocks = hit * np.ceil(rows / TILES[-1]) * np.ceil(op.inter / TILES[-1])
    return [np.log2(rows), np.log2(hit), np.log2(op.inter), np.log2(op.hidden), np.log2(blocks / gpu.sms)]


def _build(values: Values) -> MoE:
    return MoE(
        values["tokens"],
        hidden=int(values["hidden"]),
        inter=int(values["inter"]),
        experts=int(values["experts"]),
        topk=int(values["topk"]),
        dtype=values["dtype"],
        weight_dtype=values["weight_dtype"],
    )


EXPERTS = Family(
    name="moe",
    position=3,
    op=MoE,
    shapes={
        "moe": Shape(("tokens", "hidden", "inter", "experts", "topk"), {"dtype": "bf16", "weight_dtype": None}, _build)
    },
    step_sizes=("tokens",),
    sizes=lambda op: floats(op.tokens),
    size_of_one=lambda op: lone(op.tokens) if op.routing == "uniform" else None,
    kind=lambda op: (op.kernel, op.dtype, op.weight_dtype, op.num_local < op.experts),
    core=moe.Experts,
    named=_named,
    core_key=attrgetter("hidden", "inter", "experts", "topk", "num_local", "matrices", "routing", "kernel"),
    features={"moe": moe.FEATURES},
    shares=("tensor", "l2", "dram", "between", "launch"),
    pipes=_pipes,
    # Everything between the parts of the kernel may stay on the chip.
    limits=lambda op, gpu: product_limits(op, gpu, op.weight_bytes + 4.0 * op.hidden * np.asarray(op.tokens)),
    work=_work,
    has_weights=True,
    throttled=("moe",),
    variants=_variants,
    table=lambda op, gpu, profile: f"moe {expert_kernel(op, gpu, profile)}",
    # Kernels other than those that the physics was fitted to lie between -0.17 and 1.36 of it.
    interval=(-0.4, 0.9),
    spread={"moe": 6.7},
    typical=lambda op: (
        f"moe/{op.weight_dtype or op.dtype}",
        "moe narrow" if bytes_of(op.weight_dtype or op.dtype) < 1 else "moe",
    ),
    ceiling=Ceiling(
        features=("log_rows", "log_experts", "log_inter", "log_hidden", "log_rounds"),
        shape=_ceiling_shape,
        variant=lambda op: op.weight_dtype or op.dtype,
    ),
)
