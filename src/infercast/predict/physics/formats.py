"""Products in a format that a chip does not multiply in: weights stay as stored, everything else is 16 bits wide.

Engines run such checkpoints with kernels (Marlin) that widen weights on the way to the tensor cores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from infercast.hardware import Gpu
from infercast.ops import Gemm, MoE
from infercast.ops.dtypes import tensor_rate_of

WIDE = ("bf16", "fp16", "fp32", "tf32")
"""Formats that are multiplied as they are stored, or in another of them."""

CUT = 1.1
"""A product whose tensor cores could be so many times as fast is sold with a lower rate; less is rounding."""

Product = TypeVar("Product", Gemm, MoE)


def as_run(op: Product, gpu: Gpu) -> Product:
    """The product as this chip multiplies it."""
    if op.dtype in WIDE or gpu.supports(tensor_rate_of(op.dtype)):
        return op
    return replace(op, dtype="bf16", weight_dtype=op.weight_dtype or op.dtype)


def is_widened(op: Gemm | MoE) -> bool:
    """Whether its weights are widened to 16 bits on the way to the tensor cores."""
    return op.dtype in WIDE and op.weight_dtype not in (None, "", *WIDE)


def multiplying(op: MoE, gpu: Gpu) -> float:
    """FLOP/s of the tensor cores for these experts, before what a kernel loses.

    Kernels that widen weights reach half of the tensor cores' rate where it is whole (A100, L40S; H200 and B200,
    whose other half is for instructions that they do not use, less). Boards that are sold with half of that rate
    (GeForce, L40, L20, A10G) lose nothing by it.
    """
    peak = gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    return gpu.whole_tensor_flops if is_widened(op) and gpu.whole_tensor_flops > CUT * peak else peak
