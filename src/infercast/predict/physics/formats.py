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

Product = TypeVar("Product", Gemm, MoE)


def as_run(op: Product, gpu: Gpu) -> Product:
    """The product as this chip multiplies it."""
    if op.dtype in WIDE or gpu.supports(tensor_rate_of(op.dtype)):
        return op
    return replace(op, dtype="bf16", weight_dtype=op.weight_dtype or op.dtype)
