"""Tokens in a KV block: what an engine chooses for its attention kernels, and what they can work with.

Facts of vLLM 0.25 (``platforms/cuda.py``, ``v1/attention/backends``): the kernels it prefers for a GPU decide. Grouped
attention takes any multiple of 16. Latent attention is FlashAttention on Hopper (16), FlashMLA there once the cache
is fp8 (64), FlashInfer on Blackwell (32) or, for heads it does not know, CUTLASS (128), and Triton elsewhere (16).
Sparse attention has an indexer, whose scores are computed over blocks of 64, and of 256 where keys are compressed;
block-sparse attention has blocks of its own.
"""

from __future__ import annotations

from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.models.mixers import BlockSparseAttention, CompressedAttention, LatentAttention, SparseLatentAttention
from infercast.models.spec import ModelConfig

UNIT, INDEXED, COMPRESSED = 16, 64, 256
USUAL = (16, 32, 64, 128, 256)
FLASHINFER_HEADS = (64, 128, 192)
"""Dimensions without rotation of a query head that FlashInfer's kernel for latent attention is built for."""
DATACENTER_BLACKWELL = ("blackwell", "blackwell-ultra")


def default_block_size(model: ModelConfig, gpu: Gpu) -> int:
    """What the engine chooses where nobody asks for a size."""
    latent = [stack.mixer for stack in model.stacks if isinstance(stack.mixer, LatentAttention)]
    if any(isinstance(stack.mixer, CompressedAttention) for stack in model.stacks):
        return COMPRESSED
    chosen = [stack.mixer.block for stack in model.stacks if isinstance(stack.mixer, BlockSparseAttention)]
    if not latent:
        return max(chosen, default=UNIT)
    if any(isinstance(mixer, SparseLatentAttention) for mixer in latent):
        return INDEXED
    if gpu.architecture == "hopper":
        return 64 if model.cache_dtype == "fp8" else UNIT
    if gpu.architecture in DATACENTER_BLACKWELL:
        return 32 if latent[0].nope_dim in FLASHINFER_HEADS else 128
    return UNIT


def check_block_size(block_size: int) -> None:
    """Refuse a size that no attention kernel works with."""
    if block_size % UNIT:
        raise InputError(
            f"block_size {block_size} fits no attention kernel, which take multiples of {UNIT}; use one of "
            f"{', '.join(map(str, USUAL))}, or leave it out"
        )
