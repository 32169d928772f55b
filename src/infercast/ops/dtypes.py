"""Number formats: how many bytes a value takes, block scales included."""

from __future__ import annotations

from infercast.errors import UnknownNameError

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
    """Bytes a value of ``dtype`` takes in memory."""
    try:
        return BYTES[dtype]
    except KeyError:
        raise UnknownNameError("dtype", dtype, BYTES) from None


def tensor_rate_of(dtype: str) -> str:
    """The key of a GPU's dense FLOP/s table that a matrix product in ``dtype`` runs at."""
    return TENSOR_RATE.get(dtype, dtype)
