"""The interface of all operators, one launch of a step, and number formats with their bytes.

An operator says what a kernel is asked to do and knows nothing of any GPU. Sizes may be plain integers (one
kernel) or numpy arrays (many kernels of one family at once); every quantity is then an array of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from infercast.errors import UnknownNameError

Size = int | npt.NDArray[Any]
"""A dimension of one kernel, or of an array of kernels."""

Quantity = float | npt.NDArray[Any]
"""FLOPs, bytes or seconds of one kernel, or of an array of kernels."""


class Op(Protocol):
    """A frozen dataclass of one kernel family."""

    @property
    def family(self) -> str:
        """Kernel family: ``gemm``, ``attention``, ``moe``, ``norm``, ..."""

    @property
    def compute_dtype(self) -> str:
        """The format the arithmetic runs in."""

    @property
    def flops(self) -> Quantity:
        """Floating-point operations, a multiply-add counted as two."""

    @property
    def bytes_read(self) -> Quantity:
        """Distinct bytes the kernel must read."""

    @property
    def bytes_written(self) -> Quantity:
        """Distinct bytes the kernel must write."""


@dataclass(frozen=True, slots=True)
class Call:
    """A named operator that a step launches ``count`` times, once for each layer that holds it."""

    name: str
    op: Op
    count: int = 1
    beside: bool = False
    """Runs on a stream of its own beside the kernels around it."""
    slower: Quantity = 1.0
    """How many times as long it takes as such a kernel does, because of how the engine launches it, ..."""
    saved: float = 0.0
    """... and the seconds that it takes less."""


PACKED_LATENT = "fp8_ds_mla"
"""How FlashMLA caches the latents of sparse attention."""

# Bytes a stored value, with its share of the scales that travel with it:
# fp8_block has one fp32 scale for a 128 x 128 tile, int4 one bf16 scale for 128 values (AWQ, GPTQ),
# mxfp4 one 8-bit scale for 32 values (OCP MX specification 1.0), nvfp4 one 8-bit scale for 16.
# A packed latent has 512 values in fp8 with four fp32 scales, and 64 in bf16 (FlashMLA).
BYTES: dict[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / (128 * 128),
    PACKED_LATENT: 656 / 576,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}

# The tensor-core rate a format multiplies at. A weight-only format is multiplied as its activations are.
TENSOR_RATE: dict[str, str] = {"fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}


def bytes_of(dtype: str) -> float:
    try:
        return BYTES[dtype]
    except KeyError:
        raise UnknownNameError("dtype", dtype, BYTES) from None


def tensor_rate_of(dtype: str) -> str:
    """The key of a GPU's dense FLOP/s table that a matrix product in ``dtype`` runs at."""
    return TENSOR_RATE.get(dtype, dtype)
